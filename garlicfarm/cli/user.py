"""`garlicfarm user`: the users of the admin API and the farm listener of this machine's node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.node_access import node_config
from garlicfarm.cli.options import Choice, Options, print_rows, shared_options
from garlicfarm.credentials.roles import ROLES

if TYPE_CHECKING:
    from garlicfarm.credentials.users import UserStore


@click.group(cls=CommandGroup)
def user() -> None:
    """Users of this machine's node, with their roles. A running node sees changes at the next login."""


@user.command("list", examples=["garlicfarm user list"])
@shared_options("config", "output")
def list_(options: Options) -> None:
    """List the users and their roles."""
    rows = [{"name": name, "role": role} for name, role in _store(options).list()]
    print_rows(options.output, "garlicfarm.credentials.users/1", rows)


@user.command(
    examples=[
        "garlicfarm user add rita",
        "garlicfarm user add bot --role writer --password-file bot.password",
    ]
)
@click.argument("name")
@click.option("--role", type=Choice(ROLES), default="reader", show_default=True)
@click.option(
    "--password-file",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="File (mode 0600) with the password; - is stdin. Default: ask, or stdin where it is not a terminal.",
)
@shared_options("config")
def add(options: Options, name: str, role: Any, password_file: Path | None) -> None:
    """Add NAME, or give NAME a new role and password."""
    _store(options).add(name, role, _password(name, password_file))


@user.command(examples=["garlicfarm user remove rita"])
@click.argument("name")
@shared_options("config")
def remove(options: Options, name: str) -> None:
    """Remove NAME."""
    from garlicfarm.credentials.users import LOCAL_USER

    if name == LOCAL_USER:
        raise click.UsageError(
            f"the commands on this machine log in as {name}; without that user none of them could"
        )
    _store(options).remove(name)


def _store(options: Options) -> UserStore:
    from garlicfarm.client.local_node import check_data_directory
    from garlicfarm.credentials.users import UserStore

    config = node_config(options)
    check_data_directory(config)
    return UserStore(config.node.data_dir / "users")


def _password(name: str, file: Path | None) -> str:
    """The password, never from the command line, where every process could read it."""
    from garlicfarm.credentials.private_files import read_private_file

    if file is not None and str(file) != "-":
        return read_private_file(file).rstrip("\r\n")
    if file is None and sys.stdin.isatty():
        return str(click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")
