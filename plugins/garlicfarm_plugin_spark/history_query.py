"""The history of farms as a query of Spark: of stored rankings, or of the log as it grows.

Spark has no second stateful operator of Python in a stream, so a stream of rankings cannot be followed by one
that goes from row to row. From the log, one operator does both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.history import INPUT, OUTPUT, By, History
from garlicfarm_plugin_spark.period import PERIODS_MS
from garlicfarm_plugin_spark.ranking import ENTRY, Fold, Keep, Row, fold_farms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FOUND = OUTPUT.replace("period timestamp", "period_ms bigint")


def history(rows: DataFrame, by: By = "hour") -> DataFrame:
    """The history of farms, the columns `garlicfarm_plugin_spark.history.OUTPUT`.

    :param rows: a table of stored rankings, or a stream of their files in the order in which they were
        written; or a stream or a batch of ``format("garlicfarm")`` with ``startingIndex=state``. A stream
        that comes out of `rankings` is refused by Spark. Output mode of a stream: ``append``; a period comes
        once a row of the farm is behind it.
    :raises ConfigError: ``by`` is another word.
    """
    from pyspark.sql import functions as f

    if by not in PERIODS_MS:
        raise ConfigError([f"by is {by!r}, not {', '.join(PERIODS_MS)}"])
    is_all = not rows.isStreaming
    if "value" in rows.columns:
        follow = partial(follow_log, by, is_all)
        found = fold_farms(rows, ENTRY, follow, _FOUND, "log_index bigint, snapshot binary, history binary")
    else:
        # Of a directory whose farm is named 7, Spark makes a number.
        named = rows.withColumn("farm", f.col("farm").cast("string"))
        found = fold_farms(named, INPUT, partial(follow_rows, by, is_all), _FOUND, "history binary")
    return found.select(
        *("farm", "farm_id", f.timestamp_millis("period_ms").alias("period")), *found.columns[3:]
    )


def follow_log(
    by: By, is_all: bool, farm: str, state: tuple[Any, ...], entries: Iterable[Row], keep: Keep
) -> Iterator[dict[str, Any]]:
    fold = Fold(farm, *state[:2])
    history = _resumed(by, *state[2:])
    rows = (fold.short_row() for _ in fold.changes(entries, "changes"))
    yield from history.follow(rows, is_all=is_all)
    keep((fold.index, fold.snapshot(), msgspec.json.encode(history)))


def follow_rows(
    by: By, is_all: bool, farm: str, state: tuple[Any, ...], rows: Iterable[tuple[Any, ...]], keep: Keep
) -> Iterator[dict[str, Any]]:
    history = _resumed(by, *state)
    yield from history.follow(map(_plain, rows), is_all=is_all)
    keep((msgspec.json.encode(history),))


def _resumed(by: By, said: bytes = b"") -> History:
    return msgspec.json.decode(said, type=History) if said else History.by(by)


def _plain(row: tuple[Any, ...]) -> dict[str, Any]:
    """The row, of Python's own types. Pandas makes null and integers to floats, and arrays to numpy's."""
    import pandas

    found = dict(zip(INPUT[2:], row, strict=True))
    return {
        **found,
        "publisher": None if pandas.isna(found["publisher"]) else int(found["publisher"]),
        **{name: [int(each) for each in found[name]] for name in ("holders", "recent", "order")},
        "scores": {int(member): int(score) for member, score in dict(found["scores"]).items()},
    }
