"""Checks of what a query continues from and writes to: paths before Spark starts, URIs after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.directory import Directory, check_directory, is_uri, location, open_directory
from garlicfarm_plugin_spark.job import Job
from garlicfarm_plugin_spark.offsets import decode_offset
from garlicfarm_plugin_spark.stored_state import is_readable

_PARTITIONS = "spark.sql.shuffle.partitions"
_SINK = ".sink"
"""The file in a checkpoint that names the sink of its query."""


def check_places(job: Job, farms: Mapping[str, str], settings: Mapping[str, str], spark: Any = None) -> None:
    """Check the directories of ``job``: the paths among them, or with a session ``spark`` the URIs.

    ``farms``: the id of each farm, by name. Raises `ConfigError`, or `UnreachableError`: a file system's
    server does not answer.
    """

    def due(where: str) -> bool:
        return is_uri(where) == (spark is not None)

    if is_uri(job.checkpoint) and not is_readable(job.checkpoint):
        raise ConfigError(
            [
                f"--checkpoint: Spark cannot read back the state at {job.checkpoint}, as its name has"
                " characters that a URI escapes: name another directory"
            ]
        )
    if due(job.checkpoint):
        checkpoint = open_directory(job.checkpoint, spark)
        check_checkpoint(checkpoint, farms, settings, every=not job.farms)
        checkpoint.check_writable("--checkpoint")
        _check_sink(checkpoint, job.sink)
    kind, _, where = job.sink.partition(":")
    if kind == "parquet" and due(where):
        sink = open_directory(where, spark)
        sink.check_writable("--sink")
        check_directory(sink, job.rows)


def _check_sink(checkpoint: Directory, sink: str) -> None:
    """Check that a checkpoint with batches is that of this sink, and note the sink in one without: what
    another sink got would be in neither history."""
    kind, _, where = sink.partition(":")
    wanted = f"{kind}:{location(where)}" if where else kind
    if newest_batch(checkpoint, "offsets") is None:
        checkpoint.add(_SINK, f"{wanted}\n".encode(), replace=True)
    elif _SINK in checkpoint.names("."):
        known = checkpoint.read(_SINK).decode(errors="replace").strip()
        if known != wanted:
            raise ConfigError(
                [
                    f"the checkpoint {checkpoint.name} is that of --sink {known}, and another sink would miss"
                    " what that one has received: name another checkpoint; or, if that sink was moved, delete"
                    f" {checkpoint.name}/{_SINK}"
                ]
            )


def check_checkpoint(
    checkpoint: Directory,
    farms: Mapping[str, str],
    settings: Mapping[str, str],
    *,
    every: bool = False,
) -> None:
    """Check that a query of these farms can continue from ``checkpoint``, with these Spark settings.

    ``every``: it takes all farms of its nodes, also those made anew.
    Raises `ConfigError`: it belongs to other farms, or has another number of shuffle partitions. Spark would
    silently keep the old number, because the layout of its state depends on it.
    """
    batch = newest_batch(checkpoint, "offsets")
    if batch is None:
        return
    newest = f"offsets/{batch}"
    try:
        # A version, the settings of the batch, and one offset per source.
        _, planned, *found = checkpoint.read(newest).decode().splitlines()
        conf: dict[str, str] = json.loads(planned)["conf"]
        positions = decode_offset(json.loads(found[0]))
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(
            [f"{checkpoint.name}/{newest} is not an offset of this query ({error}): name a new checkpoint"]
        ) from error
    ids = {position.farm_id for position in positions.values()}
    for farm, farm_id in farms.items():
        named = farm in positions and not every
        of = {positions[farm].farm_id} if named else ids
        if of and farm_id not in of and (named or not ids & set(farms.values())):
            raise ConfigError(
                [
                    f"the checkpoint {checkpoint.name} belongs to another farm (id {', '.join(sorted(of))})"
                    f" than the {farm} that these nodes have (id {farm_id}): name the checkpoint of this"
                    " farm, or a new one"
                ]
            )
    if conf.get(_PARTITIONS) != settings[_PARTITIONS]:
        raise ConfigError(
            [
                f"the checkpoint {checkpoint.name} has {conf.get(_PARTITIONS)} shuffle partitions, not"
                f" {settings[_PARTITIONS]}: set {_PARTITIONS} to that again, or name a new checkpoint"
            ]
        )


def newest_batch(checkpoint: Directory, log: str) -> int | None:
    """The newest batch in one of Spark's logs; every tenth file has a suffix."""
    stems = (Path(name).stem for name in checkpoint.names(log))
    return max((int(stem) for stem in stems if stem.isdecimal()), default=None)
