"""`garlicfarm wait`: until a farm is as scripts need it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from garlicfarm.cli.health import judge
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.remote import connect, farm_name, headline

__all__ = ["wait"]

POLL_INTERVAL_S = 0.25


def _is_caught_up(status: dict[str, Any]) -> bool:
    return status["leader_commit"] is not None and status["applied"] >= status["leader_commit"]


_CONDITIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "leader": lambda status: status["leader"] is not None,
    "healthy": lambda status: judge(status) == "healthy",
    "caught-up": _is_caught_up,
    "publisher": lambda status: status["publisher"] is not None,
}


@click.command()
@click.option(
    "--for",
    "wanted",
    type=click.Choice([*_CONDITIONS]),
    required=True,
    help="leader, publisher: one is known; healthy: as `health` says; caught-up: the node that answers has "
    "applied what the leader has committed.",
)
@shared_options("config", "node", "farm", "user", "tls", "timeout")
def wait(options: Options, wanted: str) -> None:
    """Block until a farm has a leader, is healthy, and so on; a node that does not answer yet is waited for.
    Without --timeout for ever.
    """
    import trio

    trio.run(_wait, options, wanted)


async def _wait(options: Options, wanted: str) -> None:
    import trio

    from garlicfarm.errors import UnreachableError

    seen = "no node has answered"
    with trio.move_on_after(math.inf if options.timeout_s is None else options.timeout_s):
        while True:
            try:
                # Asked anew each time: a node that is started again has another address, perhaps.
                async with connect(options) as client:
                    status = await client.status(await farm_name(client, options))
            except UnreachableError as error:
                seen = str(error)
            else:
                if _CONDITIONS[wanted](status):
                    return
                seen = headline(status)
            await trio.sleep(POLL_INTERVAL_S)
    raise TimeoutError(f"not {wanted} within {options.timeout_s:g} s: {seen}")
