"""What a role needs of the node that it runs on (`garlicfarm_plugin_dafka.mesh`), and what all roles do on
it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar

import msgspec
import trio

from garlicfarm.logs import EventLogger
from garlicfarm_plugin_dafka.codec import Command
from garlicfarm_plugin_dafka.reading import PartitionReader

TICK_S = 0.25
"""How often a core learns the time."""
BURST = 200
"""Commands that are sent without a pause."""
_STALL_INTERVAL_S = 10.0
_HARMLESS = {
    "duplicate",
    "answer to no FETCH",
    "another topic",
    "FETCH of what is not there",
    "head of another partition",
}
"""What any network brings about: ZeroMQ matches prefixes, and several nodes answer one FETCH."""


class Peer(msgspec.Struct, frozen=True):
    """Another node. ``address`` is what its beacons say, and nothing proves it. ``name`` is that of its key
    among the known peers, and proved; "" without keys."""

    address: str
    endpoint: str
    name: str = ""


class Received(NamedTuple):
    """A command and the peer that sent it."""

    command: Command
    sender: Peer


class Subscription(msgspec.Struct, frozen=True):
    """A peer has subscribed to this node's commands, or does so no longer.

    ``command`` None: to all of them, or to none at all. ``routing`` may be the beginning of a name only.
    ``name``: that of the peer's key; "" without keys, and of a peer that has left.
    """

    command: type[Command] | None
    routing: str
    is_on: bool
    name: str = ""


class Network(Protocol):
    """A node among others. Commands get lost on the way."""

    @property
    def address(self) -> str: ...

    def subscribe(self, prefix: bytes) -> None: ...

    def unsubscribe(self, prefix: bytes) -> None: ...

    def send_all(self, commands: Iterable[Command]) -> None: ...

    async def receive(self) -> Sequence[Received]: ...

    async def subscriptions(self) -> Sequence[Subscription]: ...


class _Core(Protocol):
    dropped: Counter[str]

    def subscriptions(self) -> Sequence[bytes]: ...


class _AnsweringCore(_Core, Protocol):
    @property
    def has_answers(self) -> bool: ...

    def answers(self) -> list[Command]: ...


_C = TypeVar("_C", bound=_Core)
_A = TypeVar("_A", bound=_AnsweringCore)


class Role(ABC, Generic[_C]):
    """Runs a core on a node. ``name`` is that of the role in the log."""

    def __init__(self, name: str, network: Network, core: _C) -> None:
        self._network = network
        self._core = core
        self._log = EventLogger(logging.getLogger("garlicfarm.dafka"), clock=trio.current_time, role=name)
        self._subscribed: dict[bytes, None] = {}

    @property
    def dropped(self) -> Counter[str]:
        """Commands of peers that were not followed, by reason."""
        return self._core.dropped

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Talk with the peers, until cancelled."""
        async with trio.open_nursery() as nursery:
            for task in self._tasks():
                nursery.start_soon(task)
            task_status.started()

    def _tasks(self) -> tuple[Callable[[], Awaitable[Any]], ...]:
        return self._receive, self._keep_ticking, self._warn_of_drops

    def _subscribe(self) -> None:
        """Subscribe to what the core wants now, and to nothing else."""
        wanted = dict.fromkeys(self._core.subscriptions())
        for prefix in [each for each in wanted if each not in self._subscribed]:
            self._network.subscribe(prefix)
        for prefix in self._subscribed.keys() - wanted:
            self._network.unsubscribe(prefix)
        self._subscribed = wanted

    @abstractmethod
    async def _receive(self) -> None:
        """Give the core what the node receives."""

    @abstractmethod
    async def _tick(self) -> None:
        """Tell the core the time."""

    async def _keep_ticking(self) -> NoReturn:
        while True:
            await self._tick()
            await trio.sleep(TICK_S)

    async def _warn_of_drops(self) -> NoReturn:
        """Write a line, at most one a second, when commands were dropped that no sound peer sends."""
        seen: Counter[str] = Counter()
        while True:
            await trio.sleep(1.0)
            for reason, number in (self.dropped - seen).items():
                if reason not in _HARMLESS:
                    self._log.warning("command-dropped", reason=reason, number=number)
                    break
            seen = Counter(self.dropped)


class AnsweringRole(Role[_A]):
    """One that also answers peers, in a task of its own: ``_receive`` calls ``_wake_answers``."""

    def __init__(self, name: str, network: Network, core: _A) -> None:
        super().__init__(name, network, core)
        self._asked = trio.Event()

    def _tasks(self) -> tuple[Callable[[], Awaitable[Any]], ...]:
        return *super()._tasks(), self._answer

    def _wake_answers(self) -> None:
        if self._core.has_answers:
            self._asked.set()

    async def _answer(self) -> NoReturn:
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            while self._core.has_answers:
                await send_in_bursts(self._network, self._core.answers())
                await self._send_page()
                await trio.lowlevel.checkpoint()

    async def _send_page(self) -> None:
        """Read and send some of the records that peers wait for, where the core does not hold them."""


_R = TypeVar("_R", bound=Role[Any])


@asynccontextmanager
async def running(role: _R) -> AsyncIterator[_R]:
    """Run a role for the block."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(role.run)
        yield role
        nursery.cancel_scope.cancel()


async def send_in_bursts(network: Network, commands: Sequence[Command]) -> None:
    """Send commands, with a pause now and then."""
    for start in range(0, len(commands), BURST):
        if start:
            await trio.lowlevel.checkpoint()
        network.send_all(commands[start : start + BURST])


async def warn_of_stalls(stalled: Callable[[], Sequence[PartitionReader]], log: EventLogger) -> NoReturn:
    """Write a line now and then while no node answers for records that exist."""
    while True:
        await trio.sleep(_STALL_INTERVAL_S)
        if found := stalled():
            first = found[0]
            log.warning(
                "records-awaited",
                partitions=len(found),
                topic=first.topic,
                partition=first.partition,
                next=first.next,
                head=first.head,
            )
