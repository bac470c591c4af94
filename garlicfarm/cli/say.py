"""The two ways to print: a command's result on stdout, and what it says beside on stderr.

Neither passes on what a terminal obeys. Line feeds are kept: a text of others that is to stay on its line
goes through `garlicfarm.printable.printable` first.
"""

from __future__ import annotations

import click

from garlicfarm.printable import printable_json


def put(text: object, *, nl: bool = True) -> None:
    """Print a result."""
    click.echo(printable_json(str(text)), nl=nl)


def say(text: str) -> None:
    """Print a message."""
    click.echo(printable_json(text), err=True)
