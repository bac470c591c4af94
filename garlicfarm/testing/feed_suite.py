"""The checks that every feed plugin has to pass.

For the author of a plugin::

    from garlicfarm.feed import FeedSite
    from garlicfarm.testing import FeedSuite

    class TestMyFeed(FeedSuite):
        @pytest.fixture
        def feed(self, tmp_path):
            site = FeedSite(farm="farm", node_id=1, name="my-feed", directory=tmp_path / "site")
            return MyFeed(MyFeed.Config(address="…"), tmp_path, site)

The suite runs the feed itself, over a `MemorySource`. Override `arrived` and `unreachable_feed` too, where
you can. Needs pytest-trio with ``trio_mode = true``, and a system with /dev/fd.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

from garlicfarm.errors import Compacted, FeedError, LocalProtocolError
from garlicfarm.feed.contract import Feed
from garlicfarm.feed.source import EntryStream
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType

PATIENCE_S = 120.0
"""A guard against hanging."""
MAX_PIECE_BYTES = 16 << 20
TERM = 1


class MemorySource:
    """A `garlicfarm.feed.contract.FeedSource` over a log in memory, for one feed.

    ``epoch_length`` may be changed before the feed runs. ``asked_bytes``: how much the feed asked for at
    once, each time. ``read_index`` and ``problem``: what it reported last.
    """

    farm = "farm"
    farm_id = bytes(range(16))

    def __init__(self) -> None:
        self.is_leader = True
        self.first_index = 1
        self.epoch_length = 100_000
        self.asked_bytes: list[int] = []
        self.read_index = 0
        self.problem = ""
        self._log: list[Entry] = []
        self._changed = trio.Event()

    @property
    def commit_index(self) -> int:
        return len(self._log)

    def commit(self, *values: bytes, value_type: ValueType = ValueType.APPLICATION) -> int:
        """Commit more entries; the index of the last one."""
        for value in values:
            self._log.append(Entry(len(self._log) + 1, TERM, value_type, value))
        self._wake()
        return len(self._log)

    def compact(self, upto: int) -> None:
        """Delete the entries up to ``upto``."""
        self.first_index = upto + 1

    def lead(self, is_leader: bool) -> None:
        """Become the leader, or cease to be it."""
        self.is_leader = is_leader
        self._wake()

    def entries(
        self, after: int, max_bytes: int, *, upto: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        self.asked_bytes.append(max_bytes)
        return EntryStream(self._read, self._wait_commit, after, max_bytes, upto)

    def count_entries(self, index: int) -> int:
        if index < self.first_index - 1:
            raise Compacted(self.first_index)
        if index > self.commit_index:
            raise LocalProtocolError(f"{index} is behind the last index, {self.commit_index}")
        return sum(entry.value_type is ValueType.APPLICATION for entry in self._log[:index])

    def find_entry(self, number: int) -> int:
        numbered = [each.index for each in self._log if each.value_type is ValueType.APPLICATION]
        if number >= len(numbered):
            raise LocalProtocolError(f"there is no entry of number {number} yet")
        if numbered[number] < self.first_index:
            raise Compacted(self.first_index)
        return numbered[number]

    def report_read(self, index: int) -> None:
        assert 0 <= index <= self.commit_index, f"the feed reports {index} of {self.commit_index}"
        self.read_index = max(self.read_index, index)
        self._wake()

    def report_problem(self, problem: str) -> None:
        assert problem.isprintable()
        self.problem = problem
        self._wake()

    async def wait_leader_change(self) -> None:
        led = self.is_leader
        while self.is_leader is led:
            await self._changed.wait()

    async def wait_read(self, index: int) -> None:
        """Return once the feed has reported ``index``."""
        while self.read_index < index:
            await self._changed.wait()

    async def wait_problem(self) -> str:
        """The problem that the feed reports, once it has one."""
        while not self.problem:
            await self._changed.wait()
        return self.problem

    async def _wait_commit(self, beyond: int) -> int:
        while self.commit_index <= beyond:
            await self._changed.wait()
        return self.commit_index

    async def _read(self, after: int, upto: int, max_bytes: int) -> Sequence[Entry]:
        await trio.lowlevel.checkpoint()
        if after < self.first_index - 1:
            raise Compacted(self.first_index)
        found: list[Entry] = []
        for entry in self._log[after:upto]:
            max_bytes -= len(entry.value) + 21
            if max_bytes < 0 and found:
                break
            found.append(entry)
        return found

    def _wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()


class FeedSuite:
    """Subclass it and define the fixture `feed`."""

    @pytest.fixture
    def feed(self) -> Feed:
        """A feed in working order, made and not run."""
        raise NotImplementedError("define the fixture `feed`")

    @pytest.fixture
    def arrived(self) -> Callable[[], Awaitable[Sequence[bytes]]] | None:
        """Returns the values that have arrived where `feed` sends them, in order; ``None`` skips those
        checks."""
        return None

    @pytest.fixture
    def arrivals(
        self, arrived: Callable[[], Awaitable[Sequence[bytes]]] | None
    ) -> Callable[[], Awaitable[Sequence[bytes]]]:
        """`arrived`, for a check that needs it."""
        if arrived is None:
            pytest.skip("no fixture arrived")
        return arrived

    @pytest.fixture
    def unreachable_feed(self) -> Feed:
        """A feed of the same class whose other side does not answer; without it, that check is skipped."""
        pytest.skip("no fixture unreachable_feed")

    @pytest.fixture
    def source(self) -> MemorySource:
        """The farm that it reads, with some entries of all types."""
        source = MemorySource()
        source.commit(b"members", value_type=ValueType.CONFIGURATION)
        source.commit(b"first", b"", "größer".encode(), b"\x00\xff", bytes(1000))
        return source

    async def test_class_declares_api_version_and_config(self, feed: Feed) -> None:
        assert type(feed).api_version == 1
        assert issubclass(type(feed).Config, msgspec.Struct)
        assert isinstance(feed.config, type(feed).Config)

    async def test_signature_is_that_of_the_contract(self, feed: Feed) -> None:
        assert inspect.iscoroutinefunction(feed.run)
        assert [*inspect.signature(feed.run).parameters] == ["source", "task_status"]

    async def test_committed_entries_are_passed_on_and_later_ones_too(
        self, feed: Feed, source: MemorySource
    ) -> None:
        async with _running(feed, source):
            await source.wait_read(source.commit_index)
            await source.wait_read(source.commit(b"later"))
            await source.wait_read(source.commit(b"members", value_type=ValueType.CONFIGURATION))

    async def test_entries_arrive_once_and_in_order(
        self, feed: Feed, source: MemorySource, arrivals: Callable[[], Awaitable[Sequence[bytes]]]
    ) -> None:
        values = [b"entry %d" % number for number in range(300)]
        async with _running(feed, source):
            for start in range(0, 300, 50):
                await source.wait_read(source.commit(*values[start : start + 50]))
            assert [value for value in await arrivals() if value.startswith(b"entry ")] == values

    async def test_feed_run_again_leaves_nothing_out(
        self, feed: Feed, source: MemorySource, arrived: Callable[[], Awaitable[Sequence[bytes]]] | None
    ) -> None:
        values = [b"entry %d" % number for number in range(20)]
        found: list[bytes] = []
        for start in range(0, 20, 10):
            source.commit(*values[start : start + 5])  # while it does not run
            async with _running(feed, source):
                await source.wait_read(source.commit(*values[start + 5 : start + 10]))
                if arrived is not None:
                    found = [value for value in await arrived() if value.startswith(b"entry ")]
        assert arrived is None or [*dict.fromkeys(found)] == values

    @pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.005])
    async def test_cancelled_feed_can_be_run_again(
        self, feed: Feed, source: MemorySource, after_s: float
    ) -> None:
        with trio.move_on_after(after_s):
            async with trio.open_nursery() as nursery:
                await nursery.start(feed.run, source)
        async with _running(feed, source):
            await source.wait_read(source.commit(b"later"))

    async def test_log_that_begins_late_is_read_from_there(self, feed: Feed, source: MemorySource) -> None:
        source.compact(3)
        async with _running(feed, source):
            await source.wait_read(source.commit(b"later"))

    async def test_feed_goes_on_through_changes_of_the_leader(self, feed: Feed, source: MemorySource) -> None:
        async with _running(feed, source):
            for is_leader in (False, True, False, True):
                source.lead(is_leader)
                await source.wait_read(source.commit(b"entry"))

    async def test_entries_are_read_in_bounded_pieces(self, feed: Feed, source: MemorySource) -> None:
        async with _running(feed, source):
            await source.wait_read(source.commit_index)
        assert max(source.asked_bytes) <= MAX_PIECE_BYTES

    async def test_end_closes_what_was_opened(self, feed: Feed, source: MemorySource) -> None:
        opened = []
        for _ in range(2):  # the first turn opens what the process keeps
            async with _running(feed, source):
                await source.wait_read(source.commit(b"entry"))
            opened.append(_opened())
        (descriptors, tasks), (descriptors_then, tasks_then) = opened
        with trio.move_on_after(PATIENCE_S):  # threads close later, and so does another side in this process
            while descriptors_then > descriptors or tasks_then > tasks:
                await trio.sleep(0.01)
                descriptors_then, tasks_then = _opened()
        assert descriptors_then <= descriptors, "descriptors stay open when the feed has ended"
        assert tasks_then <= tasks, "tasks go on when the feed has ended"

    async def test_unreachable_feed_says_so(self, unreachable_feed: Feed, source: MemorySource) -> None:
        """It raises `FeedError`, or reports a problem and goes on trying."""
        said = ""
        with trio.fail_after(PATIENCE_S):
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(nursery.start, unreachable_feed.run, source)
                    said = await source.wait_problem()
                    nursery.cancel_scope.cancel()
            except* FeedError as group:
                said = str(group.exceptions[0])
        assert said.strip()


def _opened() -> tuple[int, int]:
    """How many descriptors this process has open, and how many tasks Trio has."""
    return len(os.listdir("/dev/fd")), trio.lowlevel.current_statistics().tasks_living


@asynccontextmanager
async def _running(feed: Feed, source: MemorySource) -> AsyncIterator[None]:
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(feed.run, source)
            yield
            nursery.cancel_scope.cancel()
