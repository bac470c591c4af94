"""Checks of the directories that a query writes to, before Spark takes half a minute to start."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryFile

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.offsets import decode_offset

__all__ = ["check_checkpoint", "check_writable"]

_PARTITIONS = "spark.sql.shuffle.partitions"


def check_checkpoint(directory: Path, farm: str, farm_id: str, settings: dict[str, str]) -> None:
    """Check that a query of this farm can continue from ``directory``, with these Spark settings.

    Raises `ConfigError`: it belongs to another farm, or has another number of shuffle partitions. Spark
    would silently keep the old number, because the layout of its state depends on it.
    """
    batch = _newest(directory / "offsets")
    if batch is None:
        return
    newest = directory / "offsets" / str(batch)
    try:
        # A version, the settings of the batch, and one offset per source.
        _, planned, *found = newest.read_text(encoding="utf-8").splitlines()
        conf: dict[str, str] = json.loads(planned)["conf"]
        positions = decode_offset(json.loads(found[0]), farm)
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(
            [f"{newest} is not an offset of this query ({error}): name a new checkpoint"]
        ) from error
    ids = {position.farm_id for position in positions.values()}
    if ids - {farm_id}:
        raise ConfigError(
            [
                f"the checkpoint {directory} belongs to another farm (id {', '.join(sorted(ids))}) than the"
                f" {farm} that these nodes have (id {farm_id}): name the checkpoint of this farm, or a new"
                " one"
            ]
        )
    if conf.get(_PARTITIONS) != settings[_PARTITIONS]:
        raise ConfigError(
            [
                f"the checkpoint {directory} has {conf.get(_PARTITIONS)} shuffle partitions, not"
                f" {settings[_PARTITIONS]}: set {_PARTITIONS} to that again, or name a new checkpoint"
            ]
        )


def _newest(log: Path) -> int | None:
    """The newest batch in one of Spark's logs; every tenth file has a suffix."""
    return max((int(path.stem) for path in log.glob("*") if path.stem.isdecimal()), default=None)


def check_writable(directory: Path, option: str) -> None:
    """Create ``directory``, which ``option`` names, if it does not exist. Raises `ConfigError`: it is not
    writable, or the disk is full."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=directory) as file:
            file.write(b"1")
    except OSError as error:
        raise ConfigError(
            [f"{option}: {directory} cannot be written to ({error.strerror}): name another directory"]
        ) from error
