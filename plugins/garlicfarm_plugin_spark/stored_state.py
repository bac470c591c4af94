"""The folds in a checkpoint, as Spark's state store has them: one for each farm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from garlicfarm.errors import ConfigError, StorageDamaged, StorageVersion
from garlicfarm.publishing.fold import PublisherFold

_ESCAPED = re.compile(r"""[\s%<>"{}|\\^`?#\[\]]""")
_KEY, _VALUE = {"farm_id"}, {"log_index", "snapshot"}  # those of `garlicfarm_plugin_spark.ranking.rankings`


@dataclass(frozen=True, slots=True)
class StoredFold:
    """The farm of this id (32 hex digits) up to ``index``, and the body of ``GET …/state`` there."""

    farm_id: str
    index: int
    snapshot: bytes


def stored_folds(spark: Any, checkpoint: str) -> list[StoredFold]:
    """All folds after the newest batch that is done; at least one must be.

    :param spark: a session. The call blocks, for seconds.
    :param checkpoint: a URI.
    :raises ConfigError: it is the checkpoint of another query.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from garlicfarm_plugin_spark.session import cause, unreachable

    rows = None
    try:
        with _readable(checkpoint) as uri:
            stored = spark.read.format("statestore").load(uri)
            key, value = (set(stored.select(f"{name}.*").columns) for name in ("key", "value.groupState"))
            if (key, value) == (_KEY, _VALUE):
                rows = stored.selectExpr("key.*", "value.groupState.*").collect()
    except (Py4JJavaError, PySparkException) as error:
        raise unreachable(error, f"the file system of {checkpoint}") or ConfigError(
            [
                f"the state in the checkpoint {checkpoint} cannot be read ({cause(error)}):"
                " name a new checkpoint"
            ]
        ) from error
    if rows is None:
        raise ConfigError(
            [
                f"the checkpoint {checkpoint} keeps its state by {', '.join(sorted(key))}, as another version"
                " of garlicfarm did: rank with that version, or name a new checkpoint"
            ]
        )
    return [StoredFold(row["farm_id"], row["log_index"], bytes(row["snapshot"])) for row in rows]


def is_readable(checkpoint: str) -> bool:
    """Whether Spark finds the state at this URI again: that of 4.3 looks for ``a b`` in ``a%20b``. For a
    directory of this machine `stored_folds` has a way around that."""
    return checkpoint.startswith("file:") or _ESCAPED.search(checkpoint) is None


@contextmanager
def _readable(checkpoint: str) -> Iterator[str]:
    """A URI under which Spark finds the state."""
    kind, _, path = checkpoint.partition(":")
    if _ESCAPED.search(checkpoint) is None or kind != "file":
        yield checkpoint
        return
    with TemporaryDirectory(prefix="garlicfarm-state-") as directory:
        link = Path(directory) / "checkpoint"
        link.symlink_to(path)
        yield f"file:{link}"


def check_state(spark: Any, checkpoint: str) -> None:
    """Check that this program can continue all folds in ``checkpoint``. Raises `ConfigError`, as
    `stored_folds` does, and for another version of the common algorithm."""
    import msgspec

    for fold in stored_folds(spark, checkpoint):
        try:
            farm = msgspec.json.decode(fold.snapshot)["farm"]
            PublisherFold(farm).restore(fold.snapshot)
        except StorageVersion as error:
            raise ConfigError(
                [
                    f"the checkpoint {checkpoint} is of another version of the rules ({error}): rank with the"
                    " version of garlicfarm that wrote it, or name a new checkpoint and a new directory for"
                    " --sink"
                ]
            ) from error
        except (StorageDamaged, msgspec.MsgspecError, LookupError, TypeError) as error:
            raise ConfigError(
                [f"the state in the checkpoint {checkpoint} is damaged ({error}): name a new checkpoint"]
            ) from error
