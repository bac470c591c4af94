"""`garlicfarm member`: list and change the members of a farm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import Command, CommandGroup
from garlicfarm.cli.node_access import ONLY_THE_LEADER, ask
from garlicfarm.cli.options import MEMBER_ID, Options, print_object, shared_options
from garlicfarm.cli.say import say
from garlicfarm.printable import printable
from garlicfarm.refusals import Refusal

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient

CATCH_UP_POLL_S = 1.0
PATIENCE_S = 5.0
RETRY_S = 0.25
_PASSING = (Refusal.NOTHING_COMMITTED_YET, Refusal.LEADERSHIP_IN_TRANSFER)

_Request = Callable[["AdminClient", str], Awaitable[tuple[int, int]]]


@click.group(cls=CommandGroup, targets={"token": "garlicfarm.cli.member_token:token"})
def member() -> None:
    """The members of a farm. Any node takes these commands; `member set`, and --force where it is needed, the
    leader alone."""


@member.command("list", examples=["garlicfarm member list"])
@shared_options()
def list_(options: Options) -> None:
    """List the members, and a server that is joining, as the node that answers knows them."""
    body = ask(options, lambda client, farm: client.members(farm))
    rows = [{key: row[key] for key in ("id", "endpoint", "role")} for row in body["members"]]
    joining = body["joining"]
    if joining is not None:
        role = f"joining, {joining['match']} of {joining['last_index']}"
        rows.append({"id": joining["id"], "endpoint": joining["endpoint"], "role": role})
    if options.output == "table":
        for row in rows:
            row["endpoint"] = row["endpoint"].partition("?")[0]
    print_object(options.output, body["schema"], body, rows=rows)


@member.command(examples=["garlicfarm member add 4 ssl://d.example:27150"])
@click.argument("id", type=MEMBER_ID)
@click.argument("endpoint")
@shared_options()
def add(options: Options, id: int, endpoint: str) -> None:
    """Add the server ID at ENDPOINT, which runs on a store that `node join` made.

    `node join` asks for this itself. This command is for a server whose own request does not get through.
    """
    new = {"id": id, "endpoint": endpoint, "role": "follower"}
    _change(
        options, lambda client, farm: client.add_member(farm, id, endpoint), id, lambda rows: [*rows, new]
    )


@member.command("set", examples=["garlicfarm member set 2 ssl://b2.example:27150"])
@click.argument("id", type=MEMBER_ID)
@click.argument("endpoint")
@shared_options()
def set_(options: Options, id: int, endpoint: str) -> None:
    """Change the endpoint of member ID, which must listen at ENDPOINT already. Only the leader does this."""
    _change(options, lambda client, farm: client.set_member(farm, id, endpoint), id, lambda rows: rows)


@member.command(examples=["garlicfarm member remove 2"])
@click.argument("id", type=MEMBER_ID)
@click.option("--force", is_flag=True, help="Remove it even if the remaining members may have no majority.")
@shared_options()
def remove(options: Options, id: int, force: bool) -> None:
    """Remove member ID permanently, dead or alive. A leader hands over first. Its id is never used again."""
    _remove(options, id, force)


@member.command(examples=["garlicfarm member repair"])
@shared_options()
def repair(options: Options) -> None:
    """Have the node that is asked take the leader's state and the end of its log.

    For a member that holds something else than most others, as `garlicfarm status` says. It must not lead.
    What it has stays until all of that is on its disk. It takes no entries meanwhile, so the other members
    need a majority without it.
    """
    index = ask(
        options,
        lambda client, farm: client.repair(farm),
        awaited="a snapshot of the leader",
        unmet="no newer snapshot of the leader has come yet; `garlicfarm status` shows what the node holds",
    )
    print_object(options.output, "garlicfarm.repair/1", {"index": index})


@click.command(cls=Command, examples=["garlicfarm node leave"])
@click.option("--force", is_flag=True, help="Remove it even if the remaining members may have no majority.")
@shared_options("config", "farm", "output", "timeout")
def leave(options: Options, force: bool) -> None:
    """Remove this machine's node, which must run, from its farm permanently.

    The node asks the leader over the Raft wire; a node that leads hands over first. Its id is never used
    again. Removed from its only farm, the node ends with exit code 8.
    """
    me = int(ask(options, lambda client, farm: client.node())["id"])
    _remove(options, me, force)


def _remove(options: Options, id: int, force: bool) -> None:
    _change(
        options,
        lambda client, farm: client.remove_member(farm, id, force=force),
        id,
        lambda rows: [row for row in rows if row["id"] != id],
        force=force,
    )


def _change(
    options: Options,
    request: _Request,
    member_id: int,
    result: Callable[[list[dict[str, Any]]], Any],
    *,
    force: bool = True,
) -> None:
    """Make a change, and print how many members the farm can lose before and after it. Without ``force``, a
    change that leaves too few is not requested: the leader refuses it too, but notices dead ones later."""
    from garlicfarm.errors import LocalProtocolError, NotLeader, OutcomeUnknown, ProposalDropped

    async def make(client: AdminClient, farm: str) -> tuple[Any, Any]:
        body = await client.members(farm)
        rows = body["members"]
        before, after = _figures(rows), _figures(result(rows))
        figures = [{"when": "before", **before}, {"when": "after", **after}]
        if not force and after["members"] and after["reachable"] < after["majority"]:
            raise LocalProtocolError(
                f"now {_sentence(before)}; after the change {_sentence(after)}: bring members back first, "
                "or use --force and risk that nothing can be committed any more"
            )
        try:
            return figures, await persistently(request, client, farm)
        except ProposalDropped:
            say(f"{_sentence(before)}; after the change {_sentence(after)}")
            raise
        except NotLeader:
            say(ONLY_THE_LEADER)
            raise
        except OutcomeUnknown:
            if not await _joined(client, farm, member_id):
                raise
            return figures, (None, None)

    unmet = "the change is not known to be committed; see `garlicfarm member list`"
    figures, (index, term) = ask(options, make, awaited="the committed change", unmet=unmet)
    before, after = figures
    body = {"index": index, "term": term, "before": before, "after": after}
    print_object(options.output, "garlicfarm.member-change/1", body, rows=figures)


async def persistently(request: _Request, client: AdminClient, farm: str) -> tuple[int, int]:
    """Make a change of the farm, and again while the reason for its refusal passes by itself, as a hand-over
    does. Nodes wait for that too, so a removal that was noted in the log is not noted again."""
    import trio

    from garlicfarm.errors import ProposalDropped

    deadline = trio.current_time() + PATIENCE_S
    while True:
        try:
            return await request(client, farm)
        except ProposalDropped as error:
            if error.reason not in _PASSING or trio.current_time() > deadline:
                raise
        await trio.sleep(RETRY_S)


async def _joined(client: AdminClient, farm: str, member_id: int) -> bool:
    """Wait for a server that is catching up; whether it is a member then."""
    import trio

    while True:
        body = await client.members(farm)
        if any(row["id"] == member_id for row in body["members"]):
            return True
        joining = body["joining"]
        if joining is None or joining["id"] != member_id:
            return False
        say(printable(f"catching up: {joining['match']} of {joining['last_index']} entries"))
        await trio.sleep(CATCH_UP_POLL_S)


def _figures(members: Sequence[dict[str, Any]]) -> dict[str, int]:
    majority = len(members) // 2 + 1
    reachable = sum(row["role"] not in ("unreachable", "unknown") for row in members)
    can_lose = max(0, reachable - majority)
    return {"members": len(members), "majority": majority, "reachable": reachable, "can_lose": can_lose}


def _sentence(figures: dict[str, int]) -> str:
    return f"{figures['reachable']} of {figures['members']} members reachable, {figures['majority']} needed"
