"""The data source ``garlicfarm``: committed entries of farms, by Raft index, as a stream or as a batch.

Options and columns: docs/reference/spark.md; `garlicfarm_plugin_spark.options` checks the options.

With ``startingIndex=state`` the rows of a farm are a complete input for a fold of its log. They begin at
index 1 or, if the log no longer begins there, with the application's state, in a row of ``value_type`` 0
whose ``log_index`` is the last index in that state. The plan of the batch holds the state itself, so the rows
are the same whichever node is asked later, and however often.

Spark runs these classes in processes of its own: `LogReader` plans all batches of a query in one process, and
each `Range` is read in a worker, on any machine.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from garlicfarm.errors import Compacted, ConfigError, FarmReplaced, GarlicFarmError, UnreachableError
from garlicfarm_plugin_spark.batches import MAX_VALUE_BYTES, Losses, next_positions, split
from garlicfarm_plugin_spark.hide_traceback import hide_traceback
from garlicfarm_plugin_spark.node_reader import FarmHead, close_readers, open_reader
from garlicfarm_plugin_spark.offsets import Position, decode_offset, encode_offset
from garlicfarm_plugin_spark.options import SourceOptions, read_options

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from garlicfarm.client.trust import NodeAccess
    from garlicfarm_plugin_spark.sink import RankingWriter

STATE = 0
"""``value_type`` of a row that holds the application's state."""
SCHEMA = "farm string, farm_id string, log_index bigint, term bigint, value_type int, value binary"

MAX_INDEX = 2**63 - 1
MAX_STATE_BYTES = 32 << 20  # that of 256 members with the largest statuses has 17 MB
"""The largest state that an offset holds: Spark passes offsets around at every batch."""
REPORT_S = 5.0
"""The shortest time between two reports of what a query has read."""

_log = logging.getLogger("garlicfarm.spark")


@dataclass
class Range(InputPartition):
    """``after`` < index ≤ ``upto`` of one farm, behind the ``state`` at ``after``, if any."""

    farm: str
    farm_id: str
    after: int
    upto: int
    state: bytes | None = None


class GarlicFarm(DataSource):
    """``format("garlicfarm")``, which `pyspark_garlicfarm` registers: the source, and the sink of
    `garlicfarm_plugin_spark.sink`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Spark makes one object for all commits of a query that it has started, and pickles it.
        self._fresh_run = secrets.token_hex(16)

    @classmethod
    def name(cls) -> str:
        return "garlicfarm"

    @hide_traceback()
    def schema(self) -> str:
        """Raises `ConfigError` for wrong options: Spark calls this at ``load()``."""
        read_options(self.options)
        return SCHEMA

    def streamReader(self, schema: StructType) -> LogReader | RefusedReader:
        try:
            _check_schema(schema)
            return LogReader(self.options)
        except ConfigError as error:
            return RefusedReader(error)

    @hide_traceback()
    def reader(self, schema: StructType) -> BatchReader:
        _check_schema(schema)
        options = read_options(self.options)
        return PushdownReader(options) if options.pushdown else BatchReader(options)

    @hide_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise ConfigError(["format garlicfarm takes rankings of a stream only: write them with writeStream"])

    @hide_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> RankingWriter:
        from garlicfarm_plugin_spark.sink import RankingWriter

        return RankingWriter(self.options, schema, self._fresh_run)


def _check_schema(schema: StructType) -> None:
    """Raises `ConfigError`: the user gave another schema; Spark then asks for none of ours."""
    ours = [tuple(column.split()) for column in SCHEMA.split(", ")]
    if [(field.name, field.dataType.simpleString()) for field in schema.fields] != ours:
        raise ConfigError(
            ["the columns of format garlicfarm are fixed: leave .schema(…) out, and select from them"]
        )


class _Reader:
    """The common part of batch and stream readers."""

    def __init__(self, options: SourceOptions, *, stream: bool) -> None:
        options.check_use(stream=stream)
        self._options = options
        self._losses = Losses(
            options.start,
            options.strict,
            stream=stream,
            whole=options.end is None,
        )
        self._missing: set[str] = set()  # farms that were logged as missing

    def _heads(self, known: Mapping[str, Position], *, strict: bool) -> dict[str, FarmHead]:
        """The farms to read, by one request to each group of nodes. A farm that is missing is logged once.

        :param known: how far farms are read. `ConfigError` if one that the option ``farm`` names is another
            farm now.
        :param strict: whether all groups have to answer. Otherwise one has to.
        """
        found: dict[str, FarmHead] = {}
        missing: dict[str, str] = {}
        failed = []
        for source in self._options.sources:
            here = {farm: known[farm] for farm in source.farms or known if farm in known}
            ids = {} if source.farms is None else {farm: one.farm_id for farm, one in here.items()}
            after = {farm: one.index for farm, one in here.items()}
            try:
                reader = open_reader(source.nodes)
                heads = reader.heads(source.farms or (), ids, after, strict=self._options.strict)
            except UnreachableError as error:
                failed.append(error)
                if strict or len(failed) == len(self._options.sources):
                    raise
                missing |= dict.fromkeys(source.farms or (), str(error))
            else:
                for farm in heads if source.farms is None else source.farms:
                    if source.application not in (None, heads[farm].application):
                        continue
                    if farm in known and heads[farm].farm_id in known[farm].past:
                        missing[farm] = "a node still has the farm that had this name before"
                    else:
                        found[farm] = heads[farm]
        for farm in known.keys() - found.keys() - missing.keys():
            missing[farm] = "its nodes have it no longer, or the options leave it out"
        for farm in sorted(missing.keys() - self._missing):
            index = known[farm].index if farm in known else "none"
            _log.warning("%s", f"the farm {farm} waits at index {index}: {missing[farm]}")
        self._missing = set(missing)
        for farm in sorted(known.keys() & found.keys()):
            old, new = known[farm], found[farm]
            if new.farm_id != old.farm_id:
                _log.warning(
                    "the farm %s was made again: the old one (id %s) is read up to index %d, the new one (id"
                    " %s) is read from startingIndex on",
                    *(farm, old.farm_id, old.index, new.farm_id),
                )
        return found

    def _state(self, farm: str, farm_id: str, least: int) -> tuple[int, bytes]:
        """The application's state at ``least`` or later. Raises `ConfigError`: it is too large."""
        index, snapshot = open_reader(self._nodes_of(farm)).state(farm, farm_id, least)
        if len(snapshot) > MAX_STATE_BYTES:
            raise ConfigError(
                [
                    f"the state of {farm} has {len(snapshot)} bytes, and a query takes at most"
                    f" {MAX_STATE_BYTES}: name another startingIndex than state"
                ]
            )
        return index, snapshot

    def _nodes_of(self, farm: str) -> NodeAccess:
        for source in self._options.sources:
            if source.farms is None or farm in source.farms:
                return source.nodes
        raise ConfigError(
            [f"the checkpoint has a batch of the farm {farm!r}, and the option farm no longer names it"]
        )

    def _ranges(self, start: Mapping[str, Position], end: Mapping[str, Position]) -> list[Range]:
        """What lies between two offsets."""
        ranges = []
        for farm, position in end.items():
            self._nodes_of(farm)  # raises here, not in a worker
            after = start[farm].index if farm in start else 0
            if position.begin is not None:
                after = position.begin
            if position.state is not None or after < position.index:
                ranges.append(Range(farm, position.farm_id, after, position.index, position.state))
        return ranges

    def _split(self, ranges: list[Range]) -> list[Range]:
        """In as many parts as ``minPartitions`` asks for. Ranges in which a state may replace entries are not
        split."""
        if self._losses.when_gone_later == "state":
            return ranges
        sizes = [each.upto - each.after for each in ranges]
        found = []
        for each, size, parts in zip(ranges, sizes, split(sizes, self._options.min_partitions), strict=True):
            cuts = [each.after + size * part // parts for part in range(parts + 1)]
            found += [replace(each, after=after, upto=upto) for after, upto in pairwise(cuts)]
        return found

    def read(self, partition: Range) -> Iterator[pyarrow.RecordBatch]:
        """Runs in a worker."""
        if isinstance(partition, Range):  # else it is Spark's own: a batch query has nothing to read
            with hide_traceback():
                yield from self._read(partition)

    def _read(self, partition: Range) -> Iterator[pyarrow.RecordBatch]:
        reader, when_gone = open_reader(self._nodes_of(partition.farm)), self._losses.when_gone_later
        farm, farm_id, after = partition.farm, partition.farm_id, partition.after
        if partition.state is not None:
            yield _batch(partition, [(after, 0, STATE, partition.state)])
        while after < partition.upto:
            try:
                for entries in reader.entries(farm, farm_id, after, partition.upto):
                    after = entries[-1].index
                    rows = [(each.index, each.term, each.value_type, each.value) for each in entries]
                    yield _batch(partition, rows)
            except FarmReplaced:
                # A stream of all farms of its nodes may have planned this one before it was made anew.
                if not self._losses.stream or self._options.sources[0].farms is not None:
                    raise
                lost = (
                    "the farm %s was made again: the entries after index %d of the old one (id %s) are lost"
                )
                _log.warning(lost, farm, after, farm_id)
                return
            except Compacted as gone:
                if when_gone == "fail" or gone.first_index <= after + 1:
                    raise self._losses.error(farm, after, gone.first_index) from gone
                if when_gone == "state":
                    after, snapshot = reader.state(farm, farm_id, gone.first_index - 1)
                    yield _batch(partition, [(after, 0, STATE, snapshot)])
                else:
                    _log.warning("%s", self._losses.error(farm, after, gone.first_index))
                    after = gone.first_index - 1


class LogReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Raises `ConfigError` for options that are missing or wrong."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(read_options(options), stream=True)
        self._last: dict[str, int] | None = None
        self._newest: dict[str, Position] = {}
        self._reported: float | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_entries)

    def initialOffset(self) -> dict[str, Any]:
        # Spark does not store it: the real start of a farm's first batch is in the offset at its end.
        return encode_offset({})

    @hide_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        heads = self._heads({}, strict=True)
        self._last = {farm: head.commit_index for farm, head in heads.items()}

    @hide_traceback()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself if there is nothing new."""
        options = self._options
        positions = decode_offset(start)
        heads = self._heads(positions, strict=self._last is not None)
        self._newest = {farm: Position(head.commit_index, head.farm_id) for farm, head in heads.items()}
        self._report(positions)  # Spark calls `commit` with the next batch only, which may be long in coming
        most = (
            None if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", options.max_entries)
        )

        end = next_positions(
            positions,
            heads,
            self._losses,
            last=self._last,
            max_entries=most,
            max_bytes=options.max_bytes,
            extent=self._extent,
            state=self._state,
        )
        return start if end is positions else encode_offset(end)

    def _extent(self, farm: str, farm_id: str, after: int, upto: int, max_bytes: int) -> tuple[int, int]:
        try:
            return open_reader(self._nodes_of(farm)).extent(farm, farm_id, after, upto, max_bytes)
        except Compacted:  # just now; reading will show what is left
            count = min(upto - after, max(1, max_bytes // MAX_VALUE_BYTES))
            return after + count, count * MAX_VALUE_BYTES

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The newest committed indexes as of the last `latestOffset`: Spark's progress shows them beside the
        end of the batch."""
        return encode_offset(self._newest) if self._newest else None

    @hide_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
        return self._split(self._ranges(decode_offset(start), decode_offset(end)))

    def commit(self, end: dict[str, Any]) -> None:
        self._report(decode_offset(end))

    def _report(self, positions: Mapping[str, Position]) -> None:
        """Report to nodes how far the query has read. A failure is logged, and stops nothing."""
        query, is_last = self._options.query, self._last is not None  # which nothing may follow
        soon = self._reported is not None and monotonic() - self._reported < REPORT_S
        if query is None or not positions or (soon and not is_last):
            return
        self._reported = monotonic()
        for source in self._options.sources:
            reader = open_reader(source.nodes)  # its first node is the one that answered last
            for farm in source.farms or positions:
                try:
                    if farm in positions and farm not in self._missing:
                        reader.report(farm, query, positions[farm].index)
                except GarlicFarmError as error:
                    _log.warning(
                        "cannot report to a node that %s has read the farm %s: %s", query, farm, error
                    )
                    if isinstance(error, UnreachableError):
                        break  # a silent node would delay the query by the timeout for each farm

    def stop(self) -> None:
        close_readers()


class RefusedReader(DataSourceStreamReader):
    """Raises ``error`` as soon as Spark uses it. Spark loses an error that is raised before it has a reader:
    it calls `stop` of that reader nevertheless, and reports only that this failed."""

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    @hide_traceback()
    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    initialOffset = getDefaultReadLimit = latestOffset = read = _refuse


class BatchReader(_Reader, DataSourceReader):
    """A batch query: the entries that are committed when it is planned. Raises as `LogReader`."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options, stream=False)
        self._least, self._most = 1, MAX_INDEX  # the bounds that filters set

    @hide_traceback()
    def partitions(self) -> list[Range]:
        last, heads = self._options.end, self._heads({}, strict=True)
        for farm, head in heads.items():
            if last is not None and last > head.commit_index:
                raise ConfigError(
                    [f"endingIndex is {last}, and the log of {farm} ends at {head.commit_index}: name that"]
                )
        ranges: list[Range] = []
        start: Mapping[str, Position] = {}
        # The states that stand for deleted entries come first, and what follows them next.
        while (end := next_positions(start, heads, self._losses, state=self._state)) is not start:
            ranges += self._ranges(start, end)
            start = end
        close_readers()
        for each in ranges:
            if each.state is None:
                each.after = max(each.after, self._least - 1)
                each.upto = min(each.upto, self._most, each.upto if last is None else last)
        return self._split([each for each in ranges if each.state is not None or each.after < each.upto])


class PushdownReader(BatchReader):
    """Reads no more than conditions on ``log_index`` ask for. A class of its own: Spark refuses to read with
    one that has `pushFilters`, unless ``spark.sql.python.filterPushdown.enabled`` is set."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep those on ``log_index``; return the others, which Spark applies itself."""
        return [each for each in filters if not self._push(each)]

    def _push(self, condition: Filter) -> bool:
        least, most = 1, MAX_INDEX
        match condition:
            case EqualTo(("log_index",), int(value)):
                least = most = value
            case GreaterThan(("log_index",), int(value)):
                least = value + 1
            case GreaterThanOrEqual(("log_index",), int(value)):
                least = value
            case LessThan(("log_index",), int(value)):
                most = value - 1
            case LessThanOrEqual(("log_index",), int(value)):
                most = value
            case _:
                return False
        self._least, self._most = max(self._least, least), min(self._most, most)
        return True


def _batch(partition: Range, rows: Sequence[tuple[int, int, int, bytes]]) -> pyarrow.RecordBatch:
    import pyarrow

    indexes, terms, kinds, values = zip(*rows, strict=True)
    return pyarrow.RecordBatch.from_arrays(
        [
            pyarrow.repeat(partition.farm, len(rows)),
            pyarrow.repeat(partition.farm_id, len(rows)),
            pyarrow.array(indexes, pyarrow.int64()),
            pyarrow.array(terms, pyarrow.int64()),
            pyarrow.array(kinds, pyarrow.int32()),
            pyarrow.array(values, pyarrow.binary()),
        ],
        [column.partition(" ")[0] for column in SCHEMA.split(", ")],
    )
