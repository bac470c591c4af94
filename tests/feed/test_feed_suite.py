"""The suite for feed plugins passes one that keeps the contract, and notices each way not to keep it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
import trio
from trio.testing import MockClock

from garlicfarm.errors import FeedError
from garlicfarm.feed.contract import Feed, FeedSite, FeedSource
from garlicfarm.raft import Entry
from garlicfarm.testing.feed_suite import FeedSuite, MemorySource
from garlicfarm.wire.messages import ValueType

Arrived = Callable[[], Awaitable[Sequence[bytes]]]
tasks: list[trio.CancelScope] = []


class ListFeed(Feed):
    """Passes application entries on to a list."""

    Config = msgspec.Struct

    def __init__(self) -> None:
        site = FeedSite(farm="farm", node_id=1, name="list", directory=Path("unused"))
        super().__init__(msgspec.Struct(), Path(), site)
        self.values: list[bytes] = []
        self.index = 0

    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        task_status.started()
        async for entries in source.entries(max(self.index, source.first_index - 1), self.piece_bytes):
            self.take(source, entries)
            self.index = entries[-1].index
            source.report_read(self.index)
        raise AssertionError

    piece_bytes = 1 << 20

    def take(self, source: FeedSource, entries: Sequence[Entry]) -> None:
        self.values += [each.value for each in entries if each.value_type is ValueType.APPLICATION]


class TestListFeed(FeedSuite):
    @pytest.fixture
    def feed(self) -> ListFeed:
        self.made = ListFeed()
        return self.made

    @pytest.fixture
    def arrived(self) -> Arrived:
        async def arrived() -> list[bytes]:
            return self.made.values

        return arrived


class Repeats(ListFeed):
    def take(self, source: FeedSource, entries: Sequence[Entry]) -> None:
        super().take(source, entries)
        super().take(source, entries)


class TurnsRound(ListFeed):
    def take(self, source: FeedSource, entries: Sequence[Entry]) -> None:
        super().take(source, [*reversed(entries)])


class BeginsAtTheEnd(ListFeed):
    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        self.index = source.commit_index
        await super().run(source, task_status=task_status)


class ReadsAllAtOnce(ListFeed):
    piece_bytes = 1 << 40


class StopsAsFollower(ListFeed):
    def take(self, source: FeedSource, entries: Sequence[Entry]) -> None:
        if not source.is_leader:
            raise FeedError("not the leader")
        super().take(source, entries)


class BeginsAtTheBeginning(ListFeed):
    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        task_status.started()
        async for entries in source.entries(0, 1 << 20):
            source.report_read(entries[-1].index)
        raise AssertionError


class LeavesFilesOpen(ListFeed):
    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        self.left = [*getattr(self, "left", []), os.open("/dev/null", os.O_RDONLY)]
        await super().run(source, task_status=task_status)


async def wait_in(scope: trio.CancelScope) -> None:
    with scope:
        await trio.sleep_forever()


class LeavesTasks(ListFeed):
    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        tasks.append(trio.CancelScope())
        trio.lowlevel.spawn_system_task(wait_in, tasks[-1])
        await super().run(source, task_status=task_status)


async def check(name: str, feed: ListFeed) -> None:
    source = MemorySource()
    source.commit(b"members", value_type=ValueType.CONFIGURATION)
    source.commit(b"one", b"two", b"three", b"four")

    async def arrived() -> list[bytes]:
        return feed.values

    more = (arrived,) if "arrive" in name or "leaves_nothing_out" in name else ()
    await getattr(FeedSuite(), f"test_{name}")(feed, source, *more)


DEFECTS = {
    Repeats: "entries_arrive_once_and_in_order",
    TurnsRound: "entries_arrive_once_and_in_order",
    BeginsAtTheEnd: "feed_run_again_leaves_nothing_out",
    ReadsAllAtOnce: "entries_are_read_in_bounded_pieces",
    StopsAsFollower: "feed_goes_on_through_changes_of_the_leader",
    BeginsAtTheBeginning: "log_that_begins_late_is_read_from_there",
    LeavesFilesOpen: "end_closes_what_was_opened",
    LeavesTasks: "end_closes_what_was_opened",
}


@pytest.mark.parametrize("kind", DEFECTS)
async def test_defect_is_noticed(kind: type[ListFeed], autojump_clock: MockClock) -> None:
    await check(DEFECTS[kind], ListFeed())
    feed = kind()
    try:
        with pytest.raises((AssertionError, ExceptionGroup, trio.TooSlowError)):
            await check(DEFECTS[kind], feed)
    finally:
        for descriptor in getattr(feed, "left", []):
            os.close(descriptor)
        for scope in tasks:
            scope.cancel()
        tasks.clear()


async def test_feed_that_says_nothing_of_its_other_side_is_noticed(autojump_clock: MockClock) -> None:
    class Silent(ListFeed):
        async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
            await trio.sleep_forever()
            raise AssertionError

    class Says(ListFeed):
        async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
            source.report_problem("nothing answers")
            await trio.sleep_forever()
            raise AssertionError

    suite = FeedSuite()
    await suite.test_unreachable_feed_says_so(Says(), MemorySource())
    with pytest.raises(trio.TooSlowError):
        await suite.test_unreachable_feed_says_so(Silent(), MemorySource())
