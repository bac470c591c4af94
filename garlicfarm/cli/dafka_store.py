"""`garlicfarm dafka store`: keeps the records of all producers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.dafka import mesh_options, plugin, run_role
from garlicfarm.cli.durations import DURATION_RULE, parse_ms
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.say import put

__all__ = ["store"]


@click.command(cls=Command, examples=["garlicfarm dafka store records --max-age 30d"])
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Store only this topic; repeatable.")
@click.option(
    "--max-age",
    metavar="DURATION",
    help="Delete records this long after they were saved, as 30d. Default: never.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Delete the oldest records when all take more than N bytes. Default: never.",
)
@mesh_options
@shared_options("verbosity")
def store(
    options: Options,
    directory: Path,
    topics: tuple[str, ...],
    max_age: str | None,
    max_bytes: int | None,
    mesh: Mapping[str, Any],
) -> None:
    """Store records in DIRECTORY and serve them to consumers, until SIGTERM or Ctrl-C.

    A record is acknowledged once it is on disk, synced. Prints its address once it runs.
    """
    age_ms = None if max_age is None else parse_ms(max_age)
    if max_age is not None and not age_ms:
        raise click.UsageError(f"--max-age must be {DURATION_RULE}, not {max_age!r}")
    module = plugin("store")
    retention = module.Retention(None if age_ms is None else age_ms / 1000, max_bytes)
    config = plugin("config").MeshConfig(**mesh)
    run_role("info", options, _main, config, directory, topics or None, retention)


async def _main(config: Any, directory: Path, topics: tuple[str, ...] | None, retention: Any) -> None:
    import trio

    from garlicfarm.cli.signals import stopped_by_signals

    async with (
        stopped_by_signals(),
        plugin("mesh").open_mesh(config) as mesh,
        plugin("store").run_store(mesh, directory, topics=topics, retention=retention),
    ):
        put(str(mesh.endpoint))
        await trio.sleep_forever()
