"""`garlicfarm transports`: the installed transports."""

from __future__ import annotations

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.options import Options, print_rows, shared_options

__all__ = ["transports"]


@click.command(cls=Command, examples=["garlicfarm transports"])
@shared_options("output")
def transports(options: Options) -> None:
    """List the installed transports and the distributions that bring them. Loads none of them."""
    from garlicfarm.plugins import TRANSPORTS, list_plugins

    rows = [
        {"name": plugin.name, "distribution": plugin.distribution, "version": plugin.version}
        for plugin in list_plugins(TRANSPORTS)
    ]
    print_rows(options.output, "garlicfarm.transports/1", rows)
