"""What all watchers of a farm share, without sockets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
import trio
import trio.testing

from garlicfarm.admin import live_events
from garlicfarm.admin.live_events import LiveEvents, Watcher, json_line
from garlicfarm.errors import Compacted
from garlicfarm.raft.types import Entry
from tests.admin.fake_node import FakeFarm


@pytest.fixture
def farm() -> FakeFarm:
    return FakeFarm()


@pytest.fixture
def live(farm: FakeFarm) -> LiveEvents:
    return LiveEvents(cast(Any, farm), lambda: True)


def ignore(entries: int) -> None:
    pass


async def indexes(watcher: Watcher) -> list[int]:
    return [json.loads(line)["index"] for line in (await watcher.next()).splitlines()]


async def test_watchers_at_any_place_share_what_was_read_and_encoded_once(
    farm: FakeFarm, live: LiveEvents, autojump_clock: trio.testing.MockClock
) -> None:
    reads = list[tuple[int, int]]()
    read = farm.read

    async def noted(after: int, upto: int, max_bytes: int) -> Sequence[Entry]:
        reads.append((after, upto))
        return await read(after, upto, max_bytes)

    farm.read = noted  # type: ignore[method-assign]
    with live.watcher(0, ["entry"], json_line, ignore) as first:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.pump)
            for _ in range(4):
                farm.commit(b"x")
            assert await indexes(first) == [1, 2, 3, 4]
            for after in range(4):
                with live.watcher(after, ["entry"], json_line, ignore) as late:
                    assert await indexes(late) == [*range(after + 1, 5)]
            assert reads == [(0, 4)]
            nursery.cancel_scope.cancel()


async def test_first_watcher_of_entries_during_a_read_for_others_gets_each_once(
    farm: FakeFarm, live: LiveEvents, autojump_clock: trio.testing.MockClock
) -> None:
    read, may_read = farm.read, trio.Event()

    async def slow(after: int, upto: int, max_bytes: int) -> Sequence[Entry]:
        await may_read.wait()
        return await read(after, upto, max_bytes)

    farm.read = slow  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(live.pump)
        with live.watcher(0, ["entry"], json_line, ignore):
            farm.commit(b"1")
            farm.commit(b"2")
            await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            farm.commit(b"x")
        with live.watcher(5, ["entry"], json_line, ignore) as late:
            may_read.set()
            await trio.testing.wait_all_tasks_blocked()
            farm.commit(b"6")
            assert await indexes(late) == [6]
            farm.commit(b"7")
            assert await indexes(late) == [7]
        nursery.cancel_scope.cancel()


async def test_pump_is_taken_over_when_its_watcher_leaves(
    farm: FakeFarm, live: LiveEvents, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        first = await nursery.start(_pumping, live)
        nursery.start_soon(live.pump)
        with live.watcher(0, ["entry"], json_line, ignore) as watcher:
            farm.commit(b"1")
            assert await indexes(watcher) == [1]
            first.cancel()
            farm.commit(b"2")
            assert await indexes(watcher) == [2]
        nursery.cancel_scope.cancel()


async def _pumping(live: LiveEvents, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await live.pump()


async def test_many_watchers_are_sent_fewer_and_larger_messages(
    farm: FakeFarm, live: LiveEvents, autojump_clock: trio.testing.MockClock
) -> None:
    """On the clock of the test: an entry each millisecond, for a second."""
    sent: dict[int, int] = {}

    async def count(number: int, watcher: Watcher) -> None:
        with watcher_of[number]:
            while True:
                await watcher.next()
                sent[number] = sent.get(number, 0) + 1

    async def commit() -> None:
        for _ in range(1000):
            farm.commit(b"x")
            await trio.sleep(0.001)

    for number in (1, 50):
        watcher_of = [live.watcher(farm.commit_index, ["entry"], json_line, ignore) for _ in range(number)]
        sent.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.pump)
            for each, made in enumerate(watcher_of):
                watcher = made.__enter__()
                watcher_of[each] = _Left(made)  # type: ignore[call-overload]
                nursery.start_soon(count, each, watcher)
            await commit()
            nursery.cancel_scope.cancel()
        most = 1 / max(live_events.REST_S, live_events.REST_PER_WATCHER_S * number)
        assert len(sent) == number
        assert all(most / 2 <= each <= most + 1 for each in sent.values()), (number, sent)


class _Left:
    """Leaves what was entered already."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: Any) -> Any:
        return self._made.__exit__(None, None, None)


async def test_snapshot_of_the_leader_ends_those_behind_it_alone(
    farm: FakeFarm, live: LiveEvents, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(live.pump)
        with (
            live.watcher(0, ["entry"], json_line, ignore) as behind,
            live.watcher(9, ["entry"], json_line, ignore) as ahead,
        ):
            await trio.testing.wait_all_tasks_blocked()
            farm.log.clear()
            farm.first_index = 10  # entries 1 to 9 are in the snapshot
            farm.tell()
            with pytest.raises(Compacted):
                await indexes(behind)
            farm.commit(b"10")
            assert await indexes(ahead) == [10]
        nursery.cancel_scope.cancel()
