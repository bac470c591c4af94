"""Availability, tenure, flaps, hand-overs and scores by period, of rows as `rankings` has them. No Spark."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from garlicfarm_plugin_spark.history import INPUT, LONGEST_MS, OUTPUT, By, History
from garlicfarm_plugin_spark.period import PERIODS_MS
from garlicfarm_plugin_spark.ranking import Fold
from tests.publishing.scripted_log import T0
from tests.spark.script import fold_rows, many_entries

HOUR_MS = PERIODS_MS["hour"]
MINUTE_MS = 60_000


def row(index: int, minutes: float, publisher: int | None, **changes: Any) -> dict[str, Any]:
    """At so many minutes after T0, when an hour begins. All three members are recent, 1 is the best."""
    return {
        "farm": "farm",
        "farm_id": "07" * 16,
        "log_index": index,
        "farm_time_ms": T0 + round(minutes * MINUTE_MS),
        "interval_ms": 30_000,
        "publisher": publisher,
        "holders": [] if publisher is None else [publisher],
        "recent": [1, 2, 3],
        "order": [1, 2, 3],
        "scores": {1: 900, 2: 800, 3: 700},
        **changes,
    }


def figures(rows: list[dict[str, Any]], by: By = "hour") -> list[dict[str, Any]]:
    return [*History.by(by).follow(rows, is_all=True)]


def by_member(rows: list[dict[str, Any]], by: By = "hour") -> dict[tuple[int, int], dict[str, Any]]:
    """(hours after T0, member) → its figures."""
    return {((each["period_ms"] - T0) // HOUR_MS, each["member"]): each for each in figures(rows, by)}


def test_shares_are_of_the_time_for_which_a_state_held() -> None:
    found = by_member([row(1, 0, 1), row(2, 15, 1, recent=[1, 2]), row(3, 45, 2), row(4, 60, 2)])
    assert {each["known_ms"] for each in found.values()} == {HOUR_MS}
    assert [found[0, member]["availability"] for member in (1, 2, 3)] == [1, 1, 0.5]
    assert [found[0, member]["tenure"] for member in (1, 2, 3)] == [0.75, 0.25, 0]


def test_state_over_the_bound_of_hours_counts_in_both() -> None:
    found = by_member([row(1, 30, 1), row(2, 90, 2), row(3, 105, 2)])
    assert found[0, 1]["known_ms"] == 30 * MINUTE_MS
    assert found[1, 1]["known_ms"] == 45 * MINUTE_MS
    assert found[1, 1]["tenure"] == pytest.approx(30 / 45)
    days = by_member([row(1, 30, 1), row(2, 90, 2), row(3, 105, 2)], "day")
    assert [(at, each["known_ms"]) for at, each in days.items()] == [
        ((-8, member), 75 * MINUTE_MS) for member in (1, 2, 3)
    ]


def test_silence_of_the_whole_farm_counts_for_two_hours_only() -> None:
    """Members with clocks set wrong by years would have millions of hours else."""
    found = by_member([row(1, 0, 1), row(2, 60 * 24 * 365, 1), row(3, 60 * 24 * 365 + 30, 1)])
    assert sum(each["known_ms"] for (_, member), each in found.items() if member == 1) == (
        LONGEST_MS + 30 * MINUTE_MS
    )


def test_time_before_the_first_status_is_in_no_figure() -> None:
    before = row(1, 0, None, farm_time_ms=0, recent=[], scores={})
    found = by_member([before, row(2, 0, 1), row(3, 30, 1)])
    assert {each["known_ms"] for each in found.values()} == {30 * MINUTE_MS}
    assert found[0, 1]["handovers"] == 0  # when it was named is not known


def test_farm_time_that_goes_back_counts_nothing_twice() -> None:
    found = by_member([row(1, 0, 1), row(2, 30, 1), row(3, 20, 1), row(4, 40, 1)])
    assert found[0, 1]["known_ms"] == 40 * MINUTE_MS


def test_handover_and_flap_count_where_they_end_for_the_member_that_is_named() -> None:
    rows = [
        row(1, 0, 1),
        row(2, 58, 2, holders=[1, 2]),
        row(3, 59, 2),
        row(4, 61, 1, holders=[1, 2]),
        row(5, 64, 1),
        row(6, 65, 1),
    ]
    found = by_member(rows)
    assert (found[0, 2]["handovers"], found[0, 2]["handover_most_ms"]) == (1, MINUTE_MS)
    assert (found[1, 1]["handovers"], found[1, 1]["handover_p50_ms"]) == (1, 3 * MINUTE_MS)
    assert {at: each["flaps"] for at, each in found.items() if each["flaps"]} == {(1, 1): 1}


def test_score_counts_by_how_long_it_lasted() -> None:
    rows = [row(1, 0, 1, scores={1: 100}), row(2, 54, 1, scores={1: 500}), row(3, 60, 1)]
    found = by_member(rows)
    assert [found[0, 1][name] for name in ("score_p05", "score_p50", "score_p95")] == [100, 100, 500]
    assert found[0, 2]["score_p50"] is None


def test_member_that_joins_and_leaves_is_known_while_it_is_one() -> None:
    found = by_member([row(1, 0, 1, order=[1]), row(2, 20, 1), row(3, 50, 1, order=[1, 2]), row(4, 60, 1)])
    assert [found[0, member]["known_ms"] // MINUTE_MS for member in (1, 2, 3)] == [60, 40, 30]


def test_rows_that_come_again_add_nothing() -> None:
    rows = [row(1, 0, 1), row(2, 15, 2), row(3, 45, 1), row(4, 60, 1)]
    assert figures([*rows, *rows[1:], *rows]) == figures(rows)


def test_history_goes_on_from_its_json() -> None:
    rows = [*Fold("farm").rankings(fold_rows(many_entries(300)), "changes")]
    for number, each in enumerate(rows):
        each["farm_time_ms"] += number // 20 * HOUR_MS
    history = History.by("hour")
    found: list[dict[str, Any]] = []
    for each in rows:
        history = msgspec.json.decode(msgspec.json.encode(history), type=History)
        found += history.follow([each], is_all=each is rows[-1])
    assert found == figures(rows)
    assert len({line["period_ms"] for line in found}) > 3
    assert sum(line["flaps"] for line in found) > 0
    assert sum(line["handovers"] for line in found) > 3


def test_history_of_changes_is_that_of_all_entries_but_for_scores() -> None:
    """Rows where nothing changed say nothing new of who is recent, named, or holds."""
    log = fold_rows(many_entries(500))
    found = []
    for kind in ("changes", "entries"):
        rows = [*Fold("farm").rankings(log, kind)]
        last = max(each["log_index"] for each in rows if each["changed"])
        found.append(figures([each for each in rows if each["log_index"] <= last]))
    for lines in found:
        for line in lines:
            for name in ("score_p05", "score_p50", "score_p95"):
                del line[name]
    assert found[0] == found[1]


def test_history_has_the_columns_that_it_says() -> None:
    names = [column.split()[0] for column in OUTPUT.split(", ")]
    line = figures([row(1, 0, 1), row(2, 1, 1)])[0]
    assert ["farm", "farm_id", *line] == [name.replace("period", "period_ms") for name in names]
    assert {*INPUT} == {*row(1, 0, 1)}
