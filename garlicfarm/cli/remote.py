"""Commands that ask a running node, and how they find it; `status`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from garlicfarm.cli.options import Options, print_rows, shared_options

if TYPE_CHECKING:
    from rich.table import Table

    from garlicfarm.client.admin import AdminClient

__all__ = ["Access", "ask", "connect", "farm_name", "find_node", "headline", "status", "table"]

T = TypeVar("T")

LOCAL_USER = "local"
WATCH_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Access:
    """Where a node is reached, as whom, and how it is known. No secret."""

    urls: tuple[str, ...]
    user: str
    password_file: Path
    pin: str | None
    ca: Path | None


def find_node(options: Options) -> Access:
    """The node that the options name, else the node of this machine.

    The latter is found through its configuration; its data directory holds the address (``admin.url``,
    written while it runs), the credential of the user ``local``, and the certificate, which is pinned.

    :raises ConfigError: no such configuration, or a file in it cannot be used.
    :raises UnreachableError: the node of this machine does not run, and would choose a port when it does.
    """
    if options.node:
        if options.user is None or options.password_file is None:
            raise click.UsageError("--node needs --user and --password-file")
        return Access(options.node, options.user, options.password_file, options.pin, options.ca)

    from garlicfarm.config import find_config, load
    from garlicfarm.credentials.certificates import pin_of_file

    config = load(find_config(options.config, os.environ, Path.cwd()), os.environ)
    data_dir = config.node.data_dir
    if options.user is not None and options.password_file is None:
        raise click.UsageError("--user needs --password-file")
    pin = options.pin
    if pin is None and options.ca is None:
        pin = pin_of_file(data_dir / "tls" / "node.crt")
    return Access(
        (_local_url(data_dir, config.admin.url),),
        options.user or LOCAL_USER,
        options.password_file or data_dir / "local.password",
        pin,
        options.ca,
    )


def connect(options: Options) -> AdminClient:
    """A client for the node that `find_node` finds. Raises what it raises."""
    from garlicfarm.client.admin import AdminClient
    from garlicfarm.credentials.private_files import read_private_file

    found = find_node(options)
    password = read_private_file(found.password_file).strip()
    return AdminClient(found.urls, user=found.user, password=password, pin=found.pin, ca=found.ca)


def _local_url(data_dir: Path, configured: str) -> str:
    from garlicfarm.errors import UnreachableError

    try:
        url = (data_dir / "admin.url").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        if configured.endswith(":0"):  # any free port: only the running node knows which
            raise UnreachableError(f"no node runs in {data_dir}", "start it: garlicfarm node start") from None
        url = configured
    # Bound to all addresses, it is reached at the loopback one.
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


async def farm_name(client: AdminClient, options: Options) -> str:
    """The farm that the options name, else the only one of the node."""
    if options.farm is not None:
        return options.farm
    names = [str(row["name"]) for row in await client.farms()]
    if len(names) != 1:
        raise click.UsageError(f"--farm is needed: this node has {', '.join(names) or 'no farm'}")
    return names[0]


def ask(options: Options, question: Callable[[AdminClient, str], Awaitable[T]]) -> T:
    """Run ``question(client, farm)`` under Trio, within ``--timeout``, and return what it returns."""
    import trio

    async def main() -> T:
        with trio.fail_after(math.inf if options.timeout_s is None else options.timeout_s):
            async with connect(options) as client:
                return await question(client, await farm_name(client, options))

    return trio.run(main)


@click.command()
@click.option("--watch", is_flag=True, help="Show it anew every second, until Ctrl-C.")
@shared_options()
def status(options: Options, watch: bool) -> None:
    """All members of a farm, dead ones too: who leads, who publishes, who lags."""
    ask(
        options,
        _watch if watch and options.output == "table" and sys.stdout.isatty() else _print(options, watch),
    )


def _print(options: Options, watch: bool) -> Callable[[AdminClient, str], Awaitable[None]]:
    async def show(client: AdminClient, farm: str) -> None:
        import json

        import trio

        while True:
            body = await client.status(farm)
            if options.output == "table":
                _print_members(body)
            else:
                compact = watch or options.output == "jsonl"
                click.echo(json.dumps(body, indent=None if compact else 2))
            if not watch:
                return
            await trio.sleep(WATCH_INTERVAL_S)

    return show


def _print_members(body: dict[str, Any]) -> None:
    if not sys.stdout.isatty():
        click.echo(headline(body))
        print_rows("table", "", _rows(body))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(table(body, console.width))


async def _watch(client: AdminClient, farm: str) -> None:
    import trio
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from garlicfarm.errors import UnreachableError

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            try:
                live.update(table(await client.status(farm), live.console.width), refresh=True)
            except UnreachableError as error:
                # The node may come back; what was shown last is still worth reading.
                live.console.print(Text(str(error), "red"))
            await trio.sleep(WATCH_INTERVAL_S)


def headline(body: dict[str, Any]) -> str:
    """The body of ``GET …/status`` in one line."""
    leader, publisher, spare = body["leader"], body["publisher"], body["fault_tolerance"]
    return (
        f"farm {body['farm']}: leader {leader or 'none'}, publisher {publisher or 'none'}, "
        f"term {body['term']}, commit {body['commit']}, "
        f"{'quorum' if body['quorum'] else 'NO QUORUM'}, can lose {spare} more"
    )


def _rows(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "id": member["id"],
            "endpoint": (endpoint := member["endpoint"].partition("?")[0]),
            "role": member["role"],
            "publisher": "*" if member["publisher"] else None,
            "term": member["term"],
            "commit": member["commit"],
            "applied": member["applied"],
            "lag": member["lag"],
            "last contact": _seconds(member["last_contact_s"]),
            "rtt": _seconds(member["rtt_s"]),
            "transport": member["transport"],
            "version": member["version"],
            "age": _seconds(member["age_s"]),
            "error": member["error"] and member["error"].removeprefix(f"{endpoint}: "),
        }
        for member in body["members"]
    ]


def _seconds(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.1f} s"


_COLOURS = {"leader": "bold green", "candidate": "yellow", "unreachable": "red"}


def table(body: dict[str, Any], width: int) -> Table:
    """The body of ``GET …/status`` as a table for a terminal of ``width`` columns: a row per member, dead
    ones too."""
    from garlicfarm.cli.tables import WIDE, Column, make_table

    columns = [
        Column("id"),
        Column("endpoint", most=30),
        Column("role"),
        Column("publisher"),
        Column("term", 100),
        Column("commit"),
        Column("applied", WIDE),
        Column("lag"),
        Column("last contact"),
        Column("rtt", WIDE),
        Column("transport", WIDE),
        Column("version", WIDE),
        Column("age", WIDE),
        Column("error", 110),
    ]
    rows = [(_COLOURS.get(str(row["role"]), ""), row) for row in _rows(body)]
    return make_table(headline(body), columns, rows, width, yielding=("error", "endpoint"))
