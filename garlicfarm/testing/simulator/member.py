"""One member of a simulated cluster: its process, its disk and its clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from garlicfarm.application import StateMachine
from garlicfarm.raft import RawNode, Ready, Role
from garlicfarm.testing.memory_storage import UnsyncedStorage
from garlicfarm.testing.simulator.network import Connection
from garlicfarm.wire.messages import Configuration


class SimulatedMember:
    """One member's process, disk and clock; ``node`` is None while it is down, ``retired`` for ever."""

    def __init__(self, member_id: int, genesis: Configuration, extensions: frozenset[str]) -> None:
        self.id = member_id
        self.disk = UnsyncedStorage(genesis)
        self.extensions = extensions
        self.node: RawNode | None = None
        self.retired = False
        self.generation = 0
        self.application: StateMachine
        self.position = self.disk.snapshot()  # of the last entry that was applied
        self.to_apply: deque[Ready] = deque()
        self.tick_at: int | None = None
        self.written_at = 0
        self.applied_at = 0
        self.disk_factor = 1
        self.paused_until = 0
        self.rate = 1000
        self._clock = (0, 0)  # scheduler time, own time
        self.answers: dict[int, tuple[Connection, list[Any]]] = {}  # by token of `step`
        self.waiting: dict[int, Callable[[Any], None]] = {}  # by token of a proposal or read
        self.until_applied: list[tuple[int, Callable[[], None]]] = []
        self.links: dict[tuple[int, bool], Connection] = {}  # by peer; True: for reads, which wait
        self.retry_at: dict[int, int] = {}

    def __str__(self) -> str:
        return f"member {self.id}"

    @property
    def applied(self) -> int:
        """The index of the last entry that was applied."""
        return self.position.index

    @property
    def is_leader(self) -> bool:
        """Whether it is a leader."""
        return self.node is not None and self.node.role is Role.LEADER

    def clock_ms(self, now: int) -> int:
        """What its monotonic clock shows at ``now`` of the scheduler."""
        return self._clock[1] + (now - self._clock[0]) * self.rate // 1000

    def set_clock(self, now: int, rate: int, jump_ms: int = 0) -> None:
        """From now on it goes at ``rate``; it jumps ahead once."""
        self._clock = now, self.clock_ms(now) + jump_ms
        self.rate = rate

    def when(self, now: int, clock_ms: int) -> int:
        """The scheduler's time when the clock shows ``clock_ms``."""
        return (
            now - (self.clock_ms(now) - clock_ms) * 1000 // self.rate
            if self.clock_ms(now) < clock_ms
            else now
        )
