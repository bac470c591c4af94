"""A history computed from all rows at once: what the commands must say, which keep only a few."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from garlicfarm_plugin_spark.charts import Axis, Curve, Lane
from garlicfarm_plugin_spark.history import INPUT, LONGEST_MS, Figures, History
from garlicfarm_plugin_spark.period import PERIODS_MS
from tests.spark.stored import read_rankings

Row = Mapping[str, Any]


class Span(NamedTuple):
    begin_ms: int
    end_ms: int
    row: Row


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """By farm, its id and index."""
    rows = read_rankings(directory, [*INPUT[3:], "changed"]).to_pylist()
    return [{**row, "scores": dict(row["scores"])} for row in rows]


def newest_days(rows: list[dict[str, Any]], days: float) -> list[dict[str, Any]]:
    newest_ms = max(row["farm_time_ms"] for row in rows)
    begin_ms = newest_ms - round(days * PERIODS_MS["day"])
    return [row for row in rows if row["farm_time_ms"] >= begin_ms]


def figures(rows: list[dict[str, Any]], period_ms: int) -> list[dict[str, Any]]:
    """By farm, id, period and member."""
    return [
        {"farm": farm, "farm_id": farm_id, **line}
        for (farm, farm_id), of_farm in groupby(rows, itemgetter("farm", "farm_id"))
        for line in History(Figures(period_ms)).follow(of_farm, is_all=True)
    ]


def spans(rows: list[dict[str, Any]]) -> Iterator[Span]:
    before, begin_ms = None, 0
    for row in rows:
        time_ms = max(begin_ms, row["farm_time_ms"])
        if before is not None and begin_ms:
            end_ms = min(time_ms, begin_ms + LONGEST_MS)
            if end_ms > begin_ms:
                yield Span(begin_ms, end_ms, before)
        before, begin_ms = row, time_ms


def axis_of(found: Sequence[Span]) -> Axis:
    return Axis(found[0].begin_ms, max(found[-1].end_ms, found[0].begin_ms + 60_000))


def word(member: int, row: Row) -> str:
    if member == row["publisher"]:
        return "publisher"
    if member in row["holders"]:
        return "holder"
    return "recent" if member in row["recent"] else ""


def lane(axis: Axis, found: Sequence[Span], member: int) -> list[tuple[int, int, str]]:
    made = Lane()
    for begin_ms, end_ms, row in found:
        made.add(axis.columns(begin_ms, end_ms), word(member, row))
    return made.stretches()


def lines(axis: Axis, found: Sequence[Span], member: int, scale: tuple[int, int], height: int) -> list[str]:
    made = Curve()
    for begin_ms, end_ms, row in found:
        if member in row["scores"] and member in row["recent"]:
            made.add(axis.columns(begin_ms, end_ms), row["scores"][member])
    return made.lines(scale, height)
