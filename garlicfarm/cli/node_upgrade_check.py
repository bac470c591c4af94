"""`garlicfarm node upgrade-check`: which node is upgraded next, and whether it may be stopped now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from garlicfarm._version import __version__
from garlicfarm.cli.command_group import Command
from garlicfarm.cli.exits import Exit
from garlicfarm.cli.node_access import ask
from garlicfarm.cli.options import Options, print_object, print_rows, shared_options
from garlicfarm.cli.say import put
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from garlicfarm.cli.node_upgrade_order import Decision, FarmReport
    from garlicfarm.client.admin import AdminClient


@click.command(
    "upgrade-check",
    cls=Command,
    examples=["garlicfarm node upgrade-check", "garlicfarm node upgrade-check --to 0.2.0"],
)
@click.option(
    "--to", "version", metavar="VERSION", default=__version__, help="The version.  [default: of this command]"
)
@shared_options()
def upgrade_check(options: Options, version: str) -> Exit:
    """Show what each member of the node's farms runs, which one to upgrade to VERSION next, and whether it is
    safe to stop it now (exit code 0; 6: not now, and why).

    Followers come first, then the publisher, the leader last. A member is safe to stop while the farm can
    lose one, none is joining, in trouble or more than 1,000 entries behind, and nothing else is wrong. Only
    the leader knows that of all members: run this on its machine, or give the admin URLs of all nodes with
    --node. Needs the role admin.
    """
    from garlicfarm.cli.node_upgrade_order import decide

    decision = decide(_reports(options), version)
    is_safe = not decision.holds
    if options.output == "table":
        shown = [
            {key: value for key, value in row.items() if key != "publisher"}
            | {
                "role": row["role"] + (", publisher" if row["publisher"] else ""),
                "levels": row["levels"] and " to ".join(map(str, dict.fromkeys(row["levels"]))),
            }
            for row in decision.rows
        ]
        print_rows("table", "", shown)
        for line in _lines(decision, version):
            put(printable(line))
    else:
        body = {
            "version": version,
            "next": decision.next,
            "safe": is_safe,
            "holds": decision.holds,
            "notes": decision.notes,
            "members": decision.rows,
        }
        print_object(options.output, "garlicfarm.node-upgrade-check/1", body, rows=decision.rows)
    return Exit.OK if is_safe else Exit.DEGRADED


def _lines(decision: Decision, version: str) -> Iterator[str]:
    if decision.next is not None:
        yield f"next: member {decision.next}"
        if not decision.holds:
            does = f"stop node {decision.next}, install garlicfarm {version} there, start it"
            yield f"safe: {does}, and run this again"
    elif not decision.holds:
        yield f"nothing to do: all members run garlicfarm {version}"
    for hold in decision.holds:
        yield f"not now: {hold}"
    yield from decision.notes


def _reports(options: Options) -> list[FarmReport]:
    """Each farm as its leader sees it, if that is among the nodes asked and answers; else as the first one
    does."""
    from garlicfarm.errors import UnreachableError

    found: dict[str, FarmReport] = {}
    failures: list[UnreachableError] = []
    alone: list[tuple[str, ...]] = [(url,) for url in options.node]
    for nodes in alone or [()]:
        # All farms of a node are one question: none has to be named.
        asked = replace(options, node=nodes, farm="")
        try:
            reports = ask(asked, lambda client, _: _of_node(client, options.farm))
        except UnreachableError as error:
            failures.append(error)
            continue
        for report in reports:
            if report.name not in found or report.status["leader"] == report.status["node"]:
                found[report.name] = report
    if not found:
        if failures:
            raise failures[0]
        raise click.UsageError("this node has no such farm" if options.farm else "this node has no farm")
    return list(found.values())


async def _of_node(client: AdminClient, wanted: str | None) -> list[FarmReport]:
    from garlicfarm.cli.node_upgrade_order import FarmReport

    names = [str(row["name"]) for row in await client.farms() if wanted in (None, row["name"])]
    return [FarmReport(await client.status(name), (await client.members(name))["joining"]) for name in names]
