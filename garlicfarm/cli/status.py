"""`garlicfarm status`: all members of a farm, once or at each change."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.farm_watch import repeat
from garlicfarm.cli.node_access import ask
from garlicfarm.cli.options import Options, print_rows, shared_options
from garlicfarm.cli.say import put
from garlicfarm.cli.status_table import headline, more_lines, status_rows, status_view
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient


@click.command(cls=Command, examples=["garlicfarm status --watch", "garlicfarm status -o json"])
@click.option(
    "--watch",
    is_flag=True,
    help="Show it again at each change, at most once a second and at least every 5 s, until Ctrl-C.",
)
@shared_options()
def status(options: Options, watch: bool) -> None:
    """Show all members of a farm, dead ones too: leader, publisher, lag."""
    ask(
        options,
        _watch if watch and options.output == "table" and sys.stdout.isatty() else _print(options, watch),
        follows=watch,
    )


def _print(options: Options, watch: bool) -> Callable[[AdminClient, str], Awaitable[None]]:
    async def show(client: AdminClient, farm: str) -> None:
        from garlicfarm.cli.sign_of_life import sign_of_life

        async def once() -> None:
            async with sign_of_life("the status"):
                body = await client.status(farm)
            if options.output == "table":
                _print_members(body)
            else:
                compact = watch or options.output == "jsonl"
                put(json.dumps(body, indent=None if compact else 2))

        await (repeat(client, farm, once) if watch else once())

    return show


def _print_members(body: dict[str, Any]) -> None:
    if not sys.stdout.isatty():
        put(printable(headline(body)))
        print_rows("table", "", status_rows(body))
        for line in more_lines(body):
            put(printable(line))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(status_view(body, console.width))


async def _watch(client: AdminClient, farm: str) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from garlicfarm.errors import UnreachableError

    with Live(console=Console(highlight=False), auto_refresh=False) as live:

        async def draw() -> None:
            try:
                live.update(status_view(await client.status(farm), live.console.width), refresh=True)
            except UnreachableError as error:
                # The node may come back; what was shown last is still worth reading.
                live.console.print(Text(printable(str(error)), "red"))

        await repeat(client, farm, draw)
