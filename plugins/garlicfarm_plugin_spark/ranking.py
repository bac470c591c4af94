"""The nodes' fold as a Structured Streaming query: rankings at the indexes where something changed.

The fold is `garlicfarm.publishing.fold.PublisherFold` itself. Its snapshot is Spark's state for
the farm, so it is in the checkpoint. Its index shows which entries a batch repeats after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec

from garlicfarm.errors import ConfigError, RemoteProtocolError
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.policy import Order
from garlicfarm.wire import ValueType, decode_configuration
from garlicfarm_plugin_spark.hide_traceback import hide_traceback, map_frames
from garlicfarm_plugin_spark.period import PERIODS_MS

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

STATE = 0  # as in `garlicfarm_plugin_spark.source`, which needs pyspark

COLUMNS = (
    "farm string, farm_id string, log_index bigint, farm_time_ms bigint, interval_ms bigint,"
    " changed array<string>, publisher bigint, holders array<bigint>, recent array<bigint>,"
    " `order` array<bigint>, scores map<bigint, bigint>, contents binary, skipped map<string, bigint>,"
    " ranking string, state_sha256 string"
)
"""The columns of `rankings`. ``farm_id``: 32 hex digits; ``interval_ms``: the farm's; ``changed``: which of
publisher, holders, recency, order and policy differ from the state before; ``holders``: members named and not
yet released; ``recent``: ids; ``order``: member ids, best first; ``scores``: by member id; ``contents``: the
Meta LeaseSet's; ``skipped``: number of entries, by reason; ``ranking``: the body of ``GET …/ranking`` at
``log_index``, byte for byte; ``state_sha256``: of the body of ``GET …/state`` there, 64 hex digits."""

Row = tuple[int, int, int, bytes]
ENTRY = ("farm", "farm_id", "log_index", "term", "value_type", "value")
"""The columns of an entry: those before a `Row`, and of it."""

Keep = Callable[[tuple[Any, ...]], object]
Follow = Callable[[str, tuple[Any, ...], Iterable[Any], Keep], Iterator[dict[str, Any]]]
"""See `fold_farms`."""

Rows = Literal["changes", "batches", "entries"]
"""Which indexes have a row: see `rankings`."""

_FRAME_ROWS = 256
"""A row takes some kB, more in large farms: a frame of them must not fill the memory."""


class Fold:
    """One farm's fold, starting from a snapshot at ``index`` (0: from nothing)."""

    def __init__(self, farm: str, index: int = 0, snapshot: bytes = b"") -> None:
        """Raises `StorageVersion` or `StorageDamaged`, as `PublisherFold.restore` does."""
        self.index = index
        self._farm = PublisherFold(farm)
        if index:
            self._farm.restore(snapshot)

    def apply(self, rows: Iterable[Row]) -> None:
        """Apply rows, in order; rows up to ``index`` are skipped as already applied.

        Raises `ConfigError` if they begin neither at index 1 nor with a state, and `RemoteProtocolError` if a
        later index is missing: the feed has no gaps.
        """
        for row in rows:
            self._apply(*row)

    def rankings(self, rows: Iterable[Row], kind: Rows) -> Iterator[dict[str, Any]]:
        """Apply rows as `apply` does, and return the rows of `COLUMNS`, without ``farm_id``, that ``kind``
        asks for (see `rankings`), each as soon as its entry is applied."""
        return (self.row(differs) for differs in self.changes(rows, kind))

    def changes(self, rows: Iterable[Row], kind: Rows) -> Iterator[list[str]]:
        """The same, but of each row only ``changed``: the fold is then at its index."""
        first, before = self.index, _key(self._farm)
        if kind == "batches":
            self.apply(rows)
            if self.index > first:
                yield _changed(before, _key(self._farm))
            return
        for row in rows:
            is_state, is_first = row[2] == STATE, not self.index
            if not self._apply(*row):
                continue
            after = _key(self._farm, before)
            differs = _changed(before, after)
            if kind == "entries" or differs or is_first or is_state or _is_later_hour(before, after):
                yield differs
            before = after

    def snapshot(self) -> bytes:
        """The bytes of the node's ``GET …/state`` at ``index``."""
        return self._farm.snapshot()

    def row(self, differs: Sequence[str] = ()) -> dict[str, Any]:
        """The row of `COLUMNS` at ``index``, without ``farm_id``. ``differs``: its ``changed``."""
        farm = self._farm
        return {
            **self.short_row(),
            "changed": [*differs],
            "contents": farm.contents(),
            "skipped": dict(farm.skipped),
            "ranking": msgspec.json.encode({"index": self.index, **farm.ranking()}).decode(),
            "state_sha256": sha256(farm.snapshot()).hexdigest(),
        }

    def short_row(self) -> dict[str, Any]:
        """What a history needs of `row`, at a hundredth of its cost in a large farm."""
        farm = self._farm
        return {
            "farm": farm.farm,
            "log_index": self.index,
            "farm_time_ms": farm.farm_time_ms,
            "interval_ms": farm.interval_ms,
            "publisher": farm.publisher,
            "holders": [*farm.holders],
            "recent": farm.recent(),
            "order": farm.order(),
            "scores": farm.scores(),
        }

    def _apply(self, index: int, term: int, kind: int, value: bytes) -> bool:
        """Whether it was not applied before."""
        if index <= self.index:
            return False
        if kind == STATE:
            self._farm.restore(value)
        elif index != self.index + 1:
            if not self.index:
                raise ConfigError(
                    [
                        f"the entries of {self._farm.farm} begin at index {index}, behind others that the"
                        " ranking needs: read them with startingIndex=state"
                    ]
                )
            raise RemoteProtocolError(f"index {index} follows {self.index}", "rows of a batch")
        elif kind == ValueType.CONFIGURATION:
            self._farm.configure(index, decode_configuration(value))
        else:
            self._farm.apply(index, term, value)
        self.index = index
        return True


class _Key(NamedTuple):
    """The state of a farm, as far as a change of it makes a row."""

    publisher: int | None
    holders: tuple[int, ...]
    """members named and not yet released, ascending"""
    recent: list[int]
    """current members that are recent, ascending"""
    order: list[int]
    """all current members, best first"""
    orders: Mapping[str, Order]
    """the administrators' orders in force: each that changes the policy changes them, as its index is new"""
    farm_time_ms: int


_NAMES = ("publisher", "holders", "recency", "order", "policy")


def _key(farm: PublisherFold, before: _Key | None = None) -> _Key:
    """Of the state of ``farm`` now. ``before``: the key before the last entry, for speed."""
    orders: Mapping[str, Order] = farm.policy.orders
    # The fold changes the mapping in place. Most entries do not.
    kept = before.orders if before is not None and before.orders == orders else dict(orders)
    return _Key(farm.publisher, farm.holders, farm.recent(), farm.order(), kept, farm.farm_time_ms)


def _changed(before: _Key, after: _Key) -> list[str]:
    """Which of publisher, holders, recency, order and policy differ."""
    if before[:5] == after[:5]:
        return []
    return [name for name, old, new in zip(_NAMES, before, after, strict=False) if old != new]


def _is_later_hour(before: _Key, after: _Key) -> bool:
    """Whether farm time moved on to a later hour. That makes a row too, so that a history has no holes where
    nothing changes for days."""
    return after.farm_time_ms // PERIODS_MS["hour"] > before.farm_time_ms // PERIODS_MS["hour"]


def rankings(entries: DataFrame, rows: Rows = "changes") -> DataFrame:
    """The rankings of all farms in a stream of ``format("garlicfarm")`` with ``startingIndex=state``, or in a
    batch of it: the same rows.

    :param rows: which indexes have a row, see `COLUMNS`:

        * ``changes``: each entry that changes publisher, holders, recency, order or policy; the first of each
          hour of farm time; the first of the fold, and each state that stands for deleted entries. These rows
          depend on the log alone.
        * ``batches``: the last one of each batch. ``changed`` says what differs from the batch before. Not of
          a stream: the last one of each farm.
        * ``entries``: each.
    :raises ConfigError: ``rows`` is another word.

    The output mode is ``append``. Exactly once by index: a batch without new entries gives no row.
    """
    if rows not in get_args(Rows):
        raise ConfigError([f"rows is {rows!r}, not {', '.join(get_args(Rows))}"])
    return fold_farms(entries, ENTRY, partial(rank, rows), COLUMNS, "log_index bigint, snapshot binary")


def rank(
    kind: Rows, farm: str, state: tuple[Any, ...], entries: Iterable[Row], keep: Keep
) -> Iterator[dict[str, Any]]:
    fold = Fold(farm, *state)
    yield from fold.rankings(entries, kind)
    keep((fold.index, fold.snapshot()))


def fold_farms(rows: DataFrame, names: Sequence[str], follow: Follow, columns: str, state: str) -> DataFrame:
    """What ``follow`` makes of each farm's rows: of a table at once, of a stream batch by batch.

    :param names: the columns that it needs: ``farm``, ``farm_id``, ``log_index``, and others.
    :param follow: gets a farm's name, its state (empty: it has none yet), and the columns behind ``farm_id``
        of its rows, by index; yields rows of ``columns`` without ``farm`` and ``farm_id``, and gives
        the state for the next batch to its last argument.
    :param state: the columns of the state.
    """
    rows = rows.select(*names)
    if not rows.isStreaming:
        ordered = rows.repartition("farm_id").sortWithinPartitions("farm_id", "log_index")
        return map_frames(ordered, partial(fold_table, follow), columns)
    return rows.groupBy("farm_id").applyInPandasWithState(
        partial(fold_batch, follow), columns, state, "append", "NoTimeout"
    )


def fold_batch(
    follow: Follow, group: tuple[str], frames: Iterator[pandas.DataFrame], state: GroupState
) -> Iterator[pandas.DataFrame]:
    """One farm's part of one batch of a stream, in any order."""
    with hide_traceback():
        rows = sorted(chain.from_iterable(map(_rows, frames)), key=itemgetter(2))
        before = state.get if state.exists else ()
        farm = rows[0][0]
        found = follow(farm, before, (row[2:] for row in rows), state.update)
        yield from _frames(farm, group[0], found)


def fold_table(follow: Follow, frames: Iterable[pandas.DataFrame]) -> Iterator[pandas.DataFrame]:
    """Of a partition of a table, which has all rows of its farms, by farm and index."""
    rows = chain.from_iterable(map(_rows, frames))
    for (farm, farm_id), of_farm in groupby(rows, itemgetter(0, 1)):
        yield from _frames(farm, farm_id, follow(farm, (), (row[2:] for row in of_farm), lambda _: None))


def _rows(frame: pandas.DataFrame) -> Iterator[tuple[Any, ...]]:
    return zip(*(frame[name].tolist() for name in frame), strict=True)


def _frames(farm: str, farm_id: str, found: Iterator[dict[str, Any]]) -> Iterator[pandas.DataFrame]:
    import pandas

    while some := [{"farm": farm, "farm_id": farm_id, **row} for row in islice(found, _FRAME_ROWS)]:
        yield pandas.DataFrame(some, dtype=object)  # else null makes a column of floats
