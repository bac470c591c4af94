"""One farm of a node: the task that owns the consensus core, and what is around it.

Everybody else puts into the core's inbox; one wake-up takes all that came meanwhile, so that one turn
makes one write, one message per peer and one answer per connection out of many inputs.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol

import trio

from garlicfarm.config import FarmSection
from garlicfarm.errors import (
    AuthError,
    EntryRefused,
    NoQuorum,
    OutcomeUnknown,
    ProposalDropped,
    RemoteProtocolError,
    TransportError,
)
from garlicfarm.farm.application import Application
from garlicfarm.farm.state import FarmApplication
from garlicfarm.handshake import Established
from garlicfarm.link import Backoff
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import FarmMetrics
from garlicfarm.node.peers import Peers
from garlicfarm.node.session import Slot
from garlicfarm.raft import (
    Entry,
    Persist,
    RaftConfig,
    RawNode,
    Ready,
    Refusal,
    Role,
    SnapshotMeta,
    Storage,
)
from garlicfarm.storage import Genesis, Snapshot
from garlicfarm.wire import Limits, decode_configuration
from garlicfarm.wire.messages import (
    ClusterServer,
    Configuration,
    LogEntry,
    MessageType,
    Request,
    Response,
    SnapshotSyncRequest,
    ValueType,
)

__all__ = ["Farm", "Store", "StoreWriter"]

STALL_S = 0.05
BATCH_BYTES = 1 << 20
MESSAGE_HEADER_BYTES = 45
REDIRECT_PAUSE_S = 0.05
MAX_PENDING_POSTS = 4096
_REASONS = {
    Refusal.UNCOMMITTED: "too-much-uncommitted",
    Refusal.TRANSFER: "leadership-in-transfer",
    Refusal.ROLE: "role-missing",
}


class Store(Storage, Protocol):
    """What a farm reads: `garlicfarm.storage.LogStore`, or one in memory."""

    genesis: Genesis

    def size_bytes(self) -> int:
        """What it takes on the disk."""

    def read_state(self, meta: SnapshotMeta) -> Snapshot:
        """The snapshot that ``meta`` is of. Blocking; called in a thread."""
        ...


class StoreWriter(Protocol):
    """What writes it: `garlicfarm.storage.Writer`, or one in memory."""

    def submit(self, persist: Persist) -> None:
        """Queue a durable step."""

    def submit_chunk(self, token: int, request: SnapshotSyncRequest) -> None:
        """Queue a piece of a snapshot."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Write until cancelled."""
        ...


class _Proposal:
    __slots__ = ("done", "dropped", "outcome", "since")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.since = trio.current_time()
        self.outcome: tuple[int, int] | None = None
        self.dropped: ProposalDropped | None = None


class Farm:
    """A member of one farm, from its open store to its place in the cluster.

    ``application`` is in the state that ``store.snapshot()`` names: a new one where that is index 0.
    ``make_writer(on_durable, on_batch, on_chunk, on_problem)`` makes the one writer of ``store``;
    ``dial(id, endpoint)`` opens an authenticated stream to another member.
    """

    def __init__(
        self,
        section: FarmSection,
        node_id: int,
        store: Store,
        make_writer: Callable[
            [
                Callable[[int], None],
                Callable[[int, float], None],
                Callable[[int, int, SnapshotMeta | None], None],
                Callable[[str], None],
            ],
            StoreWriter,
        ],
        application: Application,
        dial: Callable[[int, str], Awaitable[Established]],
        metrics: FarmMetrics,
        log: EventLogger,
    ) -> None:
        raft = section.raft
        self.section = section
        self.name = section.name
        self.node_id = node_id
        self.store = store
        self.application = application
        self.metrics = metrics
        self.log = log
        self.limits = Limits(raft.max_message_bytes, raft.max_entry_bytes)
        self.answer_timeout_s = raft.election_timeout_max_s + raft.rpc_timeout_s
        self.raw = RawNode(
            RaftConfig(
                id=node_id,
                election_timeout_min_ms=round(raft.election_timeout_min_s * 1000),
                election_timeout_max_ms=round(raft.election_timeout_max_s * 1000),
                heartbeat_ms=round(raft.heartbeat_s * 1000),
                priority=raft.priority,
                # Values and entry headers are each bounded by it; both must fit into one message.
                batch_bytes=min(BATCH_BYTES, (raft.max_message_bytes - MESSAGE_HEADER_BYTES) // 2),
                max_inflight_messages=raft.max_inflight_messages,
                max_inflight_bytes=raft.max_inflight_bytes,
                max_uncommitted_bytes=raft.max_uncommitted_bytes,
            ),
            store,
            random.SystemRandom().randint,
        )
        self.peers = Peers(
            node_id,
            dial,
            timeout_s=raft.rpc_timeout_s,
            call_timeout_s=self.answer_timeout_s,
            backoff=Backoff(random.random, longest_s=raft.heartbeat_s),
            answered=lambda seq, response: self._put(self.raw.answered, seq, response),
            unreachable=lambda peer, seq: self._put(self.raw.report_unreachable, peer, seq),
            extensions=lambda peer, names: self._put(self.raw.extensions, peer, names),
            changed=self._peer_changed,
            slow=self._peer_slow,
            heartbeat_s=raft.heartbeat_s,
            election_timeout_min_s=raft.election_timeout_min_s,
        )
        self._writer = make_writer(
            lambda token: self._put(self.raw.persisted, token),
            self._wrote,
            lambda token, held, meta: self._put(self.raw.chunk_stored, token, held, meta),
            lambda problem: log.warning("snapshot-refused", cause=problem),
        )
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake = trio.Event()
        self._next_token = 0
        self._slots: dict[int, Slot] = {}
        self._proposals: dict[int, _Proposal] = {}
        self._leader = 0
        self._role = Role.FOLLOWER
        self._servers: tuple[ClusterServer, ...] = ()
        self._publisher: int | None = None
        self._skipped: dict[str, int] = {}
        self._moved = trio.Event()  # the leader changed
        self._advanced = trio.Event()  # something was applied
        start = store.snapshot()
        self.applied_index, self.applied_term = start.index, start.term
        self.applied_configuration = start.configuration
        self.used_ids = {server.id for server in start.configuration.servers}
        if isinstance(application, FarmApplication):
            self._publisher = application.publisher
            self._skipped = dict(application.skipped)

    # ------------------------------------------------------------------ the tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Be a member until cancelled. Raises `StorageError`: a write failed, this farm is over."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._writer.run)
            if self.applied_configuration.servers and not self.applied_index:
                self.application.configure(0, self.applied_configuration)
            nursery.start_soon(self.peers.run)
            nursery.start_soon(self._raft_loop)
            task_status.started()
        raise AssertionError("unreachable: the tasks of a farm only end by an error")

    async def _raft_loop(self) -> NoReturn:
        raw = self.raw
        while True:
            if self._inbox or raw.more_committed:
                await trio.lowlevel.checkpoint()
            else:
                deadline = raw.deadline_ms
                at = float("inf") if deadline is None else deadline / 1000
                with trio.move_on_at(at) as scope:
                    await self._wake.wait()
                if scope.cancelled_caught and trio.current_time() - at > STALL_S:
                    # The process was stalled: first read what the leader said meanwhile.
                    await trio.sleep(STALL_S)
            self._wake = trio.Event()
            while self._inbox:
                function, arguments = self._inbox.popleft()
                function(*arguments)
            raw.tick(round(trio.current_time() * 1000))
            ready = raw.ready()
            if ready.restore is not None:
                await self._restore(ready.restore)
            self._carry_out(ready)

    def _put(self, function: Callable[..., None], *arguments: Any) -> None:
        """Into the core's inbox. What feeds it is bounded: sessions and links by their windows, posts by
        `MAX_PENDING_POSTS`, the writer by what it was given."""
        self._inbox.append((function, arguments))
        self._wake.set()

    async def _restore(self, meta: SnapshotMeta) -> None:
        """Go on from a snapshot that came from the leader."""
        snapshot = await trio.to_thread.run_sync(self.store.read_state, meta)
        self.application.restore(snapshot.state)
        self.applied_configuration = snapshot.configuration
        self.used_ids.update(snapshot.ids)
        self.log.info("snapshot-restored", index=meta.index, term=meta.term)
        self._have_applied(meta.index, meta.term)

    def _carry_out(self, ready: Ready) -> None:
        if ready.persist is not None:
            self._writer.submit(ready.persist)
        for token, piece in ready.chunks:
            self._writer.submit_chunk(token, piece)
        for peer, seq, request in ready.requests:
            self.peers.send(peer, seq, request)
            self.metrics.count_message(request.type.name, "out")
        for token, response in ready.responses:
            self._slots.pop(token).resolve(response)
        for token, outcome in ready.outcomes:
            proposal = self._proposals.pop(token)
            if isinstance(outcome, str):
                proposal.dropped = ProposalDropped(outcome)
            else:
                proposal.outcome = outcome
            proposal.done.set()
            if isinstance(outcome, tuple):
                self.metrics.raft_commit_seconds.observe(trio.current_time() - proposal.since)
        if ready.committed:
            self._apply(ready.committed)
        if self.raw.leader != self._leader or self.raw.role is not self._role:
            self._note_leader()
        if self.raw.servers is not self._servers:
            self._servers = self.raw.servers
            self.peers.follow(self._servers)

    def _apply(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            if entry.value_type is ValueType.CONFIGURATION:
                configuration = decode_configuration(entry.value)
                self.application.configure(entry.index, configuration)
                self.applied_configuration = configuration
                self.used_ids.update(server.id for server in configuration.servers)
            else:
                self.application.apply(entry.index, entry.term, entry.value)
        self._have_applied(entries[-1].index, entries[-1].term)

    def _have_applied(self, index: int, term: int) -> None:
        if isinstance(self.application, FarmApplication):
            self._note_fold(self.application)
        self.applied_index, self.applied_term = index, term
        self.raw.applied(index)
        advanced, self._advanced = self._advanced, trio.Event()
        advanced.set()

    def _note_fold(self, application: FarmApplication) -> None:
        """Tell what the fold decided: a new publisher, and entries that it skipped."""
        if application.publisher != self._publisher:
            self._publisher = application.publisher
            self.metrics.farm_publisher_changes.inc()
            self.log.info("publisher", publisher=self._publisher or "none")
        for reason, count in application.skipped.items():
            new = count - self._skipped.get(reason, 0)
            if new:
                self._skipped[reason] = count
                self.metrics.count_skipped(reason, new)
                self.log.warning("entry-skipped", reason=reason, count=count)

    def _note_leader(self) -> None:
        status = self.raw.status()
        if status.role is not self._role:
            self.log.info(f"became-{status.role.value}", term=status.term)
        if status.leader != self._leader:
            self.log.info("leader", leader=status.leader or "none", term=status.term)
            if status.leader:
                self.metrics.raft_leader_changes.inc()
        self._role, self._leader = status.role, status.leader
        moved, self._moved = self._moved, trio.Event()
        moved.set()

    def _wrote(self, entries: int, seconds: float) -> None:
        self.metrics.storage_fsync_seconds.observe(seconds)
        self.metrics.storage_batch_entries.observe(entries)

    def _peer_changed(self, peer: int, error: Exception | None) -> None:
        if error is None:
            self.log.info("peer-connected", peer=peer)
        else:
            self.log.warning("peer-lost", peer=peer, cause=str(error) or type(error).__name__)

    def _peer_slow(self, peer: int, p99_s: float, limit_s: float) -> None:
        p99_ms, limit_ms = round(p99_s * 1000), round(limit_s * 1000)
        self.log.warning("slow-round-trip", peer=peer, p99_ms=p99_ms, limit_ms=limit_ms)

    # ------------------------------------------------------------------ for sessions

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows."""
        return self._role is Role.LEADER

    @property
    def leader_id(self) -> int:
        """Id of the leader, 0 if none is known."""
        return self._leader

    def heard_from(self, member: int, request: Request) -> None:
        """A request came in from ``member`` (0: a client)."""
        self.metrics.count_message(request.type.name, "in")
        if member:
            self.peers.heard_from(member)

    def step(self, request: Request, slot: Slot) -> None:
        """Pass a request to the core; ``slot`` gets the answer."""
        self._next_token += 1
        self._slots[self._next_token] = slot
        self._put(self._step, request, self._next_token)

    def _step(self, request: Request, token: int) -> None:
        if request.type is MessageType.CLIENT_REQUEST and self.raw.role is Role.LEADER:
            # Judged only now: when the request came in, this member may not have been leader yet.
            refusal = self._slots[token].session.refusal(request) if request.entries else 0
            if refusal:
                self._slots.pop(token).resolve(self.refuse(refusal))
                return
        try:
            self.raw.step(request, token)
        except RemoteProtocolError as fault:
            self.metrics.count_refused("protocol")
            self._slots.pop(token).session.fail(fault)

    def refuse(self, reason: int) -> Response:
        """The answer to a ClientRequest that is not appended for ``reason`` (D8)."""
        self.metrics.count_proposals("refused")
        kind = MessageType.APPEND_ENTRIES_RESPONSE
        return Response(kind, self.node_id, self.node_id, self.raw.term, reason, False)

    # ------------------------------------------------------------------ posting

    async def post_entry(self, entry: bytes, author: int) -> tuple[int, int]:
        """Append one application entry, here or through the leader; (index, term) after its commit.

        ``author``: the member it is from, 0 for users. Raises `EntryRefused` (the caller's fault),
        `ProposalDropped`, `NoQuorum` (certainly not appended), `OutcomeUnknown`. Cancelled, it may or
        may not be appended.
        """
        self.application.check(entry, author)
        if len(entry) > self.limits.max_entry_bytes:
            raise EntryRefused("", f"larger than {self.limits.max_entry_bytes} bytes")
        if len(self._proposals) >= MAX_PENDING_POSTS:
            raise ProposalDropped("too-many-posts")
        sent = False
        with trio.move_on_after(self.answer_timeout_s):
            while True:
                if not self._leader:
                    await self._moved.wait()
                elif self.is_leader:
                    sent = True
                    try:
                        return await self._propose(entry)
                    except ProposalDropped as dropped:
                        if dropped.reason != "not-leader":
                            raise
                    sent = False
                    await trio.sleep(REDIRECT_PAUSE_S)
                else:
                    sent = True
                    posted = await self._forward(self._leader, entry)
                    if posted is not None:
                        return posted
                    sent = False
                    await trio.sleep(REDIRECT_PAUSE_S)
        if sent:
            raise OutcomeUnknown(f"not committed within {self.answer_timeout_s:g} s")
        raise NoQuorum(f"no leader within {self.answer_timeout_s:g} s")

    async def _propose(self, entry: bytes) -> tuple[int, int]:
        self._next_token += 1
        token, proposal = self._next_token, _Proposal()
        self._put(self._start_proposal, token, proposal, entry)
        await proposal.done.wait()
        if proposal.dropped is not None:
            self.metrics.count_proposals("dropped")
            raise proposal.dropped
        if proposal.outcome is None:
            self.metrics.count_proposals("unknown")
            raise OutcomeUnknown("leadership was lost before the commit")
        self.metrics.count_proposals("committed")
        return proposal.outcome

    def _start_proposal(self, token: int, proposal: _Proposal, entry: bytes) -> None:
        try:
            self.raw.propose((entry,), token)
        except ProposalDropped as dropped:
            proposal.dropped = dropped
            proposal.done.set()
        else:
            self._proposals[token] = proposal

    async def _forward(self, leader: int, entry: bytes) -> tuple[int, int] | None:
        """Through the leader's ClientRequest connection; None if it was certainly not appended and
        another leader may take it."""
        value = LogEntry(0, ValueType.APPLICATION, entry)
        request = Request(MessageType.CLIENT_REQUEST, self.node_id, leader, entries=(value,))
        try:
            response = await self.peers.call(leader, request)
        except (TransportError, AuthError, RemoteProtocolError):
            return None  # certainly not sent, whatever is wrong with the connection
        if response is None:
            return None
        if response.accepted:
            return response.next_index - 1, response.term
        if response.destination == leader and response.next_index:
            if response.next_index in (Refusal.TOO_LARGE, Refusal.APPLICATION):
                raise EntryRefused("", f"the leader refuses what this member ({self.node_id}) lets pass")
            raise ProposalDropped(_REASONS.get(response.next_index, "refused"))
        return None

    async def hand_over(self) -> None:
        """Have another member lead, if this one does and there is another. Returns when it leads no
        longer, or nobody took over within the deadline of a request."""
        self._put(self._start_transfer)
        with trio.move_on_after(self.section.raft.rpc_timeout_s):
            while self.is_leader and len(self._servers) > 1:
                await self._moved.wait()

    def _start_transfer(self) -> None:
        try:
            self.raw.transfer_leadership(0)
        except ProposalDropped as dropped:
            self.log.debug("transfer-dropped", reason=dropped.reason)

    # ------------------------------------------------------------------ waiting

    async def wait_applied(self, beyond: int) -> None:
        """Return once something with an index > ``beyond`` was applied."""
        while self.applied_index <= beyond:
            await self._advanced.wait()

    async def wait_leader_change(self) -> None:
        """Return at the next change of leader or role."""
        await self._moved.wait()

    @property
    def configuration(self) -> Configuration:
        """The Configuration in force."""
        return self.raw.configuration
