"""`garlicfarm top`: a farm on the whole terminal, until Ctrl-C."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.node_access import ask
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient


@click.command(cls=Command, examples=["garlicfarm top"])
@shared_options("config", "node", "farm", "user", "tls")
def top(options: Options) -> None:
    """Show a farm on the whole terminal: members, ranking, events, at each change, until Ctrl-C.

    It goes on while no node answers. For a pipe, see `garlicfarm status --watch`.
    """
    if not sys.stdout.isatty():
        raise click.UsageError("this fills a terminal; for a pipe: garlicfarm status --watch -o jsonl")
    ask(options, _show, follows=True)


async def _show(client: AdminClient, farm: str) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from garlicfarm.cli.farm_screen import FarmScreen
    from garlicfarm.cli.farm_watch import repeat
    from garlicfarm.errors import UnreachableError

    console = Console(highlight=False)
    screen = FarmScreen()
    with Live(console=console, auto_refresh=False, screen=True) as live:

        async def draw() -> None:
            try:
                status = await client.status(farm)
                ranking = await client.ranking(farm) if status["application"] == "publisher" else None
            except UnreachableError as error:
                live.update(Text(printable(str(error)), "red"), refresh=True)
            else:
                live.update(screen.drawn(status, ranking, console.width, console.height), refresh=True)

        await repeat(client, farm, draw)
