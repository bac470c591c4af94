"""The turns of a core: which task runs them, when, and where their errors end."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm.config import FarmSection, MetaSection, RaftSection, RetentionSection
from garlicfarm.config.model import PRESETS
from garlicfarm.errors import StorageError
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.turns import Turns
from garlicfarm.raft import Ready, Role, SnapshotMeta
from garlicfarm.testing.memory_storage import MemoryStorage
from garlicfarm.wire.messages import ClusterServer, Configuration, MessageType, Request

Clock = trio.testing.MockClock
SERVERS = tuple(ClusterServer(member, f"tcp://m{member}:1") for member in (1, 2, 3))
SECTION = FarmSection(
    name="farm",
    endpoint="tcp://m1:1",
    secret_file=Path("unused"),
    raft=msgspec.convert(PRESETS["clearnet"], RaftSection),
    retention=RetentionSection(),
    meta=MetaSection(),
)

HEARTBEAT = Request(MessageType.APPEND_ENTRIES_REQUEST, 2, 1, 1)


class Steps(trio.abc.Instrument):
    """How often a task ran."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name == self.name


class Driven:
    """A core whose turns do nothing but what a test puts in; ``ended``: how the farm's task ended."""

    def __init__(self) -> None:
        self.core = CoreInbox(SECTION, 1, MemoryStorage(Configuration(0, 0, SERVERS)))
        self.requests = SimpleNamespace(
            has_unchecked=False,
            next_delayed_at=float("inf"),
            check_posts=lambda: None,
            send_delayed=lambda now: None,
        )
        self.applier = SimpleNamespace(has_entries=False, restore=self._restore)
        self.readies: list[Ready] = []
        self.error: Exception | None = None  # that carrying out a turn raises
        self.restored = trio.Event()
        self.ended: list[Exception] = []
        self.turns = Turns(self.core, self.requests, self.applier, self._carry_out)  # type: ignore[arg-type]

    def _carry_out(self, ready: Ready) -> None:
        self.readies.append(ready)
        if self.error is not None:
            raise self.error

    async def _restore(self, meta: SnapshotMeta) -> None:
        await self.restored.wait()

    async def run(self) -> None:
        try:
            await self.turns.run()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.ended.append(error)

    def receive(self, function: Callable[[], None]) -> None:
        """What a reader does with what it has received."""
        self.core.add(function)
        self.turns.run_now()


@asynccontextmanager
async def idle_farm() -> AsyncIterator[Driven]:
    farm = Driven()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(farm.run, name="the farm's task")
        await trio.testing.wait_all_tasks_blocked()
        yield farm
        nursery.cancel_scope.cancel()


async def test_idle_core_takes_its_turn_at_once_and_wakes_no_task(autojump_clock: Clock) -> None:
    async with idle_farm() as farm:
        steps, done = Steps("the farm's task"), list[int]()
        trio.lowlevel.add_instrument(steps)
        for number in range(3):
            farm.receive(lambda number=number: done.append(number))  # type: ignore[misc]
            assert done[-1] == number
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(steps)
        assert steps.count == 0
        assert len(farm.readies) >= 3


async def test_input_of_other_tasks_is_taken_by_the_task_of_the_farm(autojump_clock: Clock) -> None:
    async with idle_farm() as farm:
        done: list[str] = []
        farm.core.put(done.append, "put")
        assert not done
        farm.receive(lambda: done.append("received"))  # that task runs already
        assert not done
        await trio.testing.wait_all_tasks_blocked()
        assert done == ["put", "received"]


@pytest.mark.parametrize("error", [StorageError("the disk hangs"), ZeroDivisionError("a defect")])
async def test_error_in_a_turn_ends_the_task_of_the_farm_and_spares_the_reader(
    error: Exception, autojump_clock: Clock
) -> None:
    async with idle_farm() as farm:
        later: list[int] = []

        def fail() -> None:
            raise error

        farm.receive(fail)
        farm.receive(lambda: later.append(1))  # no turn follows
        await trio.testing.wait_all_tasks_blocked()
        farm.receive(lambda: later.append(2))
        assert farm.ended == [error]
        assert not later


async def test_error_while_a_turn_is_carried_out_ends_the_farm_as_well(autojump_clock: Clock) -> None:
    async with idle_farm() as farm:
        farm.error = StorageError("full")
        farm.receive(lambda: None)
        await trio.testing.wait_all_tasks_blocked()
        assert [str(error) for error in farm.ended] == ["full"]


async def test_turn_never_runs_inside_another_one(autojump_clock: Clock) -> None:
    async with idle_farm() as farm:
        told: list[str] = []

        def outer() -> None:
            farm.receive(lambda: told.append("inner"))
            told.append("outer")

        carried_out = len(farm.readies)
        farm.receive(outer)
        assert len(farm.readies) == carried_out + 1
        await trio.testing.wait_all_tasks_blocked()
        assert told == ["outer", "inner"]


async def test_deadline_that_comes_nearer_in_a_readers_turn_is_kept(autojump_clock: Clock) -> None:
    async with idle_farm() as farm:
        given: list[float] = []
        at = trio.current_time() + 0.25

        def send_delayed(now: float) -> None:
            if now >= farm.requests.next_delayed_at:
                farm.requests.next_delayed_at = float("inf")
                given.append(now)

        farm.requests.send_delayed = send_delayed
        farm.receive(lambda: setattr(farm.requests, "next_delayed_at", at))
        await trio.sleep(0.5)
        assert given == [pytest.approx(at)]


async def test_stalled_process_hears_its_leader_before_it_takes_a_readers_turn(
    mock_clock: Clock,
) -> None:
    """Whichever reader runs first after the stall: the leader's message may be in another one's socket."""
    async with idle_farm() as farm:
        raw = farm.core.raw
        farm.receive(lambda: raw.step(HEARTBEAT, 1))
        assert raw.leader == 2
        mock_clock.jump(60)
        farm.receive(lambda: None)
        farm.receive(lambda: raw.step(HEARTBEAT, 2))
        await trio.testing.wait_all_tasks_blocked()
        assert (raw.role, raw.leader) == (Role.FOLLOWER, 2)
        assert not [ready.requests for ready in farm.readies if ready.requests]  # no vote


@pytest.mark.parametrize("readers", [1, 3])
async def test_readers_that_always_have_input_starve_neither_the_timer_nor_other_tasks(
    readers: int, mock_clock: Clock
) -> None:
    taken, campaigns, rounds = Counter[int](), 0, 0
    async with idle_farm() as farm, trio.open_nursery() as nursery:
        farm.receive(lambda: farm.core.raw.step(HEARTBEAT, 1))

        async def read(reader: int) -> None:
            while True:
                farm.receive(lambda: taken.update([reader]))
                await trio.lowlevel.checkpoint()

        for reader in range(readers):
            nursery.start_soon(read, reader)
        until = trio.current_time() + 3 * (SECTION.raft.election_timeout_max_s + 0.05)
        while trio.current_time() < until:
            rounds += 1
            mock_clock.jump(0.01)
            farm.readies.clear()
            await trio.lowlevel.checkpoint()
            campaigns += any(ready.requests for ready in farm.readies)
        nursery.cancel_scope.cancel()
    assert campaigns >= 3
    for reader in range(readers):
        assert abs(taken[reader] - rounds) <= 2


async def test_core_takes_no_turn_while_a_snapshot_is_restored(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with idle_farm() as farm:
        meta, raw, done = SnapshotMeta(5, 1, Configuration(0, 0, SERVERS)), farm.core.raw, list[int]()
        ready = Ready(restore=meta)
        with monkeypatch.context() as patch:
            patch.setattr(raw, "ready", lambda **how: ready)
            farm.receive(lambda: done.append(1))
        await trio.testing.wait_all_tasks_blocked()
        farm.receive(lambda: done.append(2))
        await trio.testing.wait_all_tasks_blocked()
        assert done == [1]
        assert ready not in farm.readies
        farm.restored.set()
        await trio.testing.wait_all_tasks_blocked()
        assert done == [1, 2]
        assert ready in farm.readies


async def test_nothing_is_run_after_the_farm_has_ended() -> None:
    async with idle_farm() as farm:
        pass
    done: list[int] = []
    farm.receive(lambda: done.append(1))
    assert not done
