"""The geometry of a report's charts. Needs no Spark."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from garlicfarm_plugin_spark.charts import (
    WIDTH,
    Axis,
    Bar,
    Curve,
    Lane,
    bars,
    score_ticks,
)

HOUR_MS = 3_600_000
T0 = 1_800_000_000_000  # 08:00


def row(time_ms: int, word: str = "", **scores: int) -> dict[str, Any]:
    return {
        "farm_time_ms": time_ms,
        "word": word,
        "scores": {int(name[1:]): at for name, at in scores.items()},
    }


State = tuple[int, int, dict[str, Any]]


def states(rows: list[dict[str, Any]]) -> list[State]:
    """(begin, end, row)"""
    return [(one["farm_time_ms"], other["farm_time_ms"], one) for one, other in pairwise(rows)]


def lanes(axis: Axis, spans: list[State]) -> list[tuple[int, int, str]]:
    lane = Lane()
    for begin_ms, end_ms, each in spans:
        lane.add(axis.columns(begin_ms, end_ms), each["word"])
    return lane.stretches()


def lines(axis: Axis, spans: list[State], member: int) -> list[str]:
    curve = Curve()
    for begin_ms, end_ms, each in spans:
        if member in each["scores"]:
            curve.add(axis.columns(begin_ms, end_ms), each["scores"][member])
    return curve.lines((500_000, 700_000), 100)


def test_columns_of_a_time_have_all_of_it() -> None:
    axis = Axis(T0, T0 + WIDTH * 10)
    assert list(axis.columns(T0 + 5, T0 + 25)) == [(0, 5.0), (1, 10.0), (2, 5.0)]
    assert sum(ms for _, ms in axis.columns(T0, T0 + WIDTH * 10)) == WIDTH * 10
    odd = Axis(T0, T0 + 1_234_567)
    found = list(odd.columns(T0 + 7, T0 + 1_234_567))
    assert abs(sum(ms for _, ms in found) - 1_234_560) < 1
    assert {column for column, _ in found} == {*range(WIDTH)}


def test_lane_shows_what_held_for_most_of_a_column() -> None:
    axis = Axis(T0, T0 + WIDTH * 10)
    rows = [row(T0, "a"), row(T0 + 14, "b"), row(T0 + 30), row(T0 + 60, "a"), row(T0 + WIDTH * 10)]
    assert lanes(axis, states(rows)) == [(0, 1, "a"), (1, 2, "b"), (6, WIDTH - 6, "a")]


def test_line_has_a_gap_where_there_is_no_score() -> None:
    axis = Axis(T0, T0 + WIDTH * 10)
    rows = [row(T0, m1=600_000), row(T0 + 10, m1=700_000), row(T0 + 20), row(T0 + 8990, m1=500_000)]
    spans = states([*rows, row(T0 + 9000)])
    assert lines(axis, spans, 1) == ["0,50.0 1,0.0 2,0.0", "899,100.0 900,100.0"]
    assert lines(axis, spans, 2) == []


def test_score_axis_has_a_few_round_numbers_around_all_scores() -> None:
    assert score_ticks(650_001, 849_000) == [650_000, 700_000, 750_000, 800_000, 850_000]
    assert score_ticks(512_345, 512_345) == [510_000, 520_000, 530_000]
    assert score_ticks(0, 1_000_000) == [0, 500_000, 1_000_000]
    for low in range(0, 1_000_000, 7_000):
        found = score_ticks(low, 1_000_000)
        assert 3 <= len(found) <= 6
        assert found[0] <= low < 1_000_000 <= found[-1]
    assert score_ticks(0, 0) == [0, 10_000, 20_000]


def test_time_axis_has_round_dates() -> None:
    hours = Axis(T0 + 60_000, T0 + 5 * HOUR_MS).ticks()
    assert [label for _, label in hours] == ["09:00", "10:00", "11:00", "12:00", "13:00"]
    assert hours[-1][0] == WIDTH
    days = Axis(T0, T0 + 24 * 30 * HOUR_MS).ticks()
    assert days[0][1].startswith("2027-01-")
    for length_ms in (60_000, HOUR_MS, 24 * HOUR_MS, 24 * 365 * HOUR_MS, 24 * 3650 * HOUR_MS):
        assert len(Axis(T0, T0 + length_ms).ticks()) <= 11


def test_bars_end_with_the_axis() -> None:
    axis = Axis(T0 + HOUR_MS // 2, T0 + 5 * HOUR_MS // 2)
    figures = [
        {"period_ms": T0 + hour * HOUR_MS, "availability": share, "tenure": 0.25}
        for hour, share in ((0, 1.0), (1, 0.5), (2, None))
    ]
    assert bars(axis, figures, HOUR_MS, 40) == [
        Bar(0.0, 224.0, 40.0, 10.0, "2027-01-15 08:00: available 100.0%, publisher 25.0%"),
        Bar(225.0, 449.0, 20.0, 10.0, "2027-01-15 09:00: available 50.0%, publisher 25.0%"),
    ]
