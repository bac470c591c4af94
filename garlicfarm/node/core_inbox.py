"""The consensus core of one replica, and its inbox.

The core is driven in turns (`garlicfarm.node.turns`). All tasks put their input into its inbox. One turn
takes all waiting input, so it makes one write, one message per peer and one answer per connection out of many
inputs. Other tasks read the core's state here: which member leads, and how far the application has come. They
can wait for both to change, and have the leadership transferred.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import trio

from garlicfarm.config.model import FarmSection, RaftSection
from garlicfarm.errors import NoQuorum, NotLeader, ProposalDropped
from garlicfarm.raft import RaftConfig, RawNode, Role, SnapshotMeta, Storage
from garlicfarm.refusals import Refusal
from garlicfarm.wire.messages import ClusterServer, Configuration

SLICE_S = 0.005
"""How long entries are checked, and applied, in one turn."""

BATCH_BYTES = 1 << 20
COMMIT_NOTICE_MS = 50
"""Longer than between two entries of a busy farm. A member that waits for a commit is told at once."""
MESSAGE_HEADER_BYTES = 45


class LostLeader(NamedTuple):
    """A leader's id, and when this member no longer knew it to lead, in ms since 1970."""

    id: int
    date_ms: int


class CoreInbox:
    """``raw``: the consensus core itself, which only turns change; all else only reads from it.

    ``answer_timeout_s``: how long a request waits for its answer. ``applied``: the newest entry that the
    application has taken, as a snapshot of its state now would name it.
    """

    def __init__(self, section: FarmSection, node_id: int, store: Storage) -> None:
        raft = section.raft
        self.farm = section.name
        self.raft = raft
        self.node_id = node_id
        self.answer_timeout_s = raft.election_timeout_max_s + raft.rpc_timeout_s
        config = _raft_config(raft, node_id, self.answer_timeout_s)
        self.raw = RawNode(config, store, random.SystemRandom().randint)
        self._limit_terms()
        self.role = Role.FOLLOWER
        self.leader_id = 0
        """Id of the leader, 0 if none is known."""
        self.leader_lost: LostLeader | None = None
        """The leader that was known last; None while one is known, and before the first."""
        self.applied = store.snapshot()
        self.next_token = itertools.count(1).__next__
        """Returns a token that no input of the core has used."""
        self._awake = trio.Event()
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._leader_changed = trio.Event()
        self._progressed: trio.Event | None = None  # None: nothing waits for it
        self._awaited: dict[int, trio.Event] = {}  # set once an entry beyond the index is applied
        self._next_awaited = math.inf  # the lowest of these indexes

    # ------------------------------------------------------------------ input

    def put(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have the next turn call ``function``, and have the core's task run that turn. Each source is
        bounded: sessions and links by their windows, proposals and reads by the limits of `Proposals` and
        `ReadIndexRequests`, the writer by the steps that it was given."""
        self.add(function, *arguments)
        self.wake()

    def add(self, function: Callable[..., None], *arguments: Any) -> None:
        """As `put`, for a caller that then has the turn run by `garlicfarm.node.turns.Turns.run_now`."""
        self._inbox.append((function, arguments))

    def wake(self) -> None:
        """Have the core's task run a turn."""
        self._awake.set()

    @property
    def is_awake(self) -> bool:
        """Whether the core's task is about to run a turn."""
        return self._awake.is_set()

    @property
    def has_input(self) -> bool:
        """Whether the next turn has input."""
        return bool(self._inbox)

    async def wait_awake(self) -> None:
        """Return once `wake` was called since the last turn; for the core's task."""
        await self._awake.wait()

    def take_input(self) -> None:
        """Call everything in the inbox; only in a turn."""
        if self._awake.is_set():
            self._awake = trio.Event()
        if self._inbox:
            self._limit_terms()
        while self._inbox:
            function, arguments = self._inbox.popleft()
            function(*arguments)

    def _limit_terms(self) -> None:
        self.raw.limit_terms(time.time_ns() // 1_000_000)

    # ------------------------------------------------------------------ state

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows."""
        return self.role is Role.LEADER

    @property
    def applied_index(self) -> int:
        """The index of the newest entry that the application has taken."""
        return self.applied.index

    @property
    def configuration(self) -> Configuration:
        """The Configuration in force."""
        return self.raw.configuration

    def leader(self) -> ClusterServer | None:
        """The leader, if one is known and is a member."""
        servers = self.configuration.servers
        return next((server for server in servers if server.id == self.leader_id), None)

    def must_lead(self) -> None:
        """Raises `NotLeader` unless this member leads."""
        if not self.is_leader:
            leader = self.leader()
            raise NotLeader(self.leader_id or None, None if leader is None else leader.endpoint)

    # ------------------------------------------------------------------ changes

    def on_leader(self, role: Role, leader_id: int, now_ms: int) -> None:
        """This member's role, or the leader that it knows, changed."""
        if leader_id:
            self.leader_lost = None
        elif self.leader_id:
            self.leader_lost = LostLeader(self.leader_id, now_ms)
        self.role, self.leader_id = role, leader_id
        changed, self._leader_changed = self._leader_changed, trio.Event()
        changed.set()
        self.wake_waiting()

    def on_applied(self, applied: SnapshotMeta) -> None:
        """The application has taken everything up to there."""
        self.applied, index = applied, applied.index
        self.raw.report_applied(index)
        if index > self._next_awaited:
            for beyond in [beyond for beyond in self._awaited if index > beyond]:
                self._awaited.pop(beyond).set()
            self._next_awaited = min(self._awaited, default=math.inf)
        self.wake_waiting()

    def wake_waiting(self) -> None:
        """Wake all tasks that wait for progress, to look again."""
        if self._progressed is not None:
            self._progressed.set()
            self._progressed = None

    async def wait_applied(self, beyond: int) -> None:
        """Return once an entry with an index > ``beyond`` is applied. Until then no entry wakes the
        task."""
        if self.applied_index > beyond:
            return
        applied = self._awaited.setdefault(beyond, trio.Event())
        self._next_awaited = min(self._next_awaited, beyond)
        try:
            await applied.wait()
        finally:
            is_last = not applied.statistics().tasks_waiting
            if is_last and self._awaited.get(beyond) is applied:
                del self._awaited[beyond]

    async def wait_progress(self) -> None:
        """Return when something is applied, or the leader, the role or the state of the disk changes."""
        if self._progressed is None:
            self._progressed = trio.Event()
        await self._progressed.wait()

    async def wait_leader_change(self) -> None:
        """Return at the next change of leader or role."""
        await self._leader_changed.wait()

    async def step_down(self, to: int = 0, deadline: float = math.inf) -> int:
        """Transfer the leadership to the member ``to`` (0: the one best placed); the new leader's id.
        ``deadline``: on Trio's clock. Source: thesis 3.10.

        Raises `NotLeader`, `ProposalDropped` (no such member, or one that cannot take over now; another one
        took over, since ``to`` is a JRaft server, which cannot be told to campaign), `NoQuorum`: no member
        took over within two election timeouts, or before the deadline.
        """
        begun = trio.Event()
        refused: list[ProposalDropped] = []

        def begin() -> None:
            try:
                self.raw.transfer_leadership(to)
            except ProposalDropped as dropped:
                refused.append(dropped)
            begun.set()

        self.must_lead()
        self.put(begin)
        await begun.wait()
        if refused:
            raise refused[0]
        longest = trio.current_time() + 2 * self.raft.election_timeout_max_s
        with trio.move_on_at(min(deadline, longest)):
            while self.is_leader or not self.leader_id:
                await self.wait_leader_change()
            if to in (0, self.leader_id):
                return self.leader_id
            took_over = f"member {self.leader_id} leads now, and not {to}"
            raise ProposalDropped(Refusal.ANOTHER_TOOK_OVER, took_over)
        raise NoQuorum("no member took over the leadership in time")


def _raft_config(raft: RaftSection, node_id: int, answer_timeout_s: float) -> RaftConfig:
    return RaftConfig(
        id=node_id,
        election_timeout_min_ms=round(raft.election_timeout_min_s * 1000),
        election_timeout_max_ms=round(raft.election_timeout_max_s * 1000),
        heartbeat_ms=round(raft.heartbeat_s * 1000),
        commit_notice_ms=min(round(raft.heartbeat_s * 1000 / 4), COMMIT_NOTICE_MS),
        priority=raft.priority,
        # It bounds values and entry headers separately; together they must fit into one message.
        batch_bytes=min(BATCH_BYTES, (raft.max_message_bytes - MESSAGE_HEADER_BYTES) // 2),
        max_inflight_messages=raft.max_inflight_messages,
        max_inflight_bytes=raft.max_inflight_bytes,
        max_uncommitted_bytes=raft.max_uncommitted_bytes,
        max_commit_wait_ms=round(answer_timeout_s * 1000 / 2),
        max_message_bytes=raft.max_message_bytes,
        max_entry_bytes=raft.max_entry_bytes,
    )
