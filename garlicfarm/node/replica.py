"""One farm of a node: the task that owns the consensus core, and what is around it.

Everybody else puts into the core's inbox; one wake-up takes all that came meanwhile, so that one turn
makes one write, one message per peer and one answer per connection out of many inputs.

What may take long is spread over turns: entries that are posted are judged, and committed ones applied, for
`SLICE_S` each in one turn (one entry at least); the rest waits for the next. Between two turns everything
else in this process has its turn, and the core is told the time: heartbeats do not wait for entries. Time
decides only when a turn ends, never what becomes of an entry.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import trio

from garlicfarm.application import Application
from garlicfarm.config import FarmSection
from garlicfarm.config.model import HEADERS_BYTES
from garlicfarm.errors import (
    NoQuorum,
    NotLeader,
    ProposalDropped,
    RemoteProtocolError,
)
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import FarmMetrics
from garlicfarm.net.handshake import Established
from garlicfarm.net.link import Backoff
from garlicfarm.node.disk import Disk
from garlicfarm.node.membership import Membership
from garlicfarm.node.peers import Peers
from garlicfarm.node.proposals import Proposals
from garlicfarm.node.read_index import ReadIndexRequests
from garlicfarm.node.session import PendingResponse, Session
from garlicfarm.publishing.application import PublisherApplication
from garlicfarm.raft import (
    Entry,
    Persist,
    RaftConfig,
    RawNode,
    Ready,
    Role,
    SnapshotMeta,
    Storage,
)
from garlicfarm.storage import Genesis, Snapshot
from garlicfarm.wire import Limits, decode_configuration
from garlicfarm.wire.messages import (
    ClusterServer,
    Configuration,
    MessageType,
    Request,
    Response,
    SnapshotSyncRequest,
    ValueType,
)

__all__ = ["Replica", "Store", "StoreWriter"]

STALL_S = 0.05
SLICE_S = 0.005
BUSY_SHARE = 6  # for each turn that sends to members far behind, so much time is for all others
BATCH_BYTES = 1 << 20
MESSAGE_HEADER_BYTES = 45

_LEADERS = {
    MessageType.APPEND_ENTRIES_REQUEST,
    MessageType.SYNC_LOG_REQUEST,
    MessageType.JOIN_CLUSTER_REQUEST,
    MessageType.INSTALL_SNAPSHOT_REQUEST,
}
"""Requests in which a leader says how far it has committed."""


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


class Replica:
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
        largest_post = max(raft.max_client_message_bytes, raft.max_entry_bytes + HEADERS_BYTES)
        self.client_limits = Limits(min(raft.max_message_bytes, largest_post), raft.max_entry_bytes)
        self.dial = dial
        self.backoff = Backoff(random.random, longest_s=raft.heartbeat_s)
        self.proposals = Proposals(self)
        self.reads = ReadIndexRequests(self)
        self.disk = Disk(raft.disk_timeout_s, self._disk_changed)
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
                max_message_bytes=raft.max_message_bytes,
                max_entry_bytes=raft.max_entry_bytes,
            ),
            store,
            random.SystemRandom().randint,
        )
        self.peers = Peers(
            node_id,
            dial,
            timeout_s=raft.rpc_timeout_s,
            call_timeout_s=self.answer_timeout_s,
            backoff=self.backoff,
            answered=lambda seq, response: self.put(self.raw.step_response, seq, response),
            unreachable=lambda peer, seq: self.put(self.raw.report_unreachable, peer, seq),
            extensions=lambda peer, names: self.put(self.raw.set_extensions, peer, names),
            changed=self._peer_changed,
            slow=self._peer_slow,
            heartbeat_s=raft.heartbeat_s,
            election_timeout_min_s=raft.election_timeout_min_s,
        )
        self._writer = make_writer(
            self._durable,
            self._wrote,
            self._stored,
            lambda problem: log.warning("snapshot-refused", cause=problem),
        )
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake = trio.Event()
        self._next_token = 0
        self._slots: dict[int, PendingResponse] = {}
        # Proposals that are being judged, by connection: each in its order, one request of each in turn.
        self._judging: dict[Session, deque[tuple[Request, int, Iterator[int]]]] = {}
        self._committed: deque[Entry] = deque()  # what the core handed out and is not applied yet
        self._late: deque[tuple[float, PendingResponse, Response | None]] = (
            deque()
        )  # refusals, and when they are told
        # A leader that waits for one sends nothing else: this member must not stand for election meanwhile.
        self._refusal_pause_s = min(raft.election_timeout_min_s, raft.rpc_timeout_s) / 2
        self._leader = 0
        self._leader_commit = (0, 0)  # who last led here, and up to where it had committed
        self._role = Role.FOLLOWER
        self._servers: tuple[ClusterServer, ...] = ()
        self._publisher: int | None = None
        self._skipped: dict[str, int] = {}
        self._moved = trio.Event()  # the leader changed
        self._advanced = trio.Event()  # something was applied, or the leader changed
        start = store.snapshot()
        self.applied_index, self.applied_term = start.index, start.term
        self.applied_configuration = start.configuration
        self.membership = Membership(self, start.configuration)
        if isinstance(application, PublisherApplication):
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
            nursery.start_soon(self.membership.run)
            nursery.start_soon(self.disk.watch)
            nursery.start_soon(self._raft_loop)
            task_status.started()
        raise AssertionError("unreachable: the tasks of a farm only end by an error")

    async def _raft_loop(self) -> NoReturn:
        raw, spare_at = self.raw, trio.current_time()
        while True:
            if self._inbox or self._judging or self._committed or raw.has_more_committed:
                await trio.lowlevel.checkpoint()
            else:
                deadline = raw.deadline_ms
                at = float("inf") if deadline is None else deadline / 1000
                if self._late:
                    at = min(at, self._late[0][0])
                with trio.move_on_at(min(at, spare_at) if raw.has_more_catch_up else at):
                    await self._wake.wait()
                if not self._wake.is_set() and trio.current_time() - at > STALL_S:
                    # The process was stalled: first read what the leader said meanwhile.
                    await trio.sleep(STALL_S)
            begun = trio.current_time()
            self._wake = trio.Event()
            while self._inbox:
                function, arguments = self._inbox.popleft()
                function(*arguments)
            self._judge()
            raw.tick(round(trio.current_time() * 1000))
            while self._late and self._late[0][0] <= begun:
                _, slot, response = self._late.popleft()
                slot.resolve(response)
            spare = begun >= spare_at
            ready = raw.ready(catch_up=spare, committed=not self._committed)
            if ready.restore is not None:
                await self._restore(ready.restore)
            self._carry_out(ready)
            if spare:
                now = trio.current_time()
                spare_at = now + BUSY_SHARE * (now - begun)

    def put(self, function: Callable[..., None], *arguments: Any) -> None:
        """Into the core's inbox. What feeds it is bounded: sessions and links by their windows, posts and
        reads by the limits of `Proposals` and `ReadIndexRequests`, the writer by what it was given."""
        self._inbox.append((function, arguments))
        self._wake.set()

    async def _restore(self, meta: SnapshotMeta) -> None:
        """Go on from a snapshot that came from the leader."""
        # Not in line behind names that no resolver answers for: nothing else goes on meanwhile.
        own = trio.CapacityLimiter(1)
        snapshot = await trio.to_thread.run_sync(self.store.read_state, meta, limiter=own)
        self.application.restore(snapshot.state)
        self._committed.clear()  # it is all in the snapshot
        self.applied_configuration = snapshot.configuration
        self.membership.restored(snapshot.configuration, snapshot.all_members)
        self.log.info("snapshot-restored", index=meta.index, term=meta.term)
        self._have_applied(meta.index, meta.term)

    def _carry_out(self, ready: Ready) -> None:
        if ready.persist is not None:
            self.disk.submitted(ready.persist.token)
            self._writer.submit(ready.persist)
        for received in ready.chunks:
            self.disk.piece_submitted()
            self._writer.submit_chunk(received.token, received.chunk)
        for outgoing in ready.requests:
            self.peers.send(outgoing.peer, outgoing.seq, outgoing.request)
            self.metrics.count_message(outgoing.request.type.name, "out")
        for answer in ready.responses:
            if (slot := self._slots.pop(answer.token, None)) is not None:
                self._answer(slot, answer.response)
        for outcome in ready.outcomes:
            self.proposals.settle(outcome.token, outcome.result)
        for read in ready.reads:
            self.reads.settle(read.token, read.index)
        self._committed.extend(ready.committed)
        if self._committed:
            self._apply()
        if self.raw.leader != self._leader or self.raw.role is not self._role:
            self._note_leader()
        if self.raw.servers is not self._servers:
            self._servers = self.raw.servers
            self.peers.follow(self._servers)

    def _answer(self, slot: PendingResponse, response: Response | None) -> None:
        """A plain leader whose snapshot is refused, or not needed, sends it again as soon as it is answered:
        JRaft waits for nothing else."""
        refused = (
            response is not None
            and response.type is MessageType.INSTALL_SNAPSHOT_RESPONSE
            and not response.next_index
        )
        if refused and slot.session.plain:
            self._late.append((trio.current_time() + self._refusal_pause_s, slot, response))
        else:
            slot.resolve(response)

    def _apply(self) -> None:
        until = trio.current_time() + SLICE_S
        while True:
            entry = self._committed.popleft()
            if entry.value_type is ValueType.CONFIGURATION:
                configuration = decode_configuration(entry.value)
                self.application.configure(entry.index, configuration)
                self.applied_configuration = configuration
                self.membership.applied(configuration)
            else:
                self.application.apply(entry.index, entry.term, entry.value)
            if not self._committed or trio.current_time() >= until:
                break
        self._have_applied(entry.index, entry.term)

    def _have_applied(self, index: int, term: int) -> None:
        if isinstance(self.application, PublisherApplication):
            self._note_fold(self.application)
        self.applied_index, self.applied_term = index, term
        self.raw.report_applied(index)
        self._progressed()

    def _progressed(self) -> None:
        advanced, self._advanced = self._advanced, trio.Event()
        advanced.set()

    def _note_fold(self, application: PublisherApplication) -> None:
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
            self.proposals.leader_changed(status.leader)
        self._role, self._leader = status.role, status.leader
        moved, self._moved = self._moved, trio.Event()
        moved.set()
        self._progressed()

    def _durable(self, token: int) -> None:
        self.disk.durable(token)
        self.put(self.raw.report_persisted, token)

    def _stored(self, token: int, held: int, meta: SnapshotMeta | None) -> None:
        self.disk.piece_stored()
        self.put(self.raw.report_chunk_stored, token, held, meta)

    def _disk_changed(self) -> None:
        silent_s = round(self.disk.silent_s, 1)
        if self.disk.hangs:
            self.log.error("disk-hangs", silent_s=silent_s)
        else:
            self.log.warning("disk-answers", silent_s=silent_s)
        self.put(self.raw.report_disk_hang, self.disk.hangs)
        self._progressed()

    def _wrote(self, entries: int, seconds: float) -> None:
        self.metrics.storage_fsync_seconds.observe(seconds)
        self.metrics.storage_batch_entries.observe(entries)

    def _peer_changed(self, peer: int, error: Exception | None) -> None:
        if error is None:
            self.log.info("peer-connected", peer=peer)
        else:
            if isinstance(error, RemoteProtocolError):
                self.metrics.count_refused("answer")
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

    @property
    def leader_commit(self) -> int | None:
        """Up to where the leader has committed, as it last told; None: there is none, or it was not heard."""
        if self.is_leader:
            return self.raw.status().commit
        source, commit = self._leader_commit
        return commit if source and source == self._leader else None

    def heard_from(self, member: int, request: Request) -> None:
        """A request came in from ``member`` (0: a client)."""
        self.metrics.count_message(request.type.name, "in")
        if request.type in _LEADERS:
            self._leader_commit = (member, request.commit_index)
        if member:
            self.peers.heard_from(member)

    def next_token(self) -> int:
        """A number that no input of the core has had."""
        self._next_token += 1
        return self._next_token

    def step(self, request: Request, slot: PendingResponse) -> None:
        """Pass a request to the core; ``slot`` gets the answer."""
        slot.token = token = self.next_token()
        self._slots[token] = slot
        self.put(self._step, request, token)

    def forget(self, slots: Iterable[PendingResponse]) -> None:
        """Their connection is gone, so nothing waits for the answers. Answers may never come: those that wait
        for a disk that hangs."""
        self.put(self._forget, [slot.token for slot in slots])

    def _forget(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._slots.pop(token, None)

    def _step(self, request: Request, token: int) -> None:
        refused = self.membership.refusal(request)
        if refused is not None:
            self._slots.pop(token).resolve(refused)
            return
        if request.type is MessageType.CLIENT_REQUEST and request.entries:
            session = self._slots[token].session
            post = (request, token, session.refusals(request))
            self._judging.setdefault(session, deque()).append(post)
        else:
            self._pass_on(request, token)

    def _judge(self) -> None:
        """Judge posted entries. Only now, and not when they come in: this member may not have led yet."""
        until = trio.current_time() + SLICE_S
        while self._judging:
            session = next(iter(self._judging))
            posts = self._judging.pop(session)
            request, token, refusals = posts[0]
            refusal = None  # where this member does not lead, the core answers with the leader's id
            forgotten = token not in self._slots  # its connection is closed: the client knows no outcome
            if not forgotten and self.raw.role is Role.LEADER:
                refusal = next(refusals, None)
                while refusal == 0 and trio.current_time() < until:
                    refusal = next(refusals, None)
            if refusal != 0:  # judged to the end
                posts.popleft()
            if refusal:
                self._slots.pop(token).resolve(self.refuse(refusal))
            elif refusal is None and not forgotten:
                self._pass_on(request, token)
            if posts:
                self._judging[session] = posts  # behind the others
            if trio.current_time() >= until:
                return

    def _pass_on(self, request: Request, token: int) -> None:
        try:
            self.raw.step(request, token)
        except RemoteProtocolError as fault:
            self.metrics.count_refused("protocol")
            self._slots.pop(token).session.fail(fault)
        if request.type is MessageType.LEAVE_CLUSTER_REQUEST and self.raw.leader == request.source:
            self.membership.told_to_leave()

    def refuse(self, reason: int) -> Response:
        """The answer to a ClientRequest that is not appended for ``reason`` (D8)."""
        self.metrics.count_proposals("refused")
        kind = MessageType.APPEND_ENTRIES_RESPONSE
        return Response(kind, self.node_id, self.node_id, self.raw.term, reason, False)

    # ------------------------------------------------------------------ posting

    async def post_entry(self, entry: bytes, author: int) -> tuple[int, int]:
        """See `Proposals.post`."""
        return await self.proposals.post(entry, author)

    async def hand_over(self) -> None:
        """Have another member lead, if this one does and there is another. Returns when it leads no
        longer, or nobody took over within the deadline of a request."""
        with trio.move_on_after(self.section.raft.rpc_timeout_s):
            try:
                await self.membership.step_down(0)
            except (NotLeader, ProposalDropped, NoQuorum) as error:
                self.log.debug("not-handed-over", cause=str(error))

    # ------------------------------------------------------------------ waiting

    async def wait_applied(self, beyond: int) -> None:
        """Return once something with an index > ``beyond`` was applied."""
        while self.applied_index <= beyond:
            await self.wait_progress()

    async def wait_progress(self) -> None:
        """Return when something is applied, or the leader or role changes."""
        await self._advanced.wait()

    async def wait_leader_change(self) -> None:
        """Return at the next change of leader or role."""
        await self._moved.wait()

    @property
    def configuration(self) -> Configuration:
        """The Configuration in force."""
        return self.raw.configuration
