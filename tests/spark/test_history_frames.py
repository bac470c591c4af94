"""What a fold of a log costs a process of Spark's: small frames, and a history no ranking. Needs no Java."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

import pandas

from garlicfarm.errors import ConfigError
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm_plugin_spark import history_query, ranking
from garlicfarm_plugin_spark.history import History
from garlicfarm_plugin_spark.ranking import ENTRY, Fold, Rows
from tests.spark.script import fold_rows, many_entries

pytestmark = pytest.mark.spark

FRAME_ROWS = 7
ROWS = fold_rows(many_entries(300))


class FakeState:
    """Spark's state of one key, before the first batch."""

    exists = False
    found: tuple[Any, ...] = ()

    def update(self, found: tuple[Any, ...]) -> None:
        self.found = found


def test_history_of_a_log_comes_in_frames_and_makes_no_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Fold("farm")
    expected = [*History.by("hour").follow(whole.rankings(ROWS, "changes"), is_all=True)]
    batch = pandas.DataFrame([("farm", "07", *row) for row in ROWS], columns=ENTRY)

    def no_ranking(farm: PublisherFold) -> dict[str, object]:
        raise AssertionError("a history has no use for it")

    monkeypatch.setattr(PublisherFold, "ranking", no_ranking)
    monkeypatch.setattr(ranking, "_FRAME_ROWS", 3)
    follow = partial(history_query.follow_log, "hour", True)
    state: Any = FakeState()
    frames = [*ranking.fold_batch(follow, ("07",), iter([batch[90:], batch[:90]]), state)]
    assert [len(frame) for frame in frames] == [3, len(expected) - 3]
    found = [row for frame in frames for row in frame.to_dict("records")]
    assert found == [{"farm": "farm", "farm_id": "07", **line} for line in expected]
    assert state.found[:2] == (whole.index, whole.snapshot())


@pytest.mark.parametrize("kind", ["changes", "batches", "entries"])
def test_rankings_of_a_table_come_in_frames_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch, kind: Rows
) -> None:
    """Where a partition has two farms, and what is read at a time ends within either."""
    entries = [("barn", "05", *row) for row in ROWS[:100]] + [("farm", "07", *row) for row in ROWS]
    expected = [
        {**row, "farm_id": farm_id}
        for farm, farm_id, count in (("barn", "05", 100), ("farm", "07", len(ROWS)))
        for row in Fold(farm).rankings(ROWS[:count], kind)
    ]
    monkeypatch.setattr(ranking, "_FRAME_ROWS", FRAME_ROWS)
    read = [0]

    def parts() -> Iterator[pandas.DataFrame]:
        for begin in range(0, len(entries), 30):
            read[0] = begin
            yield pandas.DataFrame(entries[begin : begin + 30], columns=ENTRY)

    found: list[dict[str, Any]] = []
    for frame in ranking.fold_table(partial(ranking.rank, kind), parts()):
        assert 0 < len(frame) <= FRAME_ROWS
        found += frame.to_dict("records")
        if kind == "entries":
            assert read[0] - FRAME_ROWS <= len(found) <= read[0] + 30
    assert found == expected


def test_history_of_other_periods_is_refused() -> None:
    nothing: Any = None
    by: Any = "week"
    with pytest.raises(ConfigError, match="by is 'week', not hour, day"):
        history_query.history(nothing, by)
