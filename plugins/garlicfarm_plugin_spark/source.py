"""The streaming data source ``garlicfarm``: a farm's committed entries, by Raft index.

Options:

``url``
    Admin URLs, separated by spaces, tried in turn; each may carry the pin of its own certificate,
    ``?pin=sha256-…``. ``pin`` is for all others; without any, ``ca`` (a file) or the system's authorities.
``farm``, ``user``, ``passwordFile``
    The farm's name; a user of these nodes with the role reader; the file (mode 0600) with the password.
``towers``, ``farmId``, ``topic``, ``listen``, ``keyFile``, ``peersFile``
    Instead of ``url`` and what belongs to it: the farm's topic in Dafka, read from stores and members that
    these towers know. ``farmId``: 32 hex digits, as in ``garlicfarm status -o json``; ``topic``: the farm's
    name by default. The others: as in `garlicfarm_plugin_dafka.MeshConfig`.
``startingIndex``
    For a query without a checkpoint: ``earliest`` (the default), ``latest``, the first index to read, or
    ``state``, see below.
``maxEntriesPerTrigger``
    The largest number of indexes in a batch: 1 or more, 20,000 by default.
``failOnDataLoss``
    ``true`` (the default): a query ends if entries were deleted before it read them. ``false``: it
    continues at the first one left, and logs that.

Columns: ``farm`` string, ``farm_id`` string (32 hex digits), ``log_index`` long, ``term`` long,
``value_type`` int (1 application, 2 configuration), ``value`` binary; ``value.cast("string")`` and what
follows runs in the JVM.

With ``startingIndex=state`` the rows are a complete input for a fold of the log. They begin at index 1
or, if the log no longer begins there, with the application's state, in a row of ``value_type`` 0 whose
``log_index`` is the last index in that state.

An offset is ``{"index": n, "farm_id": hex}``: entries up to n of that farm are read. A checkpoint of
another farm is refused. ``from``: the start of a batch that did not begin at the previous offset.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from garlicfarm.errors import Compacted, ConfigError, FellBehind
from garlicfarm_plugin_spark.feed import Feed, Nodes, Origin, close_feeds, open_feed
from garlicfarm_plugin_spark.topic import LISTEN, Topic

if TYPE_CHECKING:
    import pyarrow

__all__ = ["MAX_ENTRIES", "STATE", "GarlicFarm", "LogReader"]

STATE = 0
"""``value_type`` of a row that holds the application's state."""
MAX_ENTRIES = 20_000
SCHEMA = "farm string, farm_id string, log_index bigint, term bigint, value_type int, value binary"

_log = logging.getLogger("garlicfarm.spark")


class Offset(TypedDict, total=False):
    """See the module. In a query without a checkpoint, ``index`` is the value of ``startingIndex``."""

    index: Any
    farm_id: str


@dataclass
class Range(InputPartition):
    """``after`` < index ≤ ``upto``. ``gone``: what to do if some of these entries were deleted: ``fail``,
    continue at the first one left (``skip``), or begin with the ``state``."""

    after: int
    upto: int
    farm_id: str
    gone: Literal["fail", "skip", "state"]


class GarlicFarm(DataSource):
    """``spark.dataSource.register(GarlicFarm)`` registers ``format("garlicfarm")``."""

    @classmethod
    def name(cls) -> str:
        return "garlicfarm"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: object) -> LogReader:
        return LogReader(self.options)


class LogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches and reads them. Raises `ConfigError` for an option that is missing or wrong."""

    def __init__(self, options: Mapping[str, str]) -> None:
        required = (
            ("towers", "farm", "farmId") if "towers" in options else ("url", "farm", "user", "passwordFile")
        )
        problems = [f"the option {name} is missing" for name in required if name not in options]
        if "towers" in options and "url" in options:
            problems.append("url and towers are two places to read from: give one of them")
        farm_id = (options.get("farmId") or "").lower()
        if "towers" in options and farm_id and re.fullmatch("[0-9a-f]{32}", farm_id) is None:
            problems.append(f"farmId is {farm_id!r}, not 32 hex digits")
        if ("keyFile" in options) != ("peersFile" in options):
            problems.append("keyFile and peersFile belong together: set both or none")
        start = options.get("startingIndex", "earliest")
        if start not in ("earliest", "latest", "state") and not (start.isdecimal() and int(start) > 0):
            problems.append(f"startingIndex is {start!r}, not earliest, latest, state or an index from 1")
        most = options.get("maxEntriesPerTrigger", str(MAX_ENTRIES))
        if not (most.isdecimal() and int(most) > 0):
            problems.append(f"maxEntriesPerTrigger is {most!r}, not a number from 1")
        strict = options.get("failOnDataLoss", "true").lower()
        if strict not in ("true", "false"):
            problems.append(f"failOnDataLoss is {strict!r}, not true or false")
        if problems:
            raise ConfigError(problems)
        self._origin: Origin = (
            Topic(
                towers=tuple(options["towers"].split()),
                topic=options.get("topic") or options["farm"],
                farm=options["farm"],
                farm_id=farm_id,
                listen=options.get("listen") or LISTEN,
                key_file=Path(options["keyFile"]) if "keyFile" in options else None,
                peers_file=Path(options["peersFile"]) if "peersFile" in options else None,
            )
            if "towers" in options
            else Nodes(
                urls=tuple(options["url"].split()),
                farm=options["farm"],
                user=options["user"],
                password_file=Path(options["passwordFile"]),
                pin=options.get("pin"),
                ca=Path(options["ca"]) if "ca" in options else None,
            )
        )
        self._start = start
        self._most = int(most)
        self._strict = strict == "true"
        self._last: int | None = None

    @property
    def _feed(self) -> Feed:
        return open_feed(self._origin)

    # Planned in one process of the driver

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def initialOffset(self) -> Offset:
        # Spark does not store it: the real start of the first batch is in the offset at its end.
        return Offset(index=self._start)

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._feed.head().commit_index

    def latestOffset(self, start: Offset, limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself if there is nothing new."""
        head = self._feed.head(start.get("farm_id"))
        last = head.commit_index if self._last is None else min(self._last, head.commit_index)
        begun = "farm_id" in start
        after = start["index"] if begun else self._first_after(head.first_index, last)
        most = None if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", self._most)
        begin = after
        if after < head.first_index - 1:
            match self._when_gone(begun=begun):
                case "fail":
                    raise self._gone(after, head.first_index, begun=begun)
                case "state":
                    most = None  # the state is one row
                case "skip":
                    begin = head.first_index - 1
                    _log.warning("%s", self._gone(after, head.first_index))
        end = max(begin, last if most is None else min(last, begin + most))
        if begun and end == after:
            return dict(start)
        offset: dict[str, Any] = {"index": end, "farm_id": head.farm_id}
        return offset if begun and begin == after else {**offset, "from": begin}

    def partitions(self, start: Offset, end: dict[str, Any]) -> list[Range]:
        begun = "farm_id" in start
        after = end.get("from", start["index"])
        return [Range(after, end["index"], end["farm_id"], self._when_gone(begun=begun))]

    def stop(self) -> None:
        close_feeds()

    def _first_after(self, first_index: int, last: int) -> int:
        match self._start:
            case "earliest":
                return first_index - 1
            case "latest":
                return last
            case "state":
                return 0
        return int(self._start) - 1

    def _when_gone(self, *, begun: bool) -> Literal["fail", "skip", "state"]:
        if self._start == "state" and not (begun and self._strict):
            return "state"
        return "fail" if self._strict else "skip"

    def _gone(self, after: int, first_index: int, *, begun: bool = True) -> FellBehind:
        if not begun:  # there is no checkpoint to blame
            remedy = f"startingIndex is {self._start}, and earliest begins there"
        elif self._strict:
            remedy = "begin with a new checkpoint; a query of your own may set failOnDataLoss to false"
        else:
            remedy = "this query loses the entries in between"
        return FellBehind(
            f"the entries after index {after} are gone, the log of {self._origin.farm} now starts at"
            f" {first_index}: {remedy}"
        )

    # Read in a worker

    def read(self, partition: Range) -> Iterator[pyarrow.RecordBatch]:
        after = partition.after
        while after < partition.upto:
            try:
                for entries in self._feed.entries(after, partition.upto, partition.farm_id):
                    after = entries[-1].index
                    yield self._batch(
                        partition.farm_id,
                        [(each.index, each.term, each.value_type, each.value) for each in entries],
                    )
            except Compacted as gone:
                if partition.gone == "fail" or gone.first_index <= after + 1:
                    raise self._gone(after, gone.first_index) from gone
                if partition.gone == "state":
                    after, snapshot = self._feed.state(partition.farm_id)
                    yield self._batch(partition.farm_id, [(after, 0, STATE, snapshot)])
                else:
                    _log.warning("%s", self._gone(after, gone.first_index))
                    after = gone.first_index - 1

    def _batch(self, farm_id: str, rows: list[tuple[int, int, int, bytes]]) -> pyarrow.RecordBatch:
        import pyarrow

        indexes, terms, kinds, values = zip(*rows, strict=True)
        return pyarrow.RecordBatch.from_arrays(
            [
                pyarrow.repeat(self._origin.farm, len(rows)),
                pyarrow.repeat(farm_id, len(rows)),
                pyarrow.array(indexes, pyarrow.int64()),
                pyarrow.array(terms, pyarrow.int64()),
                pyarrow.array(kinds, pyarrow.int32()),
                pyarrow.array(values, pyarrow.binary()),
            ],
            ["farm", "farm_id", "log_index", "term", "value_type", "value"],
        )
