"""`garlicfarm dafka keys`: the CURVE keys of towers and nodes."""

from __future__ import annotations

import re
from pathlib import Path

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.dafka import plugin
from garlicfarm.cli.say import put

_FILE = click.Path(dir_okay=False, path_type=Path)
_ROLES = ["tower", "producer", "consumer", "store"]


@click.group(cls=CommandGroup)
def keys() -> None:
    """Keys of towers and nodes: each has a secret one of its own, and knows the public ones of the others."""


@keys.command(examples=["garlicfarm dafka keys create store-1.key --role store >> peers.toml"])
@click.argument("file", type=_FILE)
@click.option(
    "--role",
    "roles",
    type=click.Choice(_ROLES),
    multiple=True,
    required=True,
    help="A role that the key allows; repeatable.",
)
@click.option("--name", metavar="NAME", help="What the others call it.  [default: FILE without its suffix]")
def create(file: Path, roles: tuple[str, ...], name: str | None) -> None:
    """Make a key; write the secret one to FILE (new, mode 0600), and print the table of the public one.

    Append the table to the file of known peers, which is the same on all towers and nodes:
    `garlicfarm dafka keys create store-1.key --role store >> peers.toml`.
    """
    name = file.stem if name is None else name
    if not re.fullmatch("[A-Za-z0-9_-]+", name):
        raise click.UsageError(
            f"{name!r} is not a name of letters, digits, - and _; give another with --name"
        )
    made = plugin("keys").create_key(file)
    listed = ", ".join(f'"{role}"' for role in dict.fromkeys(roles))
    put(f'[{name}]\nkey = "{made.public}"\nroles = [{listed}]\n')


@keys.command(examples=["garlicfarm dafka keys show store-1.key"])
@click.argument("file", type=_FILE)
def show(file: Path) -> None:
    """Print the public key of the secret one in FILE."""
    put(plugin("keys").read_key(file).public)
