"""How commands find a running node and ask it; `status`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.options import Options, print_rows, shared_options
from garlicfarm.cli.say import put
from garlicfarm.cli.status_table import feed_lines, headline, publisher_lines, status_rows, status_view
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient
    from garlicfarm.client.local_node import NodeAccess

__all__ = ["ONLY_THE_LEADER", "ask", "deadline", "farm_name", "find_node", "status"]

T = TypeVar("T")

ONLY_THE_LEADER = (
    "only the leader can do this: run this on its machine, or name its admin URL with --node (`garlicfarm "
    "node address` prints it there), and an admin among its users with --user"
)
WATCH_INTERVAL_S = 1.0
"""The shortest time between two of the same."""


def find_node(options: Options) -> NodeAccess:
    """The nodes that the options name, else the node of this machine, found through its configuration.

    :raises click.UsageError: a user without a password file, or URLs without a user.
    :raises ConfigError, StorageMissing, UnreachableError: as `garlicfarm.client.from_config`.
    """
    from garlicfarm.client.local_node import NodeAccess, local_node

    if options.node:
        if options.user is None or options.password_file is None:
            raise click.UsageError("--node needs --user and --password-file")
        return NodeAccess(options.node, options.user, options.password_file, options.pin, options.ca)
    if options.user is not None and options.password_file is None:
        raise click.UsageError("--user needs --password-file")

    from garlicfarm.config import find_config, load

    found = local_node(load(find_config(options.config, os.environ, Path.cwd()), os.environ))
    return replace(
        found,
        user=options.user or found.user,
        password_file=options.password_file or found.password_file,
        pin=options.pin or (found.pin if options.ca is None else None),
        ca=options.ca,
    )


async def farm_name(client: AdminClient, options: Options) -> str:
    """The farm that the options name, else the only one of the node."""
    if options.farm is not None:
        return options.farm
    names = [str(row["name"]) for row in await client.farms()]
    if len(names) != 1:
        raise click.UsageError(f"--farm is needed: this node has {', '.join(names) or 'no farm'}")
    return names[0]


def ask(
    options: Options,
    question: Callable[[AdminClient, str], Awaitable[T]],
    *,
    awaited: str = "",
    unmet: str = "",
    follows: bool = False,
) -> T:
    """Run ``question(client, farm)`` under Trio, within ``--timeout``, and return what it returns.

    :param awaited: what takes the time, for the `sign_of_life`.  [default: an answer from the node]
    :param follows: the question goes on after the node has answered, and says itself what it waits for.
    :param unmet: what has not come about where ``--timeout`` passes.  [default: no answer from the node]
    :raises TimeoutError: it passed.
    """
    import trio

    from garlicfarm.cli.sign_of_life import sign_of_life

    async def main() -> T:
        found = find_node(options)
        with deadline(options.timeout_s, unmet or f"no answer from {' or '.join(found.urls)}"):
            urls = " or ".join(found.urls)
            async with found.client() as client:
                async with sign_of_life(f"{awaited or 'an answer'} from {urls}"):
                    farm = await farm_name(client, options)
                    if not follows:
                        return await question(client, farm)
                return await question(client, farm)

    return trio.run(main)


@contextmanager
def deadline(timeout_s: float | None, unmet: str) -> Iterator[None]:
    """Cancel the block after ``--timeout``, and raise `TimeoutError` that says what has not come about."""
    import trio

    with trio.move_on_after(math.inf if timeout_s is None else timeout_s) as scope:
        yield
    if scope.cancelled_caught:
        raise TimeoutError(f"--timeout of {timeout_s:g} s passed: {unmet}")


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
        import json

        from garlicfarm.cli.sign_of_life import sign_of_life

        async def once() -> None:
            async with sign_of_life("the status"):
                body = await client.status(farm)
            if options.output == "table":
                _print_members(body)
            else:
                compact = watch or options.output == "jsonl"
                put(json.dumps(body, indent=None if compact else 2))

        await (_repeat(client, farm, once) if watch else once())

    return show


async def _repeat(client: AdminClient, farm: str, show: Callable[[], Awaitable[None]]) -> None:
    """Show something at each change of the farm."""
    import trio

    from garlicfarm.cli.farm_watch import LONGEST_S, FarmWatch
    from garlicfarm.errors import GarlicFarmError, first_error

    watch = FarmWatch()

    async def follow() -> None:
        while True:
            try:
                await watch.follow(client, farm)
            except GarlicFarmError:  # what is shown next says so; a node of 0.1 pushes nothing
                await trio.sleep(LONGEST_S)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            while True:
                await show()
                await trio.sleep(WATCH_INTERVAL_S)
                await watch.wait()
    except* GarlicFarmError as group:
        error = first_error(group)
    raise error


def _print_members(body: dict[str, Any]) -> None:
    if not sys.stdout.isatty():
        put(printable(headline(body)))
        print_rows("table", "", status_rows(body))
        for line in [*publisher_lines(body), *feed_lines(body)]:
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

        await _repeat(client, farm, draw)
