"""`garlicfarm wait`: block until a farm is in the state that a script needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from garlicfarm.admin.health import judge
from garlicfarm.cli.command_group import Command
from garlicfarm.cli.node_access import farm_name, find_node
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.status_table import headline

POLL_INTERVAL_S = 0.25


def _is_caught_up(status: dict[str, Any]) -> bool:
    return status["leader_commit"] is not None and status["applied"] >= status["leader_commit"]


_CONDITIONS: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "leader": ("no leader", lambda status: status["leader"] is not None),
    "healthy": ("not healthy", lambda status: judge(status) == "healthy"),
    "caught-up": ("not caught up", _is_caught_up),
    "publisher": ("no publisher", lambda status: status["publisher"] is not None),
}
"""The words for a condition that is not met, and its test."""


@click.command(cls=Command, examples=["garlicfarm wait --for leader"])
@click.option(
    "--for",
    "wanted",
    type=click.Choice([*_CONDITIONS]),
    required=True,
    help="leader, publisher: there is one; healthy: as `health` says; caught-up: the node that answers has "
    "applied everything that the leader has committed.",
)
@shared_options("config", "node", "farm", "user", "tls", "timeout")
def wait(options: Options, wanted: str) -> None:
    """Block until a farm has a leader or a publisher, is healthy, or has caught up.

    A node that does not answer yet is asked again. Without --timeout this waits forever; where --timeout
    passes, the error says what is missing.
    """
    import trio

    trio.run(_wait, options, wanted)


async def _wait(options: Options, wanted: str) -> None:
    import trio

    from garlicfarm.cli.sign_of_life import sign_of_life
    from garlicfarm.client.admin import client_of
    from garlicfarm.errors import UnreachableError

    unmet, is_met = _CONDITIONS[wanted]
    seen = "no node has answered"
    async with sign_of_life(lambda: f"{wanted}; {seen}"):
        with trio.move_on_after(math.inf if options.timeout_s is None else options.timeout_s):
            while True:
                try:
                    # Asked anew each time: a node that is started again may have another address.
                    async with client_of(find_node(options)) as client:
                        farm = await farm_name(client, options)
                        status = await client.status(farm)
                        if is_met(status):
                            return
                        why = ""
                        if wanted == "publisher":
                            why = f"{why_no_publisher(status, await client.ranking(farm))}; "
                        if wanted == "healthy":
                            why = "".join(f"{problem}; " for problem in status.get("problems") or ())
                        seen = why + headline(status)
                except UnreachableError as error:
                    seen = str(error)
                await trio.sleep(POLL_INTERVAL_S)
    raise TimeoutError(f"{unmet} within {options.timeout_s:g} s: {seen}")


def why_no_publisher(status: dict[str, Any], ranking: dict[str, Any]) -> str:
    """Why a farm names no publisher, from the bodies of ``GET …/status`` and ``GET …/ranking``."""
    members = status["members"]
    if status["leader"] is None:
        return "there is no leader, which takes a majority of the members"
    if not status["quorum"]:
        return f"there is no quorum: too few of the {len(members)} members are reachable"
    if not ranking["members"]:
        return f"the application of this farm, {status['application']}, names no publisher"
    reasons: dict[str, list[str]] = {}
    for row in ranking["members"]:
        if row["eligible"]:
            return f"member {row['id']} is eligible, and will be named"
        for why in row["why"]:
            word, _, reason = why.partition(": ")
            if word == "not eligible":
                reasons.setdefault(reason, []).append(str(row["id"]))
    told = "; ".join(
        f"member{'s' * (len(ids) > 1)} {', '.join(sorted(ids, key=int))}: {reason}"
        for reason, ids in reasons.items()
    )
    return f"no member is eligible ({told})"
