"""What can be said of the directories that a query writes to, before Spark takes half a minute to start."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from garlicfarm.errors import ConfigError

__all__ = ["check_checkpoint", "check_writable"]

_PARTITIONS = "spark.sql.shuffle.partitions"


def check_checkpoint(directory: Path, farm: str, farm_id: str, settings: dict[str, str]) -> None:
    """Whether a query of this farm can go on from ``directory``, with these Spark settings.

    Raises `ConfigError`: it is of another farm, or of another number of shuffle partitions. Spark would
    keep the old number without a word, and its state is laid out by it.
    """
    offsets = directory / "offsets"
    batches = [int(path.name) for path in offsets.glob("*") if path.name.isdecimal()]
    if not batches:
        return
    newest = offsets / str(max(batches))
    try:
        # A version, what the batch was planned with, and one offset per source.
        _, planned, *found = newest.read_text(encoding="utf-8").splitlines()
        conf: dict[str, str] = json.loads(planned)["conf"]
        offset: dict[str, Any] = json.loads(found[0])
        of = offset.get("farm_id")
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(
            [f"{newest} is no offset of this query ({error}): name a new checkpoint"]
        ) from error
    if of != farm_id:
        raise ConfigError(
            [
                f"the checkpoint {directory} is of another farm (id {of}) than the {farm} that these nodes"
                f" have (id {farm_id}): name the checkpoint of this farm, or a new one"
            ]
        )
    if conf.get(_PARTITIONS) != settings[_PARTITIONS]:
        raise ConfigError(
            [
                f"the checkpoint {directory} is of {conf.get(_PARTITIONS)} shuffle partitions, not"
                f" {settings[_PARTITIONS]}: set {_PARTITIONS} to that again, or name a new checkpoint"
            ]
        )


def check_writable(directory: Path, option: str) -> None:
    """Make ``directory``, which ``option`` names, if it is not there. Raises `ConfigError`: it is not
    ours to write to, or the disk is full."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=directory) as file:
            file.write(b"1")
    except OSError as error:
        raise ConfigError(
            [f"{option}: {directory} cannot be written to ({error.strerror}): name another directory"]
        ) from error
