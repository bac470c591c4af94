"""What all watchers of a farm share, without sockets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
import trio
import trio.testing

from garlicfarm.admin import live_events
from garlicfarm.admin.live_events import Lines, LiveEvents, Records, Watcher
from garlicfarm.errors import Compacted
from garlicfarm.raft.types import Entry
from tests.admin.fake_node import FakeFarm


@pytest.fixture
def farm() -> FakeFarm:
    return FakeFarm()


@pytest.fixture
def live(farm: FakeFarm) -> LiveEvents:
    return LiveEvents(cast(Any, farm), lambda: True)


LINES, RECORDS = Lines(), Records()


def ignore(entries: int) -> None:
    pass


async def indexes(watcher: Watcher) -> list[int]:
    frame = await watcher.next()
    return [json.loads(line)["index"] for line in frame[frame.index(b"{") :].splitlines()]


def noted_reads(farm: FakeFarm) -> list[tuple[int, int]]:
    """What is read from now on: after which index, up to which."""
    reads = list[tuple[int, int]]()
    read = farm.read

    async def noted(after: int, upto: int, max_bytes: int) -> Sequence[Entry]:
        reads.append((after, upto))
        return await read(after, upto, max_bytes)

    farm.read = noted  # type: ignore[method-assign]
    return reads


async def test_watchers_at_any_place_share_what_was_read_and_encoded_once(farm, live, autojump_clock):
    reads = noted_reads(farm)
    with live.watcher(0, ["entry"], LINES, ignore) as first:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.pump)
            for _ in range(4):
                farm.commit(b"x")
            assert await indexes(first) == [1, 2, 3, 4]
            for after in range(4):
                with live.watcher(after, ["entry"], LINES, ignore) as late:
                    assert await indexes(late) == [*range(after + 1, 5)]
            assert reads == [(0, 4)]
            nursery.cancel_scope.cancel()


async def test_first_watcher_of_entries_during_a_read_for_others_gets_each_once(
    farm, live, autojump_clock, nursery
):
    read, may_read = farm.read, trio.Event()

    async def slow(after: int, upto: int, max_bytes: int) -> Sequence[Entry]:
        await may_read.wait()
        return await read(after, upto, max_bytes)

    farm.read = slow  # type: ignore[method-assign]
    nursery.start_soon(live.pump)
    with live.watcher(0, ["entry"], LINES, ignore):
        farm.commit(b"1")
        farm.commit(b"2")
        await trio.testing.wait_all_tasks_blocked()
    for _ in range(3):
        farm.commit(b"x")
    with live.watcher(5, ["entry"], LINES, ignore) as late:
        may_read.set()
        await trio.testing.wait_all_tasks_blocked()
        farm.commit(b"6")
        assert await indexes(late) == [6]
        farm.commit(b"7")
        assert await indexes(late) == [7]


async def test_pump_is_taken_over_when_its_watcher_leaves(farm, live, autojump_clock, nursery):
    first = await nursery.start(_pumping, live)
    nursery.start_soon(live.pump)
    with live.watcher(0, ["entry"], LINES, ignore) as watcher:
        farm.commit(b"1")
        assert await indexes(watcher) == [1]
        first.cancel()
        farm.commit(b"2")
        assert await indexes(watcher) == [2]


async def _pumping(live: LiveEvents, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await live.pump()


@pytest.mark.parametrize(("watchers", "size_bytes"), [(1, 1), (50, 1), (3, 300_000)])
async def test_watchers_together_are_sent_no_more_than_their_share_and_all_of_it(
    farm, live, autojump_clock, watchers, size_bytes
):
    """On the clock of the test: an entry each millisecond, for a second."""
    sent, last = [(trio.current_time(), 0)], dict.fromkeys(range(watchers), 0)

    async def count(number: int) -> None:
        with live.watcher(0, ["entry"], RECORDS, ignore) as watcher:
            while True:
                data = await watcher.next()
                sent.append((trio.current_time(), len(data)))
                last[number] = watcher.position

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live.pump)
        for number in range(watchers):
            nursery.start_soon(count, number)
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()
        for _ in range(1000):
            farm.commit(bytes(size_bytes))
            await trio.sleep(0.001)
        most = trio.current_time() + 2.5 * live_events.REST_PER_MESSAGE_S * watchers + live_events.REST_S
        share = 1 / live_events.REST_PER_MESSAGE_S
        while min(last.values()) < 1000:  # noqa: ASYNC110 - on the clock of the test
            await trio.sleep(0.01)
        took = trio.current_time() - begun
        nursery.cancel_scope.cancel()
    messages, size = len(sent) - 1, sum(each for _, each in sent)
    assert messages <= share * took + watchers
    assert size <= live_events.BYTES_PER_S * took + 300_100 * watchers
    if size_bytes == 1:
        assert trio.current_time() <= most, "they keep up"
        assert messages >= share / 2 or watchers == 1


async def test_watchers_that_fall_behind_together_still_share_what_is_read(farm, live, autojump_clock):
    reads = noted_reads(farm)
    last = dict.fromkeys(range(20), 0)

    class CountingRecords(Records):
        encoded = 0

        def entries(self, entries: Sequence[Entry]) -> bytes:
            self.encoded += 1
            return super().entries(entries)

    form = CountingRecords()

    async def follow(number: int) -> None:
        with live.watcher(0, ["entry"], form, ignore) as watcher:
            while True:
                await watcher.next()
                last[number] = watcher.position

    async with trio.open_nursery() as nursery:
        for _ in last:  # as each has a pump
            nursery.start_soon(live.pump)
        for number in last:
            nursery.start_soon(follow, number)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(300):
            farm.commit(bytes(100_000))
        while min(last.values()) < 300:  # noqa: ASYNC110 - on the clock of the test
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert len(reads) == form.encoded == 300 / 2, "each piece of two entries, once"


async def test_snapshot_of_the_leader_ends_those_behind_it_alone(farm, live, autojump_clock, nursery):
    nursery.start_soon(live.pump)
    with (
        live.watcher(0, ["entry"], LINES, ignore) as behind,
        live.watcher(9, ["entry"], LINES, ignore) as ahead,
    ):
        await trio.testing.wait_all_tasks_blocked()
        farm.log.clear()
        farm.first_index = 10  # entries 1 to 9 are in the snapshot
        farm.tell()
        with pytest.raises(Compacted):
            await indexes(behind)
        farm.commit(b"10")
        assert await indexes(ahead) == [10]


async def test_watchers_that_read_an_old_log_leave_the_farm_its_time_as_well(farm, live, autojump_clock):
    for _ in range(300):
        farm.commit(bytes(100_000))
    sizes = list[int]()

    async def catch_up() -> None:
        with live.watcher(0, ["entry"], RECORDS, ignore) as watcher:
            while watcher.position < 300:
                sizes.append(len(await watcher.next()))

    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(catch_up)
    took = trio.current_time() - begun
    assert sum(sizes) >= 3 * 300 * 100_000
    least = sum(sizes) / live_events.BYTES_PER_S + len(sizes) * live_events.REST_PER_MESSAGE_S
    assert least * 0.95 <= took <= least * 1.05
