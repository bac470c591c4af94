"""`rank inspect`: how far a checkpoint of `rank` is, and what it says, while no `rank` runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.node_access import find_node
from garlicfarm.cli.options import Options, print_rows, shared_options
from garlicfarm.cli.rank import plugin
from garlicfarm.cli.rank_options import conf_option

_POLICY = ("interval_ms", "R", "margin", "lifetime_ms")
"""The part of the policy that a table shows."""


@click.command(cls=Command, examples=["garlicfarm rank inspect --checkpoint progress"])
@click.option(
    "--checkpoint", required=True, metavar="DIRECTORY|URI", help="The directory of `rank --checkpoint`."
)
@conf_option()
@shared_options("config", "node", "user", "tls", "output", "verbosity")
def inspect(options: Options, checkpoint: str, conf: tuple[tuple[str, str], ...]) -> None:
    """Show how far a checkpoint is: farm, index, publisher and policy, as of its newest finished batch.

    With --node or --config it asks the nodes by how many entries it lags. It changes nothing, and a `rank`
    may run beside it. Starts Spark, which takes half a minute.
    """
    import trio

    plugin("session").check_installed()
    nodes = find_node(options) if options.node or options.config else None
    with tempfile.TemporaryDirectory(prefix="garlicfarm-rank-", ignore_cleanup_errors=True) as directory:
        rows = trio.run(_inspect, checkpoint, Path(directory), dict(conf), nodes, options.verbosity)
    if options.output == "table":
        for row in rows:
            policy = row.pop("policy")
            row |= {name: policy[name] for name in _POLICY}
    print_rows(options.output, "garlicfarm.rank-inspect/1", rows)


async def _inspect(
    checkpoint: str, scratch: Path, conf: dict[str, str], nodes: Any, verbosity: int
) -> list[dict[str, Any]]:
    import trio

    from garlicfarm.cli.sign_of_life import sign_of_life
    from garlicfarm.cli.signals import ended_by_signals

    inspection = plugin("inspection")
    async with ended_by_signals(), sign_of_life("Spark", quiet=verbosity < 0):
        rows: list[dict[str, Any]] = await trio.to_thread.run_sync(
            inspection.inspect, checkpoint, scratch, conf, nodes, verbosity, abandon_on_cancel=True
        )
    return rows
