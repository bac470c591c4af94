from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import trio

from garlicfarm.errors import Compacted, FellBehind
from garlicfarm.feed.pages import PageReader, reader_limiter
from garlicfarm.feed.source import EntryStream
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType


class FakeReader:
    """Stands for the store: notes who reads, and how many at a time."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.threads: set[int] = set()
        self.at_once = self.most_at_once = 0
        self.first_index = 4
        self.pause = threading.Event()

    def entries(self, after: int, upto: int, max_bytes: int) -> Sequence[Entry]:
        if after < self.first_index - 1:
            raise Compacted(self.first_index)
        self.threads.add(threading.get_ident())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.pause.wait(0.002)
        self.at_once -= 1
        self.asked.append((after, upto, max_bytes))
        return [Entry(after + 1, 1, ValueType.APPLICATION, b"x")]


async def test_piece_read_comes_from_a_worker_thread() -> None:
    store = FakeReader()
    reader = PageReader(store, reader_limiter())  # type: ignore[arg-type]
    assert [entry.index for entry in await reader.read(7, 9, 50)] == [8]
    assert store.asked == [(7, 9, 50)]
    assert threading.get_ident() not in store.threads
    with pytest.raises(Compacted):
        await reader.read(2, 9, 50)


async def test_readers_of_all_farms_take_turns() -> None:
    limiter = reader_limiter()
    store = FakeReader()
    readers = [PageReader(store, limiter) for _ in range(4)]  # type: ignore[arg-type]

    async def drain(reader: PageReader) -> None:
        for after in range(3, 13):
            await reader.read(after, 20, 1)

    async with trio.open_nursery() as nursery:
        for reader in readers:
            nursery.start_soon(drain, reader)
    assert len(store.asked) == 40
    assert store.most_at_once == 1


class Log:
    """A log that grows, read by `EntryStream`."""

    def __init__(self) -> None:
        self.store = FakeReader()
        self.pages = PageReader(self.store, reader_limiter())  # type: ignore[arg-type]
        self.commit = 6
        self.grown = trio.Event()

    def grow(self, commit: int) -> None:
        self.commit = commit
        self.grown.set()

    async def wait_commit(self, beyond: int) -> int:
        while self.commit <= beyond:
            await self.grown.wait()
        return self.commit

    def stream(self, after: int, upto: int | None = None) -> EntryStream:
        return EntryStream(self.pages.read, self.wait_commit, after, 99, upto)


async def test_stream_of_a_range_ends_at_its_end() -> None:
    log = Log()
    assert [entries[0].index async for entries in log.stream(3, 5)] == [4, 5]
    assert log.store.asked == [(3, 5, 99), (4, 5, 99)]
    assert [entries async for entries in log.stream(5, 5)] == []


async def test_stream_without_an_end_waits_for_commits(autojump_clock: trio.testing.MockClock) -> None:
    log = Log()
    stream = log.stream(4)
    assert [(await anext(stream))[0].index for _ in range(2)] == [5, 6]
    with trio.move_on_after(1) as scope:
        await anext(stream)
    assert scope.cancelled_caught
    log.grow(7)
    assert (await anext(stream))[0].index == 7


async def test_stream_overtaken_by_the_retention_fell_behind() -> None:
    log = Log()
    with pytest.raises(Compacted) as caught:
        await anext(log.stream(2))
    assert caught.value.first_index == 4
    stream = log.stream(3)
    await anext(stream)
    log.store.first_index = 6
    with pytest.raises(FellBehind, match="after 4"):
        await anext(stream)


async def test_pages_are_read_beside_the_loop_that_sends_the_heartbeats() -> None:
    threads = []

    class Reader:
        def entries(self, after: int, upto: int, max_bytes: int) -> list[Entry]:
            threads.append(threading.get_ident())
            return []

        def surplus(self, upto: int, keep_entries: int, keep_bytes: int) -> int:
            threads.append(threading.get_ident())
            return 0

    pages = PageReader(Reader(), trio.CapacityLimiter(1))
    await pages.read(0, 1, 100)
    await pages.surplus(1, 1, 1)
    assert len(threads) == 2
    assert threading.get_ident() not in threads
