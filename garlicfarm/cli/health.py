"""`garlicfarm health`: the state of a farm as one word and an exit code, for monitors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.admin.health import feed_problems, judge, level_word, since, streams_text
from garlicfarm.cli.command_group import Command
from garlicfarm.cli.exits import Exit
from garlicfarm.cli.node_access import ask
from garlicfarm.cli.options import Options, print_object, shared_options
from garlicfarm.cli.status_table import key_problems, spare_text

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient

_CODES = {"healthy": Exit.OK, "degraded": Exit.DEGRADED, "no-quorum": Exit.NO_QUORUM}


@click.command(cls=Command, examples=["garlicfarm health", "garlicfarm health --local"])
@click.option(
    "--local", is_flag=True, help="Check only that this node serves and that all its farms know a leader."
)
@shared_options()
def health(options: Options, local: bool) -> Exit:
    """Print the state of a farm: healthy (exit code 0), degraded (6), or no-quorum (5); 3: no node answers.

    Degraded: the farm can lose fewer members than its size allows, or the queried node's disk does not
    answer, or no member publishes although one is configured to, or what is published has expired, or a
    stranger does not find what the queried node publishes, or keys expire within 14 days, or a member's clock
    is wrong by more than a minute, or the queried node's differs from its router's. A member that cannot keep
    up counts as lost; the leader says why. A failed or blocked feed of the queried node is named, and so is a
    level that the farm could be raised to; neither changes the code. With --local: 5 if a farm of this node
    knows no leader, 6 if its disk does not answer, else 0.
    """

    async def of_farm(client: AdminClient, farm: str) -> Exit:
        body = await client.status(farm)
        leader, spare, verdict = body["leader"], body["fault_tolerance"], judge(body)
        found = {"farm": farm, "health": verdict, "leader": leader, "fault_tolerance": spare}
        found["disk_hangs_s"] = hangs_s = body.get("disk_hangs_s")
        found["key_problems"] = key_problems(body)
        found["problems"] = told = list(body.get("problems") or ())
        farms = "".join(f"; {problem}" for problem in told)
        found["feed_problems"] = blocked = feed_problems(body)
        feeds = "".join(f"; feed {name} {problem}" for name, problem in blocked.items())
        stuck = [row for row in body["members"] if row.get("trouble")]
        found["troubles"] = {row["id"]: row["trouble"] for row in stuck}
        found["troubles_since_ms"] = {row["id"]: row.get("trouble_since_ms") for row in stuck}
        troubles = "".join(
            f"; member {row['id']} does not keep up{since(row)}: {row['trouble']}" for row in stuck
        )
        publishers = body.get("publishers") or ()
        found["publishers"] = [
            {key: row.get(key) for key in ("plugin", "streams", "encryption", "refused", "targets")}
            for row in publishers
        ]
        streams = "".join(
            f"; publisher {row['plugin']} of this node: {text}"
            for row in publishers
            if (text := streams_text(row))
        )
        found["level"] = body.get("level")
        level = f"; {word}" if (word := level_word(body)) else ""
        head = f"farm {farm}: {verdict}, leader {leader or 'none'}, {spare_text(body)}"
        text = f"{head}{_disk(hangs_s)}{farms}{troubles}{feeds}{streams}{level}"
        return _print(options, "garlicfarm.health/1", found, text, _CODES[verdict])

    async def of_node(client: AdminClient, _: str) -> Exit:
        rows = {str(row["name"]): row for row in await client.farms()}
        if options.farm is not None:
            rows = {name: row for name, row in rows.items() if name == options.farm}
        if not rows:
            raise click.UsageError("this node has no such farm" if options.farm else "this node has no farm")
        leaders = {name: row["leader"] for name, row in rows.items()}
        hanging = {name: row["disk_hangs_s"] for name, row in rows.items() if row.get("disk_hangs_s")}
        text = ", ".join(
            f"farm {name}: leader {leader or 'none'}{_disk(hanging.get(name))}"
            for name, leader in leaders.items()
        )
        code = Exit.NO_QUORUM if not all(leaders.values()) else Exit.DEGRADED if hanging else Exit.OK
        found = {"leaders": leaders, "disk_hangs_s": hanging}
        return _print(options, "garlicfarm.health-local/1", found, text, code)

    # All farms of a node are one question: none has to be named.
    return ask(replace(options, farm=""), of_node) if local else ask(options, of_farm)


def _disk(hangs_s: float | None) -> str:
    return "" if hangs_s is None else f", the disk of this node has not answered for {hangs_s:.0f} s"


def _print(options: Options, schema: str, found: dict[str, Any], text: str, code: Exit) -> Exit:
    print_object(options.output, schema, {"schema": schema, **found}, lines=[text])
    return code
