"""`garlicfarm leader`: show the leader of a farm, and let another member lead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.node_access import ONLY_THE_LEADER, ask
from garlicfarm.cli.options import MEMBER_ID, Options, print_object, shared_options
from garlicfarm.cli.say import say

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient


@click.group(cls=CommandGroup)
def leader() -> None:
    """The leader of a farm."""


@leader.command(examples=["garlicfarm leader show"])
@shared_options()
def show(options: Options) -> None:
    """Show the leader and the term."""
    from garlicfarm.errors import NoQuorum

    body = ask(options, lambda client, farm: client.status(farm))
    if body["leader"] is None:
        raise NoQuorum(f"the farm {body['farm']} has no leader now, as far as node {body['node']} knows")
    endpoints = {row["id"]: row["endpoint"] for row in body["members"]}
    row = {"leader": body["leader"], "endpoint": endpoints.get(body["leader"]), "term": body["term"]}
    print_object(options.output, "garlicfarm.leader/1", row)


@leader.command(examples=["garlicfarm leader stepdown", "garlicfarm leader stepdown --to 2"])
@click.option("--to", type=MEMBER_ID, default=None, help="Id of the member that takes over.")
@shared_options()
def stepdown(options: Options, to: int | None) -> None:
    """Let another member lead: the one that is best placed, or --to. Only the leader does this."""
    from garlicfarm.errors import NotLeader

    async def step_down(client: AdminClient, farm: str) -> int:
        try:
            return await client.step_down(farm, to or 0)
        except NotLeader:
            say(ONLY_THE_LEADER)
            raise

    unmet = "no other member is known to lead yet; see `garlicfarm leader show`"
    new = ask(options, step_down, awaited="the next leader's id", unmet=unmet)
    print_object(options.output, "garlicfarm.leader/1", {"leader": new})
