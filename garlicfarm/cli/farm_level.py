"""`garlicfarm farm level`: what the members of a farm may write, and how much more they could (D26)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.node_access import ONLY_THE_LEADER, ask
from garlicfarm.cli.options import Options, print_object, print_rows, shared_options
from garlicfarm.cli.say import put, say
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient

_OLD_NODE: dict[str, Any] = {"in_force": 0, "highest": 0, "brings": {}, "hindered_by": []}
"""What a node says of levels that knows none, garlicfarm 0.2."""


@click.group(cls=CommandGroup)
def level() -> None:
    """The level of a farm: which programs its members may run, and what these write."""


@level.command(examples=["garlicfarm farm level show"])
@shared_options()
def show(options: Options) -> None:
    """Show the level in force, the program of each member and the levels that it can, and whether the level
    can be raised: what a higher one brings, and which members hinder it."""
    from garlicfarm.admin.health import level_word

    body = ask(options, lambda client, farm: client.status(farm))
    levels = body.get("level") or _OLD_NODE
    rows = [_row(row) for row in body["members"]]
    if options.output != "table":
        found = {"farm": body["farm"], "node": body["node"], "leader": body["leader"], **levels}
        print_object(options.output, "garlicfarm.farm-level/1", {**found, "members": rows}, rows=rows)
        return
    if levels["hindered_by"]:
        word = f"level {levels['in_force']}; level {levels['highest']} cannot be raised now"
    else:
        highest = f"level {levels['in_force']}, the highest that the program of node {body['node']} can"
        word = level_word(body) or highest
    put(printable(f"farm {body['farm']}: {word}"))
    print_rows("table", "", [{**row, "levels": _range(row["levels"])} for row in rows])
    for sentence in levels["hindered_by"]:
        put(printable(sentence))


@level.command("raise", examples=["garlicfarm farm level raise", "garlicfarm farm level raise 1 --yes"])
@click.argument("wanted", metavar="[LEVEL]", type=click.IntRange(1, 2**31 - 1), required=False)
@click.option("--yes", is_flag=True, help="Do not ask whether that is really meant.")
@shared_options()
def raise_(options: Options, wanted: int | None, yes: bool) -> None:
    """Raise the level of the farm to LEVEL, or to the highest that the leader's program can. Only the leader
    does this, and only while all members are connected to it and can that level.

    There is no way back: programs that cannot this level refuse the members' stores from then on. At a
    terminal the command asks first.
    """
    from garlicfarm.errors import LocalProtocolError, NotLeader, ProposalDropped
    from garlicfarm.refusals import Refusal

    body = ask(options, lambda client, farm: client.status(farm))
    farm, levels = body["farm"], body.get("level")
    if levels is None:
        raise LocalProtocolError(f"node {body['node']} runs a program that knows no levels: upgrade it first")
    now = int(levels["in_force"])
    to = _highest_of_leader(body) if wanted is None else wanted
    if to < now and wanted is not None:
        raise LocalProtocolError(f"the farm {farm} is at level {now}, and levels only rise")
    if to <= now < levels["highest"] and wanted is None:  # the leader itself cannot
        raise LocalProtocolError(f"the farm {farm} cannot be raised now: {'; '.join(levels['hindered_by'])}")
    if to > now and not yes:
        _confirm(farm, levels, to)

    async def make(client: AdminClient, farm: str) -> tuple[int, int] | None:
        from garlicfarm.cli.member import persistently

        try:
            return await persistently(lambda client, farm: client.raise_level(farm, to), client, farm)
        except NotLeader:
            say(ONLY_THE_LEADER)
            raise
        except ProposalDropped as error:
            if error.reason is not Refusal.LEVEL_REACHED:
                raise
            return None  # another administrator was faster

    unmet = "the level is not known to be raised; see `garlicfarm farm level show`"
    done = ask(options, make, awaited="the raised level", unmet=unmet) if to > now else None
    level = max(to, now)
    if done is None:
        say(printable(f"the farm {farm} is at level {level} already"))
    index, term = done or (None, None)
    row = {"farm": farm, "before": now, "level": level, "index": index, "term": term}
    print_object(options.output, "garlicfarm.farm-level-raise/1", row)


def _confirm(farm: str, levels: dict[str, Any], to: int) -> None:
    """Ask whether the level is to be raised. Raises `click.Abort`: no; `click.UsageError`: there is nobody
    to ask."""
    from garlicfarm.admin.health import brings

    gain = brings(levels, to)
    say(
        printable(
            f"the farm {farm} is at level {levels['in_force']}; level {to}"
            + (f" brings: {gain}" if gain else " is unknown to the node that answered")
        )
    )
    say(f"there is no way back: programs that cannot level {to} refuse the members' stores from then on")
    if not sys.stdin.isatty():
        raise click.UsageError("nothing was changed: use --yes if that is meant")
    click.confirm(f"Raise it to level {to}?", abort=True, err=True)


def _highest_of_leader(body: dict[str, Any]) -> int:
    """The highest level that the leader's program can, as far as the node that answered knows."""
    for row in body["members"]:
        if row["id"] == body["leader"] and row.get("levels"):
            return int(row["levels"][1])
    return int(body["level"]["highest"])


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) for key in ("id", "role", "version", "revision", "levels")}


def _range(levels: list[int] | None) -> str | None:
    return None if levels is None else " to ".join(str(level) for level in dict.fromkeys(levels))
