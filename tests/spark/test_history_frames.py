"""What the history of a log costs a process of Spark's: small frames, and no ranking. Needs no Java."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

import pandas

from garlicfarm.publishing.application import PublisherApplication
from garlicfarm_plugin_spark import history_query
from garlicfarm_plugin_spark.history import Course
from garlicfarm_plugin_spark.ranking import Fold
from tests.spark.script import many_entries

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000
FRAME_ROWS = 7
LOG = many_entries(300)


class FakeState:
    """Spark's state of one key, before the first batch."""

    exists = False
    found: tuple[Any, ...] = ()

    def update(self, found: tuple[Any, ...]) -> None:
        self.found = found


def test_history_of_a_log_comes_in_frames_and_makes_no_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(each.index, each.term, int(each.value_type), each.value) for each in LOG]
    course, whole = Course(), Fold("farm")
    expected = [
        (row["farm"], "07", *share)
        for row in whole.rankings(rows, "changes")
        for share in course.follow({**row, "farm_id": "07"}, HOUR_MS)
    ]
    batch = pandas.DataFrame(
        [("farm", "07", *row) for row in rows],
        columns=["farm", "farm_id", "log_index", "term", "value_type", "value"],
    )

    def ranking(farm: PublisherApplication) -> dict[str, object]:
        raise AssertionError("a history has no use for it")

    monkeypatch.setattr(PublisherApplication, "ranking", ranking)
    monkeypatch.setattr(history_query, "_FRAME_ROWS", FRAME_ROWS)
    state: Any = FakeState()
    frames = [*history_query._of_log(("07",), iter([batch]), state, period_ms=HOUR_MS)]
    assert len(frames) == -(-len(expected) // FRAME_ROWS)
    assert all(0 < len(frame) <= FRAME_ROWS for frame in frames)
    assert [tuple(row) for frame in frames for row in frame.itertuples(index=False)] == expected
    assert state.found[:2] == (whole.index, whole.snapshot())
