"""The replica of one farm on this node: the consensus core, the parts around it, and what each turn of the
core (`garlicfarm.node.turns`) has them do."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

import msgspec
import trio

from garlicfarm.application import Application
from garlicfarm.config import FarmSection
from garlicfarm.digests import Digests
from garlicfarm.errors import NoQuorum, NotLeader, ProposalDropped, RemoteProtocolError
from garlicfarm.levels import COMPARING
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import FarmMetrics
from garlicfarm.net.handshake import Established
from garlicfarm.net.link import Backoff, close
from garlicfarm.node.applier import Applier
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.disk_watch import DiskWatch
from garlicfarm.node.hindrances import Hindrances
from garlicfarm.node.incoming_requests import IncomingRequests
from garlicfarm.node.leases import Leases
from garlicfarm.node.membership import Membership
from garlicfarm.node.peers import Peers, PeerTimings
from garlicfarm.node.programs import Programs
from garlicfarm.node.proposals import Proposals, origin_now
from garlicfarm.node.read_index import ReadIndexRequests
from garlicfarm.node.session import Principal, Session
from garlicfarm.node.space_watch import SpaceWatch
from garlicfarm.node.store import MakeWriter, Store
from garlicfarm.node.turns import Turns
from garlicfarm.raft import Change, ConfChange, RawNode, Ready, SnapshotMeta, Status
from garlicfarm.refusals import Refusal
from garlicfarm.router import Router
from garlicfarm.wire.messages import ClusterServer, Configuration, MessageType, Response

REPAIR_MS = 60_000
"""For so long a member that is being repaired waits for another piece of the leader's snapshot."""


class ReplicaHost(msgspec.Struct, frozen=True):
    """The node's services for one of its replicas.

    ``base_dir`` and ``data_dir``: see `garlicfarm.application.ApplicationContext`. ``dial(id, endpoint)``
    opens an authenticated stream to another member. ``router``: the farm's, entered.
    ``note_leave_order(term)`` keeps for the next start that the leader of ``term`` told this member to leave,
    and forgets it with None; blocking, durable on return. ``admin_url()``: the node's admin URL as other
    machines reach it, None if they cannot.
    """

    node_id: int
    base_dir: Path
    data_dir: Path
    dial: Callable[[int, str], Awaitable[Established]]
    metrics: FarmMetrics
    log: EventLogger
    router: Router | None = None
    note_leave_order: Callable[[int | None], None] | None = None
    admin_url: Callable[[], str | None] = lambda: None


class Replica:
    """A member of one farm, from its open store to its place in the cluster. To its application it is the
    `garlicfarm.application.ApplicationContext`.

    ``application`` is in the state that ``store.snapshot()`` names: a new one where that is index 0.
    """

    def __init__(
        self,
        section: FarmSection,
        store: Store,
        make_writer: MakeWriter,
        application: Application,
        host: ReplicaHost,
    ) -> None:
        raft, metrics, log = section.raft, host.metrics, host.log
        self.farm = section.name
        self.node_id = host.node_id
        self.base_dir = host.base_dir
        self.data_dir = host.data_dir
        self.router = host.router
        self.section = section
        self.store = store
        self.application = application
        self.metrics = metrics
        self.log = log
        self.core = core = CoreInbox(section, host.node_id, store)
        self.disk = DiskWatch(raft.disk_timeout_s, self._on_disk_change)
        self.space = SpaceWatch()
        timings = PeerTimings(
            rpc_timeout_s=raft.rpc_timeout_s,
            call_timeout_s=core.answer_timeout_s,
            heartbeat_s=raft.heartbeat_s,
            election_timeout_min_s=raft.election_timeout_min_s,
        )
        backoff = Backoff(random.random, longest_s=raft.heartbeat_s)
        self._dial = host.dial
        self.peers = Peers(host.node_id, self._dial_peer, timings, backoff, events=self)
        self.hindrances = Hindrances(core, metrics, log)
        self.programs = Programs(section.application, core, self.peers, self.hindrances)
        self.proposals = Proposals(core, self.peers, self.disk, store, application, metrics, self.space)
        self.reads = ReadIndexRequests(core, self.disk)
        self.membership = Membership(
            core, self.peers, self.proposals, self.programs, host.dial, host.note_leave_order, log
        )
        self.leases = Leases(core, self.peers, application.lease_user(), self.proposals.append, log)
        self.requests = IncomingRequests(
            core,
            self.membership,
            self.leases,
            self.peers,
            application,
            metrics,
            self.hindrances,
            self.space,
            self._run_turn,
        )
        self.applier = Applier(core, self.membership, application, store, log)
        self._turns = Turns(core, self.requests, self.applier, self._carry_out)
        self.writer = make_writer(self._on_durable, self._on_batch, self._on_chunk, self._on_problem)
        self._servers: tuple[ClusterServer, ...] = ()
        self._admin_url = host.admin_url

    # ------------------------------------------------------------------ for the application, and for others

    @property
    def raw(self) -> RawNode:
        """The consensus core; read-only."""
        return self.core.raw

    @property
    def admin_url(self) -> str | None:
        return self._admin_url()

    @property
    def configuration(self) -> Configuration:
        return self.core.configuration

    @property
    def is_leader(self) -> bool:
        return self.core.is_leader

    @property
    def leader_id(self) -> int:
        """Id of the leader, 0 if none is known."""
        return self.core.leader_id

    @property
    def is_changing_members(self) -> bool:
        return self.membership.is_changing

    @property
    def applied_index(self) -> int:
        return self.core.applied_index

    @property
    def digests(self) -> Digests | None:
        return self.applier.digests.newest

    def raft_status(self) -> Status:
        return self.core.raw.status()

    async def post(self, entry: bytes) -> tuple[int, int]:
        return await self.proposals.post(entry, origin_now(self.node_id))

    async def wait_applied(self, beyond: int) -> None:
        await self.core.wait_applied(beyond)

    async def step_down(self, to: int = 0) -> int:
        return await self.core.step_down(to)

    async def remove_member(
        self, member: int, by: str, *, force: bool = False, asks_leader: bool = False
    ) -> tuple[int, int]:
        """As `garlicfarm.application.ApplicationContext` says. ``force``: also if too few members are
        reachable. ``asks_leader``: where this member does not lead, as `Membership.change` does it."""
        if not asks_leader:
            self.core.must_lead()
        change = ConfChange(Change.REMOVE, ClusterServer(member, ""), force)
        self.membership.check(change)  # the log does not name an order that is not obeyed
        origin = origin_now(self.node_id, by)
        entry = self.application.removal_entry(member, origin)
        if entry is not None:
            index, _ = await self.proposals.post(entry, origin)
            self.log.info("administered", action="remove", user=by, index=index)
        return await self.membership.change(change, asks_leader=asks_leader)

    # ------------------------------------------------------------------ the tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Run until cancelled. Raises `StorageError`: a write failed, and the replica cannot continue;
        `Removed`: the farm removed this member."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.writer.run)
            self.applier.configure_genesis()
            nursery.start_soon(self.peers.run)
            nursery.start_soon(self.membership.run)
            nursery.start_soon(self.disk.watch)
            nursery.start_soon(self.leases.run)
            # Trio runs it before the loop returns from its first checkpoint and applies anything.
            nursery.start_soon(self.application.run, self)
            nursery.start_soon(self._turns.run)
            task_status.started()
        raise AssertionError("unreachable: the tasks of a replica only end by an error")

    async def _dial_peer(self, member: int, endpoint: str) -> Established:
        established = await self._dial(member, endpoint)
        try:
            self.programs.judge(member, established.program)
        except RemoteProtocolError:
            await close(established.stream)
            raise
        return established

    def _carry_out(self, ready: Ready) -> None:
        raw = self.core.raw
        if ready.persist is not None:
            self.disk.on_submit(ready.persist.token)
            self.space.on_submit(sum([len(entry.value) for entry in ready.persist.entries]))
            self.writer.submit(ready.persist)
        for received in ready.chunks:
            self.disk.on_piece_submit()
            self.space.on_submit(len(received.chunk.data))
            self.writer.submit_chunk(received.token, received.chunk, received.source)
        for outgoing in ready.requests:
            self.leases.on_sending(outgoing.peer, outgoing.seq)
            self.peers.send(outgoing.peer, outgoing.seq, outgoing.request)
            self.metrics.sent[outgoing.request.type] += 1
        if ready.requests:
            self.leases.on_sent()
            self.peers.flush()
        if ready.responses:
            self.requests.answer(ready.responses)
        for outcome in ready.outcomes:
            self.proposals.on_outcome(outcome.token, outcome.result)
        for read in ready.reads:
            self.reads.on_index(read.token, read.index)
        self.applier.add(ready.committed)
        self.leases.follow()
        if raw.leader != self.core.leader_id or raw.role is not self.core.role:
            self._on_leader()
        if raw.servers is not self._servers:
            self._servers = raw.servers
            self.peers.follow(self._servers)

    def _run_turn(self, has_posts: bool) -> None:
        """A session has put in requests. While the disk is busy, posts wait for others to share a write."""
        if has_posts and self.disk.has_work:
            self.core.wake()
        else:
            self._turns.run_now()

    def _on_leader(self) -> None:
        core, status = self.core, self.core.raw.status()
        if status.role is not core.role:
            self.log.info(f"became-{status.role.value}", term=status.term)
        if status.leader != core.leader_id:
            self.log.info("leader", leader=status.leader or "none", term=status.term)
            if status.leader:
                self.metrics.raft_leader_changes.inc()
            self.proposals.on_leader(status.leader)
        core.on_leader(status.role, status.leader, time.time_ns() // 1_000_000)

    # ------------------------------------------------------------------ events of the store

    def _on_durable(self, token: int) -> None:
        self.disk.on_durable(token)
        self.core.add(self.core.raw.report_persisted, token)
        self._turns.run_now()

    def _on_chunk(self, token: int, held: int, meta: SnapshotMeta | None) -> None:
        self.disk.on_piece_stored()
        self.core.put(self.core.raw.report_chunk_stored, token, held, meta)

    def _on_batch(self, entries: int, seconds: float) -> None:
        self.metrics.storage_fsync_seconds.observe(seconds)
        self.metrics.storage_batch_entries.observe(entries)

    def _on_problem(self, problem: str) -> None:
        self.log.warning("snapshot-refused", cause=problem)
        self.hindrances.on_snapshot_refused()

    def _on_disk_change(self) -> None:
        silent_s = round(self.disk.silent_s, 1)
        if self.disk.is_hanging:
            self.log.error("disk-hangs", silent_s=silent_s)
        else:
            self.log.warning("disk-answers", silent_s=silent_s)
        self.core.put(self.core.raw.report_disk_hang, self.disk.is_hanging)
        self.core.wake_waiting()

    # ------------------------------------------------------------------ events of the peers

    def on_response(self, seq: int, response: Response) -> None:
        """See `PeerEvents`, as for the following ones."""
        self.leases.on_response(seq, response)
        if seq > 0:
            self.core.add(self._step_response, seq, response)

    def _step_response(self, seq: int, response: Response) -> None:
        self.core.raw.step_response(seq, response)
        self.hindrances.on_response(response)
        if response.type is MessageType.INSTALL_SNAPSHOT_RESPONSE:
            self.hindrances.on_snapshot_answered(response.source)

    def on_received(self) -> None:
        self._turns.run_now()

    def on_unreachable(self, peer: int, seq: int) -> None:
        self.leases.on_unreachable(peer, seq)
        if seq > 0:
            self.core.put(self.core.raw.report_unreachable, peer, seq)

    def on_connected(self, peer: int, extensions: frozenset[str]) -> None:
        self.core.put(self.core.raw.set_extensions, peer, extensions)

    def on_connection_change(self, peer: int, error: Exception | None) -> None:
        if error is None:
            self.log.info("peer-connected", peer=peer)
        else:
            if isinstance(error, RemoteProtocolError):
                self.metrics.count_refused("answer")
            self.log.warning("peer-lost", peer=peer, cause=str(error) or type(error).__name__)

    def on_slow_peer(self, peer: int, p99_s: float, limit_s: float) -> None:
        p99_ms, limit_ms = round(p99_s * 1000), round(limit_s * 1000)
        self.log.warning("slow-round-trip", peer=peer, p99_ms=p99_ms, limit_ms=limit_ms)

    def on_process_gone(self, peer: int) -> None:
        raw = self.core.raw
        if peer == raw.leader:
            self.log.info("leader-gone", leader=peer, term=raw.term)
            self.core.put(raw.report_leader_gone, peer, raw.term)

    # ------------------------------------------------------------------ for the node

    async def serve(self, stream: trio.abc.Stream, principal: Principal, leftover: bytes = b"") -> None:
        """Serve the incoming connection of ``principal``, which has logged in, as `Session.run` does.
        ``leftover``: bytes that came before those of the stream. Raises `RemoteProtocolError`, also for a
        member whose program cannot follow the farm."""
        member, timeout_s = principal.member_id, self.core.answer_timeout_s
        if member and not principal.is_jraft:
            self.programs.judge(member, principal.program)
        self.peers.on_session_begun(member)
        try:
            await Session(self.requests, stream, principal, leftover, timeout_s).run()
        finally:
            self.peers.on_session_ended(member)

    async def repair(self) -> int:
        """Have the leader send its state and the end of its log in place of this member's own (D26); the
        index up to which that reaches. Until they are durable everything stays as it is.

        Raises `ProposalDropped`: this member leads, or knows no leader; below the level nobody can;
        `NoQuorum`: the leader did not send them in time. Cancelled, it may still be done.
        """
        core, raw = self.core, self.core.raw
        if core.configuration.level < COMPARING:
            raise ProposalDropped(Refusal.NOT_COMPARED)
        if core.is_leader:
            raise ProposalDropped(Refusal.LEADS_ITSELF)
        if not core.leader_id:
            raise NoQuorum("this member knows no leader that could send what it holds")
        restored, begun = self.applier.restored, trio.Event()

        def begin() -> None:
            raw.request_snapshot(round(trio.current_time() * 1000) + REPAIR_MS)
            begun.set()

        core.put(begin)
        await begun.wait()
        while self.applier.restored == restored:
            if not raw.wants_snapshot:
                await core.wait_applied(raw.status().commit - 1)  # one that came before is restored by then
                if self.applier.restored != restored:
                    break
                raise NoQuorum(f"for {REPAIR_MS // 1000} s the leader has sent nothing of a newer snapshot")
            with trio.move_on_after(self.section.raft.heartbeat_s):
                await core.wait_progress()
        return core.applied_index

    async def hand_over(self, to: int = 0) -> None:
        """If this member leads, transfer the leadership to ``to``, 0: the one best placed. Returns when it no
        longer leads, or when no member took over within the deadline of a request."""
        with trio.move_on_after(self.section.raft.rpc_timeout_s):
            try:
                await self.step_down(to)
            except (NotLeader, ProposalDropped, NoQuorum) as error:
                self.log.debug("not-handed-over", cause=str(error))
