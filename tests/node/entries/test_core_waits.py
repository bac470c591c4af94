"""Tasks that wait until an entry is applied: each is woken by that entry, and by no other."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import msgspec
import trio
import trio.testing

from garlicfarm.config import FarmSection, MetaSection, RaftSection, RetentionSection
from garlicfarm.config.model import PRESETS
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.raft import SnapshotMeta
from garlicfarm.testing.memory_storage import MemoryStorage
from garlicfarm.wire.messages import ClusterServer, Configuration

GENESIS = Configuration(0, 0, (ClusterServer(1, "tcp://one:1"),))
SECTION = FarmSection(
    name="farm",
    endpoint="tcp://one:1",
    secret_file=Path("unused"),
    raft=msgspec.convert(PRESETS["clearnet"], RaftSection),
    retention=RetentionSection(),
    meta=MetaSection(),
)


class CountedWakes(trio.abc.Instrument):
    """How often each task ran, by its name."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps[task.name] = self.steps.get(task.name, 0) + 1


async def test_entries_before_the_awaited_one_wake_nothing() -> None:
    core, ended = CoreInbox(SECTION, 1, MemoryStorage(GENESIS)), []

    async def wait(beyond: int) -> None:
        await core.wait_applied(beyond)
        ended.append((beyond, core.applied_index))

    counted = CountedWakes()
    async with trio.open_nursery() as nursery:
        for beyond in (9, 4, 9, 0):
            nursery.start_soon(wait, beyond, name=f"beyond {beyond}")
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(counted)
        for index in range(1, 11):
            core.on_applied(SnapshotMeta(index, 1, GENESIS))
            await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(counted)
    assert sorted(ended) == [(0, 1), (4, 5), (9, 10), (9, 10)]
    assert [counted.steps[f"beyond {beyond}"] for beyond in (0, 4, 9)] == [1, 1, 2]


async def test_wait_that_is_cancelled_leaves_nothing_behind() -> None:
    core = CoreInbox(SECTION, 1, MemoryStorage(GENESIS))

    async def cancelled(indexes: Iterable[int]) -> int:
        """The bytes that are held after two tasks have waited for each of the indexes, in vain."""
        for beyond in indexes:
            with trio.move_on_after(0) as scope:
                async with trio.open_nursery() as two:
                    two.start_soon(core.wait_applied, beyond)
                    two.start_soon(core.wait_applied, beyond)
            assert scope.cancelled_caught
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(core.wait_applied, 7)
            await trio.testing.wait_all_tasks_blocked()
            before = await cancelled(range(100))
            assert await cancelled(range(100, 300)) - before < 50_000
            core.on_applied(SnapshotMeta(8, 1, GENESIS))  # which the first task has waited for all the time
    finally:
        tracemalloc.stop()
