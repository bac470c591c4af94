"""When `garlicfarm rank` starts a failed query again, how soon, and when it gives up; no Java runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm.errors import FellBehind, GarlicFarmError, UnreachableError
from garlicfarm_plugin_spark.feed import Nodes
from garlicfarm_plugin_spark.job import Job
from garlicfarm_plugin_spark.rank_metrics import RankMetrics
from garlicfarm_plugin_spark.runner import QueryRunner

pytestmark = pytest.mark.spark


class Notes:
    """A viewer that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def ranking(self, farm: str, text: str, skipped: Mapping[str, int]) -> None:
        raise AssertionError

    def progress(self, farm: str, index: int | None, commit_index: int | None) -> None:
        pass

    def verified(self, count: int) -> None:
        pass

    def note(self, text: str) -> None:
        self.said.append(text)


class FailingQuery(QueryRunner):
    """Fails of the same each time; nothing of Spark's runs."""

    def __init__(self, error: GarlicFarmError, *, once: bool) -> None:
        self.notes = Notes()
        self.error = error
        session: Any = SimpleNamespace(alive=True)
        job = Job(Nodes((), "", "u", Path("p")), ("farm",), "/kept", Path("/scratch"), once=once)
        super().__init__(job, self.notes, session, lambda: session, RankMetrics())

    async def _query(self) -> GarlicFarmError | None:
        return self.error

    def pauses(self) -> list[int]:
        return [int(re.findall(r"starts again in (\d+) s: ", text)[0]) for text in self.notes.said]


async def test_query_that_fails_each_time_is_started_again_less_and_less_often_then_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    runner = FailingQuery(GarlicFarmError("IOException: No space left on device"), once=False)
    with pytest.raises(GarlicFarmError) as raised:
        await runner.run()
    assert str(raised.value) == (
        "the query failed 6 times in a row: IOException: No space left on device; where a disk is full, make"
        " room; where the checkpoint /kept is damaged, name a new one"
    )
    assert runner.pauses() == [1, 2, 4, 8, 16]


async def test_query_without_nodes_is_started_again_for_ever_and_once_six_times(
    autojump_clock: trio.testing.MockClock,
) -> None:
    away = UnreachableError("nobody", "is the node running?")
    runner = FailingQuery(away, once=False)
    with trio.move_on_after(1000) as scope:
        await runner.run()
    assert scope.cancelled_caught
    assert runner.pauses()[:8] == [1, 2, 4, 8, 16, 30, 30, 30]
    runner = FailingQuery(away, once=True)
    with pytest.raises(UnreachableError):
        await runner.run()
    assert runner.pauses() == [1, 2, 4, 8, 16]


async def test_query_whose_entries_are_gone_is_not_started_again() -> None:
    runner = FailingQuery(FellBehind("gone"), once=False)
    with pytest.raises(FellBehind, match="gone"):
        await runner.run()
    assert runner.notes.said == []


async def test_sink_whose_file_system_is_away_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at whenever the query is started."""
    session: Any = SimpleNamespace(alive=True)
    job = Job(Nodes((), "", "u", Path("p")), ("farm",), "/kept", Path("/scratch"))
    runner = QueryRunner(job, Notes(), session, lambda: session, RankMetrics())
    away = UnreachableError("the file system of hdfs://name/rows does not answer")

    def start(emit: object) -> None:
        raise away

    monkeypatch.setattr(runner, "_start", start)
    assert await runner._query() is away
