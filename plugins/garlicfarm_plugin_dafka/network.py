"""What a role needs of the node that it runs on (`garlicfarm_plugin_dafka.mesh`), and what all roles do on
it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NoReturn, Protocol

import trio

from garlicfarm.logs import EventLogger
from garlicfarm_plugin_dafka.codec import Command
from garlicfarm_plugin_dafka.reading import PartitionReader

__all__ = [
    "BURST",
    "TICK_S",
    "Network",
    "Peer",
    "Subscription",
    "event_logger",
    "send_in_bursts",
    "tick",
    "warn_of_drops",
    "warn_of_stalls",
]

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


class Peer(Protocol):
    """Another node."""

    @property
    def name(self) -> str: ...

    @property
    def endpoint(self) -> str: ...


class Subscription(Protocol):
    """A change of what a peer has subscribed to."""

    @property
    def command(self) -> type[Command] | None: ...

    @property
    def routing(self) -> str: ...

    @property
    def is_on(self) -> bool: ...


class Network(Protocol):
    """A node among others. Commands get lost on the way."""

    @property
    def address(self) -> str: ...

    def subscribe(self, prefix: bytes) -> None: ...

    def send(self, command: Command) -> None: ...

    def send_all(self, commands: Iterable[Command]) -> None: ...

    async def receive(self) -> Sequence[tuple[Command, Peer]]: ...

    async def subscriptions(self) -> Sequence[Subscription]: ...


def event_logger(role: str) -> EventLogger:
    """The log of a role: a line a second at most for each event."""
    return EventLogger(logging.getLogger("garlicfarm.dafka"), clock=trio.current_time, role=role)


async def send_in_bursts(network: Network, commands: Sequence[Command]) -> None:
    """Send commands, with a pause now and then."""
    for start in range(0, len(commands), BURST):
        if start:
            await trio.lowlevel.checkpoint()
        network.send_all(commands[start : start + BURST])


async def tick(act: Callable[[], Awaitable[None]]) -> NoReturn:
    """Call ``act`` every `TICK_S`."""
    while True:
        await act()
        await trio.sleep(TICK_S)


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


async def warn_of_drops(dropped: Counter[str], log: EventLogger) -> NoReturn:
    """Write a line, at most one a second, when commands were dropped that no sound peer sends."""
    seen: Counter[str] = Counter()
    while True:
        await trio.sleep(1.0)
        for reason, number in (dropped - seen).items():
            if reason not in _HARMLESS:
                log.warning("command-dropped", reason=reason, number=number)
                break
        seen = Counter(dropped)
