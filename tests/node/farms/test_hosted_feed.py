"""What a node makes of a feed that ends, for whatever reason."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from garlicfarm.config import FeedSection
from garlicfarm.errors import FeedError, FellBehind
from garlicfarm.feed.contract import Feed, FeedSite, FeedSource
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import NodeMetrics
from garlicfarm.node.epochs import Epochs
from garlicfarm.node.hosted_feed import FIRST_WAIT_S, LONGEST_WAIT_S, STALL_S, HostedFeed, NodeFeedSource
from garlicfarm.raft import Entry, SnapshotMeta
from garlicfarm.wire.messages import Configuration, ValueType
from tests.running import background

Step = Callable[[FeedSource, trio.TaskStatus[None]], Awaitable[None]]


class ScriptedFeed(Feed):
    """Does one of ``steps`` each time that it is run, the last one for ever; ``runs_at``: when it was run."""

    Config = msgspec.Struct

    def __init__(self, *steps: Step) -> None:
        site = FeedSite(farm="farm", node_id=1, name="scripted", directory=Path("unused"))
        super().__init__(None, Path(), site)
        self._steps = [*steps]
        self.runs_at: list[float] = []

    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> Any:
        self.runs_at.append(trio.current_time())
        await (self._steps.pop(0) if len(self._steps) > 1 else self._steps[0])(source, task_status)


class Log:
    """As much of a replica as a source needs."""

    farm = "farm"
    applied_index = 40
    is_leader = False
    farm_id = bytes(16)
    epoch_length = 10

    def __init__(self) -> None:
        self.applied = SnapshotMeta(40, 1, Configuration(0, 0), 30)
        self._committed = trio.Event()

    def commit(self, index: int) -> None:
        self.applied_index = index
        self._committed.set()

    async def wait_applied(self, beyond: int) -> None:
        if self.applied_index <= beyond:
            await self._committed.wait()

    async def read(self, after: int, upto: int, max_bytes: int) -> list[Entry]:
        return [Entry(index, 1, ValueType.APPLICATION, b"") for index in range(after + 1, upto + 1)]

    @property
    def genesis(self) -> Log:
        return self

    def first_index(self) -> int:
        return 11


def fails(error: BaseException, after_s: float = 0.0) -> Step:
    async def step(source: FeedSource, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep(after_s)
        raise error

    return step


async def works(source: FeedSource, task_status: trio.TaskStatus[None]) -> None:
    task_status.started()
    await trio.sleep_forever()


class Hosted:
    def __init__(self, feed: ScriptedFeed) -> None:
        self.feed = feed
        self.metrics = NodeMetrics()
        log: Any = Log()
        self.log = log
        self.source = NodeFeedSource(log, log, log, Epochs(log, log, None))  # type: ignore[arg-type]
        section = FeedSection(plugin="scripted", name="mine")
        events = EventLogger(logging.getLogger("garlicfarm.test"), clock=trio.current_time)
        farm = self.metrics.farm("farm")
        self.hosted = HostedFeed(feed, section, self.source, farm, events, lambda: 0.5)

    @property
    def row(self) -> dict[str, Any]:
        return self.hosted.describe()

    def sample(self, name: str) -> float | None:
        self.hosted.collect()
        labels = {"farm": "farm", "reader": "mine"}
        return self.metrics.registry.get_sample_value(f"garlicfarm_{name}", labels)


@asynccontextmanager
async def hosted(*steps: Step) -> AsyncIterator[Hosted]:
    made = Hosted(ScriptedFeed(*steps))
    async with background(made.hosted.run):
        yield made


async def test_feed_that_fails_is_run_again_after_longer_and_longer(autojump_clock: MockClock) -> None:
    async with hosted(fails(FeedError("the tower does not answer"))) as running:
        await trio.sleep(2 * LONGEST_WAIT_S)
        runs_at = running.feed.runs_at
        waits = [round(then - now, 6) for now, then in pairwise(runs_at)]
        assert waits[:4] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S, 8 * FIRST_WAIT_S]
        assert max(waits) <= LONGEST_WAIT_S
        assert running.sample("feed_failures_total") == len(runs_at)


async def test_feed_that_worked_for_long_is_run_again_soon(autojump_clock: MockClock) -> None:
    breaks = fails(FeedError("broken"))
    async with hosted(
        breaks, breaks, breaks, fails(FeedError("broken"), 2 * LONGEST_WAIT_S), works
    ) as running:
        await trio.sleep(3 * LONGEST_WAIT_S)
        at = running.feed.runs_at
        assert at[4] - at[3] == pytest.approx(2 * LONGEST_WAIT_S + FIRST_WAIT_S)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (FeedError("the tower does not answer"), "the tower does not answer"),
        (
            FellBehind("the entries after 4 were not read in time"),
            "the entries after 4 were not read in time",
        ),
        (KeyError("x"), "KeyError: 'x'"),
        (ExceptionGroup("", [ExceptionGroup("", [FeedError("deep")])]), "deep"),
        (trio.TooSlowError("late"), "TooSlowError: late"),
        (FeedError(), "FeedError: "),
    ],
)
async def test_cause_of_an_end_is_logged_and_shown(
    error: Exception, cause: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with hosted(fails(error)) as running:
        await wait_all_tasks_blocked()
        assert running.row == {
            "name": "mine",
            "plugin": "scripted",
            "state": "failed",
            "index": None,
            "lag": 30,
            "problem": cause,
        }
    (record, *_) = caplog.records
    fields: Any = record
    assert fields.garlicfarm_fields == {
        "event": "feed-failed",
        "reader": "mine",
        "cause": cause,
        "again_s": FIRST_WAIT_S,
    }


async def test_feed_that_returns_has_failed(autojump_clock: MockClock) -> None:
    async def returns(source: FeedSource, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()

    async with hosted(returns, works) as running:
        await wait_all_tasks_blocked()
        assert running.row["problem"] == "it ended, which a feed never does"
        await trio.sleep(2 * FIRST_WAIT_S)
        assert (running.row["state"], running.row["problem"]) == ("running", None)


async def test_feed_that_ends_before_it_has_started_has_failed(autojump_clock: MockClock) -> None:
    async def returns(source: FeedSource, task_status: trio.TaskStatus[None]) -> None:
        return

    async with hosted(returns) as running:
        await wait_all_tasks_blocked()
        assert running.row["state"] == "failed"


async def test_feed_that_does_not_get_started_is_starting(autojump_clock: MockClock) -> None:
    async def waits(source: FeedSource, task_status: trio.TaskStatus[None]) -> None:
        source.report_problem("no tower answers at tcp://127.0.0.1:5556")
        await trio.sleep_forever()

    async with hosted(waits) as running:
        await trio.sleep(1000)
        assert running.row["state"] == "starting"
        assert running.row["problem"] == "no tower answers at tcp://127.0.0.1:5556"


async def test_problem_that_a_feed_reported_does_not_outlive_its_run(autojump_clock: MockClock) -> None:
    async def reports(source: FeedSource, task_status: trio.TaskStatus[None]) -> None:
        source.report_problem("no tower answers")
        raise FeedError("no tower has answered for a minute")

    async with hosted(reports, works) as running:
        await trio.sleep(2 * FIRST_WAIT_S)
        assert running.row["problem"] is None


async def test_lag_counts_from_what_the_feed_reported_and_from_what_is_stored(
    autojump_clock: MockClock,
) -> None:
    async with hosted(works) as running:
        await wait_all_tasks_blocked()
        assert running.sample("feed_lag_entries") == 30
        running.source.report_read(37)
        running.source.report_read(12)
        assert (running.row["index"], running.row["lag"]) == (37, 3)
        assert running.sample("feed_lag_entries") == 3
        running.source.report_read(40)
        assert running.sample("feed_lag_entries") == 0


async def test_feed_that_passes_nothing_on_while_entries_wait_has_a_problem(
    autojump_clock: MockClock,
) -> None:
    async with hosted(works) as running:
        await trio.sleep(STALL_S - 1)
        assert running.row["problem"] is None
        await trio.sleep(1)
        assert running.row["problem"] == "it has passed nothing on for 60 s"
        assert running.row["state"] == "running"
        running.source.report_read(37)
        assert running.row["problem"] is None
        running.source.report_read(36)
        await trio.sleep(STALL_S)
        assert running.row["problem"] == "it has passed nothing on for 60 s"


async def test_feed_that_had_nothing_to_pass_on_has_no_problem_at_the_next_entry(
    autojump_clock: MockClock,
) -> None:
    async def reads(source: FeedSource, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        source.report_read(40)
        async for _ in source.entries(40, 1000):
            await trio.sleep_forever()

    async with hosted(reads) as running:
        await trio.sleep(2 * STALL_S)
        running.log.commit(41)
        await trio.sleep(STALL_S - 1)
        assert (running.row["lag"], running.row["problem"]) == (1, None)
        await trio.sleep(1)
        assert running.row["problem"] == "it has passed nothing on for 60 s"


async def test_feed_that_only_reports_where_the_log_is_has_no_problem_at_the_next_entry(
    autojump_clock: MockClock,
) -> None:
    async with hosted(works) as running:
        running.source.report_read(40)
        await trio.sleep(2 * STALL_S)
        running.source.report_read(40)
        running.log.commit(41)
        assert (running.row["lag"], running.row["problem"]) == (1, None)


async def test_end_of_the_node_ends_the_feed_in_order(autojump_clock: MockClock) -> None:
    closed = []

    async def cleans_up(source: FeedSource, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            closed.append(True)

    async with hosted(cleans_up) as running:
        await wait_all_tasks_blocked()
        assert running.row["state"] == "running"
    assert closed == [True]


async def test_feed_of_epochs_is_refused_while_entries_are_not_counted(autojump_clock: MockClock) -> None:
    for has_epochs in (False, True):
        async with hosted(works) as running:
            running.feed.has_epochs = has_epochs  # type: ignore[misc]
            running.log.applied = SnapshotMeta(40, 1, Configuration(0, 0))
            await wait_all_tasks_blocked()
            assert running.row["state"] == ("failed" if has_epochs else "running")
            if has_epochs:
                assert running.row["problem"].startswith("the entries of this farm cannot be numbered here: ")
                assert not running.feed.runs_at
                running.log.applied = SnapshotMeta(41, 1, Configuration(0, 0), 31)  # a snapshot that counts
                await trio.sleep(2 * FIRST_WAIT_S)
                assert (running.row["state"], running.row["problem"]) == ("running", None)
