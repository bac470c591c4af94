"""`garlicfarm node drain` and `node undrain`: let others take over what a node does, and take part again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.exits import Exit
from garlicfarm.cli.node_access import ask
from garlicfarm.cli.options import Options, print_object, shared_options
from garlicfarm.cli.say import put
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient

WAIT_S = 30.0
_POLL_S = 0.25


@click.command(cls=Command, examples=["garlicfarm node drain", "garlicfarm node drain --timeout 5s"])
@shared_options()
def drain(options: Options) -> Exit:
    """Let other members take over what this node does, and wait until it is safe to stop it (exit code 0; 6:
    not yet after --timeout, by default 30 s, and why).

    The role of publisher goes first, the leadership last. The node stays up, and a restart does not end this:
    `garlicfarm node undrain` does. It is safe to stop when it holds nothing any more and a majority of each
    farm is there without all nodes that are drained. Where no other member can publish, this one goes on.
    Needs the role admin.
    """
    import trio

    async def until_safe(client: AdminClient) -> dict[str, Any]:
        body = await client.drain()
        with trio.move_on_after(WAIT_S if options.timeout_s is None else options.timeout_s):
            while not body["safe"]:
                await trio.sleep(_POLL_S)
                body = await client.draining()
        return body

    # All farms of a node are one question, and the wait has an end of its own.
    asked = replace(options, farm="", timeout_s=None)
    body = ask(asked, lambda client, _: until_safe(client), awaited="other members to take over")
    return _told(options, body)


@click.command(cls=Command, examples=["garlicfarm node undrain"])
@shared_options()
def undrain(options: Options) -> None:
    """Have this node take part in its farms again, after `node drain`. Needs the role admin."""
    _told(options, ask(replace(options, farm=""), lambda client, _: client.drain(False)))


def _told(options: Options, body: dict[str, Any]) -> Exit:
    if options.output != "table":
        print_object(options.output, "garlicfarm.node-drain/1", body)
    elif not body["drained"]:
        put("this node takes part in its farms")
    elif body["safe"]:
        put("safe: this node can be stopped; `garlicfarm node undrain` has it take part again")
    else:
        for held in body["holds"]:
            put(printable(f"not now: {held}"))
    return Exit.OK if body["safe"] else Exit.DEGRADED
