"""The nodes' fold as a Structured Streaming query: for each batch and farm, the ranking at its last index.

The fold is `garlicfarm.publishing.application.PublisherApplication` itself. Its snapshot is Spark's state for
the farm, so it is in the checkpoint. Its index shows which entries a batch repeats after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.publishing.application import PublisherApplication
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import ValueType

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

__all__ = ["COLUMNS", "Fold", "Row", "rankings"]

STATE = 0  # as in `garlicfarm_plugin_spark.source`, which needs pyspark

COLUMNS = (
    "farm string, farm_id string, log_index bigint, publisher bigint, `order` array<bigint>,"
    " scores map<bigint, bigint>, contents binary, skipped map<string, bigint>, ranking string,"
    " state_sha256 string"
)
"""The columns of `rankings`. ``farm_id``: 32 hex digits; ``order``: member ids, best first; ``scores``: by
member id; ``contents``: the Meta LeaseSet's; ``skipped``: number of entries, by reason; ``ranking``: the body
of ``GET …/ranking`` at ``log_index``, byte for byte; ``state_sha256``: of the body of ``GET …/state`` there,
64 hex digits."""

Row = tuple[int, int, int, bytes]
"""log_index, term, value_type, value"""


class Fold:
    """One farm's fold, starting from a snapshot at ``index`` (0: from nothing)."""

    def __init__(self, farm: str, index: int = 0, snapshot: bytes = b"") -> None:
        """Raises `StorageVersion` or `StorageDamaged`, as `PublisherApplication.restore` does."""
        self.index = index
        self._farm = PublisherApplication(farm)
        if index:
            self._farm.restore(snapshot)

    def apply(self, rows: Iterable[Row]) -> None:
        """Apply rows, in order; rows up to ``index`` are skipped as already applied.

        Raises `RemoteProtocolError` if an index is missing: the feed has no gaps.
        """
        for index, term, kind, value in rows:
            if index <= self.index:
                continue
            if kind == STATE:
                self._farm.restore(value)
            elif index != self.index + 1:
                raise RemoteProtocolError(f"index {index} follows {self.index}", "rows of a batch")
            elif kind == ValueType.CONFIGURATION:
                self._farm.configure(index, decode_configuration(value))
            else:
                self._farm.apply(index, term, value)
            self.index = index

    def snapshot(self) -> bytes:
        """The bytes of the node's ``GET …/state`` at ``index``."""
        return self._farm.snapshot()

    def row(self) -> dict[str, Any]:
        """The row of `COLUMNS` at ``index``, without ``farm_id``."""
        farm = self._farm
        ranking = farm.ranking()
        members: Any = ranking["members"]
        return {
            "farm": farm.farm,
            "log_index": self.index,
            "publisher": farm.publisher,
            "order": [member["id"] for member in members],
            "scores": farm.scores(),
            "contents": farm.contents(),
            "skipped": dict(farm.skipped),
            "ranking": msgspec.json.encode({"index": self.index, **ranking}).decode(),
            "state_sha256": sha256(farm.snapshot()).hexdigest(),
        }


def rankings(entries: DataFrame) -> DataFrame:
    """The rankings of all farms in a stream of ``format("garlicfarm")`` with ``startingIndex=state``.

    One row per batch and farm, see `COLUMNS`; the output mode is ``append``. Exactly once by
    index: a batch without new entries gives no row.
    """
    return entries.groupBy("farm_id").applyInPandasWithState(
        fold_batch, COLUMNS, "log_index bigint, snapshot binary", "append", "NoTimeout"
    )


def fold_batch(
    key: tuple[str], frames: Iterator[pandas.DataFrame], state: GroupState
) -> Iterator[pandas.DataFrame]:
    """One farm's part of one batch. Spark promises no order, so the rows are sorted first."""
    import pandas

    rows: list[Row] = []
    farm = ""
    for frame in frames:
        farm = frame["farm"].iat[0]
        columns = (frame[name].tolist() for name in ("log_index", "term", "value_type", "value"))
        rows.extend(zip(*columns, strict=True))
    rows.sort(key=lambda row: row[:1])
    fold = Fold(farm, *(state.get if state.exists else ()))
    before = fold.index
    fold.apply(rows)
    if fold.index > before:
        state.update((fold.index, fold.snapshot()))
        yield pandas.DataFrame([{**fold.row(), "farm_id": key[0]}])
