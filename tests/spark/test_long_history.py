"""A history of many dates, read a few rows at a time, is that of all its rows at once. Needs no Java."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

import pyarrow.parquet

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark import overview
from garlicfarm_plugin_spark.charts import WIDTH
from garlicfarm_plugin_spark.compact import compact
from garlicfarm_plugin_spark.history import WHOLE_MS, stored
from garlicfarm_plugin_spark.overview import Charts, Outline
from garlicfarm_plugin_spark.period import PERIODS_MS
from garlicfarm_plugin_spark.report import report
from garlicfarm_plugin_spark.stored_rows import stored_farms
from tests.publishing.scripted_log import T0
from tests.spark import naive_history
from tests.spark.stored import FARM_ID, write, write_in_batches

pytestmark = pytest.mark.spark

HOUR_MS, DAY_MS = PERIODS_MS["hour"], PERIODS_MS["day"]
MEMBERS = (1, 2, 3, 4)
NAMES = ("publisher", "holders", "recency", "order", "policy")


def made_rows(days: float, seed: int, a_day: int = 40, **others: str) -> list[dict[str, Any]]:
    """Rows at random times, some earlier than the one before, with gaps and members that come and go."""
    chance = random.Random(seed)
    time_ms, publisher, holders = T0, 1, [1]
    found = []
    for index in range(5, 5 + round(days * a_day)):
        time_ms += round(chance.expovariate(a_day / DAY_MS))
        if chance.random() < 0.01:
            time_ms += 5 * HOUR_MS  # silence
        members = [member for member in MEMBERS if member != 4 or index % 50 > 10]
        if chance.random() < 0.2:
            publisher = chance.choice(members)
        holders = sorted({publisher, *holders}) if chance.random() < 0.5 else [publisher]
        found.append(
            {
                "farm": "farm",
                "farm_id": FARM_ID,
                "log_index": index,
                # A member with a later date is recent no more.
                "farm_time_ms": max(0, time_ms - chance.choice((0, 0, 0, 0, 2 * HOUR_MS))),
                "interval_ms": 3_600_000,
                "changed": chance.sample(NAMES, chance.randint(0, 3)),
                "publisher": None if chance.random() < 0.05 else publisher,
                "holders": holders,
                "recent": [member for member in members if chance.random() < 0.9],
                "order": chance.sample(members, len(members)),
                "scores": {member: chance.randint(500_000, 900_000) for member in members},
                "contents": b"",
                "skipped": {},
                "ranking": '{"because": "margin", "orders": {}}',
                "state_sha256": f"{index:064x}",
                **others,
            }
        )
    return found


def charts(directory: Path, by_ms: int, begin_ms: int = 0) -> tuple[Outline, Charts]:
    (farm,) = stored_farms(directory)
    return charts_of([*farm.rows(FARM_ID, [*naive_history.INPUT[3:], "changed"])], by_ms, begin_ms)


def charts_of(rows: list[dict[str, Any]], by_ms: int, begin_ms: int = 0) -> tuple[Outline, Charts]:
    outline = Outline(begin_ms, 100)
    for row in rows:
        outline.follow(row)
    assert outline.axis is not None
    found = Charts(outline, outline.axis, by_ms, outline.members)
    for row in rows:
        found.follow(row)
    return outline, found


def between_passes(monkeypatch: pytest.MonkeyPatch, what: Callable[[], None]) -> None:
    found: Any = Outline.axis

    def what_and_axis(outline: Outline) -> Any:
        what()
        return found.fget(outline)

    monkeypatch.setattr(Outline, "axis", property(what_and_axis))


@pytest.mark.parametrize("seed", range(2))
def test_history_of_many_dates_is_that_of_all_rows_at_once(tmp_path: Path, seed: int) -> None:
    for rows in (
        made_rows(9, seed),
        made_rows(4, seed + 10, farm_id="08" * 16),
        made_rows(3, seed + 20, farm="barn", farm_id="09" * 16),
    ):
        write_in_batches(tmp_path, rows, seed, most=60)
        write_in_batches(tmp_path, rows[20:90], seed + 1, most=50)  # a second checkpoint
    all_rows = naive_history.rows_of(tmp_path)
    by_day, by_hour = (naive_history.figures(all_rows, period_ms) for period_ms in (DAY_MS, HOUR_MS))
    assert list(stored(tmp_path, "day")) == by_day
    assert list(stored(tmp_path, "hour")) == by_hour
    of_barn = [line for line in by_day if line["farm"] == "barn"]
    assert of_barn
    assert list(stored(tmp_path, "day", "barn")) == of_barn
    list(compact(tmp_path))
    assert list(stored(tmp_path, "day")) == by_day


@pytest.mark.parametrize("days", [None, 2.5])
def test_charts_are_those_of_all_rows_at_once(tmp_path: Path, days: float | None) -> None:
    rows = made_rows(9, 1)
    write_in_batches(tmp_path, rows, 1)
    kept = naive_history.rows_of(tmp_path)
    begin_ms = 0
    if days is not None:
        begin_ms = max(row["farm_time_ms"] for row in rows) - round(days * DAY_MS)
        kept = naive_history.newest_days(kept, days)
    outline, found = charts(tmp_path, HOUR_MS, begin_ms)
    spans = [*naive_history.spans(kept)]
    axis = naive_history.axis_of(spans)
    assert outline.axis == axis
    assert (outline.first_index, outline.last_index) == (kept[0]["log_index"], kept[-1]["log_index"])
    changes = [one["publisher"] != other["publisher"] for one, other in pairwise(kept)]
    assert outline.changes_of_publisher == sum(changes)
    scores = [score for span in spans for score in span.row["scores"].values()]
    assert outline.scores == [min(scores), max(scores)]
    told = [row["log_index"] for row in kept if {*row["changed"]} - {"order"}][-100:]
    assert [change.row["log_index"] for change in outline.changes] == told
    whole = naive_history.figures(kept, WHOLE_MS)
    assert [{"farm": "farm", "farm_id": FARM_ID, **each} for each in found.all_time.rest()] == whole
    by_hour = naive_history.figures(kept, HOUR_MS)
    for each in whole:
        member = each["member"]
        assert found.lanes[member].stretches() == naive_history.lane(axis, spans, member)
        scale = (0, 1_000_000), 1_000_000
        assert found.curves[member].lines(*scale) == naive_history.lines(axis, spans, member, *scale)
        titles = [bar.title for bar in found.bars(member, 36)]
        assert len(titles) == len([one for one in by_hour if one["member"] == member and one["known_ms"]])


def test_percentiles_of_a_long_time_are_exact_though_scores_are_counted_in_parts(tmp_path: Path) -> None:
    rows = made_rows(40, 4)
    write(tmp_path, rows)
    outline, found = charts(tmp_path, DAY_MS)
    for member in outline.members:
        assert len(outline.all_time.sums[member].scores) <= 401
        assert len(found.all_time.sums[member].scores) < 450
    assert [each["score_p05"] for each in found.all_time.rest()] == [
        each["score_p05"] for each in naive_history.figures(rows, WHOLE_MS)
    ]


def test_bars_of_a_long_time_are_of_several_periods(tmp_path: Path) -> None:
    write(tmp_path, made_rows(130, 5, a_day=12))
    _, found = charts(tmp_path, HOUR_MS)
    assert found.periods_a_bar == 4
    assert overview.MOST_BARS / 2 < len(found.bars(1, 36)) <= WIDTH
    assert "Availability by 4 hours" in report(tmp_path)
    assert "Availability by day<" in report(tmp_path, by="day")


def test_report_of_the_newest_days_opens_only_their_dates(tmp_path: Path) -> None:
    rows = made_rows(9, 6)
    write_in_batches(tmp_path, rows, 6)
    dates = sorted(path.name for path in tmp_path.glob("farm=farm/date=*"))
    expected = report(tmp_path, days=2)
    for date in dates[:4]:
        (tmp_path / "farm=farm" / date / "0.parquet").write_text("rubbish")
    assert report(tmp_path, days=2) == expected
    with pytest.raises(ConfigError, match="has files that are not rankings"):
        report(tmp_path)
    begin, end = re.findall(r"<p>(\S+) \S+ to (\S+) \S+ UTC", expected)[0]
    assert dates[-4] < f"date={begin}" < f"date={end}" <= dates[-1]


def test_first_change_of_the_newest_days_is_one_from_the_row_before(tmp_path: Path) -> None:
    rows = [
        {**row, "farm_time_ms": T0 + number * HOUR_MS, "recent": [1, 2, 3], "changed": []}
        for number, row in enumerate(made_rows(3, 7)[:60])
    ]
    for row in rows[36:]:
        row["recent"] = [1, 2]
    rows[36]["changed"] = ["recency"]
    write_in_batches(tmp_path, rows, 7)
    page = report(tmp_path, days=23 / 24)  # begins at that row
    assert "no longer recent: 3" in page
    assert "recent now" not in page


def test_state_that_a_second_query_begins_with_is_no_change_of_publisher(tmp_path: Path) -> None:
    rows = made_rows(3, 7)[:20]
    for row in rows:
        row |= {"publisher": 1, "holders": [1], "changed": []}
    rows[10]["changed"] = ["publisher", "holders", "recency", "order", "policy"]
    rows[15] |= {"publisher": 2, "changed": ["publisher"]}
    write(tmp_path, rows)
    page = report(tmp_path)
    assert page.count("member 2 publishes, after 1") == 1
    assert "member 1 publishes, after 1" not in page
    assert "2 changes of publisher" in page
    assert "taken back" not in page


def test_rows_of_many_dates_are_read_from_few_files_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where dates meet: farm time goes back by two hours there, so files of two dates overlap."""
    write_in_batches(tmp_path, made_rows(30, 8), 8, most=30)
    opened = most = 0

    class Counted(pyarrow.parquet.ParquetFile):
        def __init__(self, *given: Any, **options: Any) -> None:
            nonlocal opened, most
            super().__init__(*given, **options)
            opened += 1
            most = max(most, opened)

        def __exit__(self, *given: Any) -> None:
            nonlocal opened
            super().__exit__(*given)
            opened -= 1

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", Counted)
    assert len(list(tmp_path.glob("*/*/*.parquet"))) > 70
    assert len(list(stored(tmp_path, "day"))) > 100
    assert 0 < most <= 3
    assert opened == 0


def test_rows_that_come_between_the_passes_of_a_report_do_not_break_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second query stores the log from its beginning meanwhile."""
    rows = made_rows(9, 9)
    write_in_batches(tmp_path, rows[100:200], 9)
    expected = report(tmp_path)
    others = [*rows[:100], *rows[200:]]
    between_passes(monkeypatch, lambda: write_in_batches(tmp_path, others, 9))
    assert report(tmp_path) == expected


def test_dates_that_are_deleted_while_a_report_is_made_do_not_break_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = made_rows(3, 9)
    write_in_batches(tmp_path, rows, 9)
    oldest = min(tmp_path.glob("farm=farm/date=*"))
    between_passes(monkeypatch, lambda: shutil.rmtree(oldest, ignore_errors=True))
    assert "Changes, newest first" in report(tmp_path)


def test_curve_of_a_member_is_broken_while_it_is_away() -> None:
    """Its score stays that of its last status."""
    rows = [
        {
            **row,
            "farm_time_ms": T0 + place * 600_000,
            "recent": [1] if 60 <= place < 120 else [1, 2],
            "scores": {1: 600_000, 2: 650_000},
        }
        for place, row in enumerate(made_rows(1, 1, a_day=180))
    ]
    outline, found = charts_of(rows, HOUR_MS)
    always, away = (found.curves[member].lines((500_000, 700_000), 100) for member in (1, 2))
    assert (len(always), len(away)) == (1, 2)
    begin, end = (outline.axis.x(rows[place]["farm_time_ms"]) for place in (60, 120))
    assert float(away[0].split()[-1].split(",")[0]) <= begin + 1
    assert float(away[1].split(",")[0]) >= end - 1
