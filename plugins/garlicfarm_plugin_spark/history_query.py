"""The history of farms as a query of Spark: of stored rankings, or of the log as it grows.

Spark has no second stateful operator of Python in a stream, so a stream of rankings cannot be followed by one
that goes from row to row. From the log, one operator does both: its state is the fold's snapshot and the
`Course`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.hide_traceback import hide_traceback, map_frames
from garlicfarm_plugin_spark.history import INPUT, SCORE_SHARES, By, Course, Share
from garlicfarm_plugin_spark.period import PERIODS_MS
from garlicfarm_plugin_spark.ranking import Fold, Row, by_farm, of_farms, sorted_rows

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

__all__ = ["history"]

_SHARES = (
    "farm string, farm_id string, time_ms bigint, member bigint, known_ms bigint, recent_ms bigint,"
    " publisher_ms bigint, score bigint, flaps bigint, handover_ms bigint"
)

_FRAME_ROWS = 20_000
"""A batch of a large farm has millions: a frame of them must not fill the memory."""


def history(rows: DataFrame, by: By = "hour", delay: str = "1 hour") -> DataFrame:
    """The history of farms, the columns `garlicfarm_plugin_spark.history.OUTPUT`.

    :param rows: a table of stored rankings, or a stream of their files in the order in which they were
        written; or a stream or a batch of ``format("garlicfarm")`` with ``startingIndex=state``. A stream
        that comes out of `rankings` is refused by Spark.
    :param delay: of a stream, for how long a period stays open after the newest farm time of any farm, as
        "10 minutes". It must cover by how much the farm times of the farms in the stream differ: rows of a
        farm that is further behind are lost. Output mode: ``append``; a period comes once it is closed.
    :raises ConfigError: ``by`` is another word.
    """
    from pyspark.sql import functions as f

    if by not in PERIODS_MS:
        raise ConfigError([f"by is {by!r}, not {', '.join(PERIODS_MS)}"])
    is_log = "value" in rows.columns
    if not is_log:
        # Of a directory whose farm is named 7, Spark makes a number.
        rows = rows.select(f.col("farm").cast("string").alias("farm"), *INPUT[1:])
    of, period_ms = rows.groupBy("farm_id"), PERIODS_MS[by]
    if not rows.isStreaming:
        of_rows = _of_log_table if is_log else _of_table
        shares = map_frames(by_farm(rows), partial(of_rows, period_ms=period_ms), _SHARES)
    elif is_log:
        shares = of.applyInPandasWithState(
            partial(_of_log, period_ms=period_ms),
            *(_SHARES, "log_index bigint, snapshot binary, course binary", "append", "NoTimeout"),
        )
    else:
        shares = of.applyInPandasWithState(
            partial(_of_files, period_ms=period_ms), _SHARES, "course binary", "append", "NoTimeout"
        )
    timed = shares.withColumn("time", f.timestamp_millis("time_ms"))
    if rows.isStreaming:
        timed = timed.withWatermark("time", delay)
    known = f.sum("known_ms")
    of_known = {name: f.sum(f"{name}_ms") / f.nullif(known, f.lit(0)) for name in ("recent", "publisher")}
    score = f.percentile("score", f.array(*map(f.lit, SCORE_SHARES)), f.col("known_ms"))
    return (
        timed.groupBy("farm", "farm_id", f.window("time", f"1 {by}").alias("window"), "member")
        .agg(
            known.alias("known_ms"),
            of_known["recent"].alias("availability"),
            of_known["publisher"].alias("tenure"),
            f.sum("flaps").alias("flaps"),
            f.count("handover_ms").alias("handovers"),
            f.percentile("handover_ms", f.lit(0.5)).alias("handover_p50_ms"),
            f.max("handover_ms").alias("handover_most_ms"),
            score.alias("score"),
        )
        .select(
            *("farm", "farm_id", f.col("window.start").alias("period"), "member", "known_ms", "availability"),
            *("tenure", "flaps", "handovers", "handover_p50_ms", "handover_most_ms"),
            *(
                f.col("score")[at].alias(f"score_p{share * 100:02.0f}")
                for at, share in enumerate(SCORE_SHARES)
            ),
        )
    )


def _of_table(frames: Iterator[pandas.DataFrame], *, period_ms: int) -> Iterator[pandas.DataFrame]:
    """Of a partition, which has all rows of its farms, by farm and index."""
    rows = (row for frame in frames for row in _plain(frame))
    for _, of_farm in groupby(rows, itemgetter("farm_id")):
        yield from _frames(_shares(Course(), of_farm, period_ms))


def _of_files(
    group: tuple[str], frames: Iterator[pandas.DataFrame], state: GroupState, *, period_ms: int
) -> Iterator[pandas.DataFrame]:
    import pandas

    course = msgspec.json.decode(state.get[0], type=Course) if state.exists else Course()
    rows = pandas.concat([*frames]).sort_values("log_index")
    yield from _frames(_shares(course, _plain(rows), period_ms))
    state.update((msgspec.json.encode(course),))


def _of_log(
    group: tuple[str], frames: Iterator[pandas.DataFrame], state: GroupState, *, period_ms: int
) -> Iterator[pandas.DataFrame]:
    with hide_traceback():
        farm, entries = sorted_rows(frames)
        index, snapshot, said = state.get if state.exists else (0, b"", b"{}")
        fold, course = Fold(farm, index, snapshot), msgspec.json.decode(said, type=Course)
        yield from _folded(fold, course, group[0], entries, period_ms)
        state.update((fold.index, fold.snapshot(), msgspec.json.encode(course)))


def _of_log_table(frames: Iterator[pandas.DataFrame], *, period_ms: int) -> Iterator[pandas.DataFrame]:
    """As `_of_table`, of the log's entries."""
    for farm, farm_id, entries in of_farms(frames):
        yield from _folded(Fold(farm), Course(), farm_id, entries, period_ms)


def _folded(
    fold: Fold, course: Course, farm_id: str, entries: Iterable[Row], period_ms: int
) -> Iterator[pandas.DataFrame]:
    rows = ({**fold.short_row(), "farm_id": farm_id} for _ in fold.changes(entries, "changes"))
    return _frames(_shares(course, rows, period_ms))


def _shares(
    course: Course, rows: Iterable[Mapping[str, Any]], period_ms: int
) -> Iterator[tuple[object, ...]]:
    """The rows of `_SHARES`: one for each member of a farm at each row of rankings."""
    return ((row["farm"], row["farm_id"], *share) for row in rows for share in course.follow(row, period_ms))


def _frames(shares: Iterator[tuple[object, ...]]) -> Iterator[pandas.DataFrame]:
    while some := [*islice(shares, _FRAME_ROWS)]:
        yield _table(some)


def _table(shares: Iterable[tuple[object, ...]]) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame([*shares], columns=["farm", "farm_id", *Share._fields], dtype=object)


def _plain(rows: pandas.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows, of Python's own types. Pandas makes null and integers to floats, and arrays to numpy's."""
    for row in rows.to_dict("records"):
        publisher = row["publisher"]
        yield {
            **row,
            "publisher": None if publisher is None or publisher != publisher else int(publisher),
            **{name: [int(each) for each in row[name]] for name in ("holders", "recent", "order")},
            "scores": {int(member): int(score) for member, score in dict(row["scores"]).items()},
        }
