"""Changes of the members, and the orders to leave for removed ones.

Source: docs/reference/protocol.md, "What JRaft's bytes settle"; D6 (which messages each identity may send)
and D12 (an id is used once).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NoReturn

import trio

from garlicfarm.errors import (
    AuthError,
    GarlicFarmError,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    ProposalDropped,
    RemoteProtocolError,
    TransportError,
)
from garlicfarm.logs import EventLogger
from garlicfarm.net.handshake import Established
from garlicfarm.net.link import CONNECTION_ERRORS, Backoff, LinkConfig, RpcClient, close
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.peers import Peers
from garlicfarm.node.programs import Programs
from garlicfarm.node.proposals import Proposal, Proposals
from garlicfarm.node.removal import Removal
from garlicfarm.node.session import PendingResponse
from garlicfarm.raft import Change, ConfChange
from garlicfarm.refusals import Refusal
from garlicfarm.wire import encode_cluster_server
from garlicfarm.wire.messages import (
    NO_LEADER,
    ClusterServer,
    Configuration,
    LogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)

NOTIFY_EVERY_S = 60.0
ASK_AGAIN_S = 0.05


class Membership:
    """The members of one farm, and changes of them. ``dial(id, endpoint)`` opens an authenticated stream to
    a member. ``all_members``: the last endpoint of every id that was ever a member's."""

    def __init__(
        self,
        core: CoreInbox,
        peers: Peers,
        proposals: Proposals,
        programs: Programs,
        dial: Callable[[int, str], Awaitable[Established]],
        note_leave_order: Callable[[int | None], None] | None,
        log: EventLogger,
    ) -> None:
        self._core = core
        self._peers = peers
        self._proposals = proposals
        self._programs = programs
        self._dial = dial
        self._log = log
        self._backoff = Backoff(random.random, longest_s=core.raft.heartbeat_s)
        self.all_members = {server.id: server.endpoint for server in core.applied.configuration.servers}
        self._current = frozenset(self.all_members)
        self._next_notice: dict[int, float] = {}  # id → when it may be ordered to leave again
        self._tasks: deque[Callable[[], Awaitable[None]]] = deque()
        self._has_tasks = trio.Event()
        self._is_serving = False
        self._removal = Removal(core, peers, note_leave_order)
        self._change: Proposal | None = None  # the last one that this member proposed

    @property
    def removed(self) -> dict[int, str]:
        """Id and last endpoint of every member whose removal is applied here."""
        return {member: at for member, at in self.all_members.items() if member not in self._current}

    def is_member(self, server: int) -> bool:
        """Whether the applied Configuration names this server."""
        return server in self._current

    @property
    def was_removed(self) -> bool:
        """Whether a Configuration without this member was applied here after one with it, in this run."""
        return self._removal.is_applied

    @property
    def is_changing(self) -> bool:
        """Whether this member, as the leader, is changing the Configuration."""
        return self._change is not None and not self._change.done.is_set()

    def on_restored(self, configuration: Configuration, all_members: Sequence[ClusterServer]) -> None:
        """The application was restored from a snapshot with these members, and all that ever were."""
        self.all_members.update((server.id, server.endpoint) for server in all_members)
        self.on_applied(configuration)

    def on_applied(self, configuration: Configuration) -> None:
        """A Configuration is applied."""
        node_id, members = self._core.node_id, frozenset(server.id for server in configuration.servers)
        self.all_members.update((server.id, server.endpoint) for server in configuration.servers)
        gone, self._current = self._current - members, members
        if node_id in gone:
            self._removal.on_applied()
        for member in gone - {node_id}:
            self._log.info("member-removed", peer=member)
            self._notify_removed(member)

    # ------------------------------------------------------------------ the tasks

    async def run(self) -> NoReturn:
        """Order removed members to leave; raises `Removed` when this one is removed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._removal.watch)
            while True:
                await self._has_tasks.wait()
                self._has_tasks = trio.Event()
                while self._tasks:
                    nursery.start_soon(self._tasks.popleft())

    def _notify_removed(self, member: int) -> None:
        endpoint, now = self.all_members.get(member, ""), trio.current_time()
        if self._core.is_leader and endpoint and now >= self._next_notice.get(member, now):
            self._next_notice[member] = now + NOTIFY_EVERY_S
            self._start(partial(self._order_to_leave, member, endpoint))

    def _start(self, task: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(task)
        self._has_tasks.set()

    async def _order_to_leave(self, member: int, endpoint: str) -> None:
        core = self._core
        await trio.sleep(2 * core.raft.heartbeat_s)  # let the others learn of the commit first
        if not core.is_leader:
            return
        status = core.raw.status()
        last = (0, status.last_index, status.commit)
        request = Request(MessageType.LEAVE_CLUSTER_REQUEST, core.node_id, member, status.term, *last)
        timeout_s = core.raft.rpc_timeout_s
        connect = partial(self._dial, member, endpoint)
        config = LinkConfig(connect=connect, server_id=member, timeout_s=timeout_s, backoff=self._backoff)
        client = RpcClient(config)
        with trio.move_on_after(timeout_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                try:
                    await client.call(request)
                except GarlicFarmError as error:
                    self._log.info("member-not-told", peer=member, cause=str(error))
                nursery.cancel_scope.cancel()

    # ------------------------------------------------------------------ changes

    async def change(self, change: ConfChange, *, asks_leader: bool = True) -> tuple[int, int]:
        """Change one server, or raise the level; (index, term) of the Configuration after its commit. Only
        the leader changes them: another member, if it ``asks_leader``, asks it over the wire to add or remove
        one. A leader that is to be removed hands over first. The index is 0 if a JRaft leader has this member
        leave without telling it of the commit.

        Raises `NotLeader` (the wire can neither change an endpoint nor raise, nor use ``force``), `NoQuorum`,
        `ProposalDropped`: certainly not done; `OutcomeUnknown`. Once a leader has agreed to add a server,
        this takes as long as the server takes to catch up.
        """
        core, is_own_removal = self._core, change.change is Change.REMOVE and self._is_own(change)
        first, was_asked = 0, False
        patience_s = 2 * core.raft.election_timeout_max_s + core.answer_timeout_s
        with trio.move_on_after(patience_s) as patience:
            while True:
                if not asks_leader or change.change in (Change.SET, Change.RAISE):
                    core.must_lead()
                leader = core.leader_id
                first = first or leader
                try:
                    if core.is_leader:
                        proposal = await self._begin(change, patience.deadline)
                        patience.deadline = math.inf
                        return await self._proposals.outcome(proposal)
                    if not leader:
                        await core.wait_leader_change()
                    elif (term := await self._ask(leader, change)) is not None:
                        was_asked = True
                        if change.change is Change.ADD:
                            patience.deadline = math.inf
                        return await self._wait_effect(change), term
                except NotLeader:
                    pass  # it no longer leads
                except OutcomeUnknown:
                    if not is_own_removal:
                        raise
                    was_asked = True  # ask again: a repeated removal does no harm
                except ProposalDropped as dropped:
                    few = dropped.reason == Refusal.TOO_FEW_MEMBERS_HEARD
                    if few and change.force:
                        core.must_lead()
                    # A new leader has heard from few members so far.
                    if not (few and leader != first) and dropped.reason != Refusal.LEADERSHIP_IN_TRANSFER:
                        raise
                await trio.sleep(ASK_AGAIN_S)
        if was_asked:
            raise OutcomeUnknown("the leader was asked for the change, which is not known to be committed")
        raise NoQuorum(f"no leader was found within {patience_s:g} s")

    async def _ask(self, leader: int, change: ConfChange) -> int | None:
        """Ask ``leader``, over the wire, to add or remove a server; the term in which it began the change,
        None if it certainly did not, and another member may lead.

        Raises `ProposalDropped`: it refuses; `OutcomeUnknown`.
        """
        core, is_removal = self._core, change.change is Change.REMOVE
        kind = MessageType.REMOVE_SERVER_REQUEST if is_removal else MessageType.ADD_SERVER_REQUEST
        value = encode_cluster_server(change.server, id_only=is_removal)
        entry = LogEntry(0, ValueType.CLUSTER_SERVER, value)
        try:
            response = await self._peers.call(leader, Request(kind, core.node_id, leader, entries=(entry,)))
        except (TransportError, AuthError, RemoteProtocolError) as error:
            self._log.info("leader-not-asked", peer=leader, cause=str(error))
            return None
        if response is None or (not response.accepted and response.destination != leader):
            return None
        if response.accepted:
            return response.term
        # A JRaft server gives its next index instead of a reason.
        if not self._peers.extensions(leader):
            raise ProposalDropped(Refusal.REFUSED)
        raise ProposalDropped(Refusal.of_change(response.next_index))

    async def _wait_effect(self, change: ConfChange) -> int:
        """The index of the applied Configuration once that is as ``change`` makes it. 0: it is this member's
        own removal, and it leaves before, as it was told to."""
        while self.is_member(change.server.id) != (change.change is Change.ADD):
            if self._removal.is_over and self._is_own(change):
                return 0
            await self._core.wait_progress()
        return self._core.applied.configuration.log_index

    def check(self, change: ConfChange) -> None:
        """Raises `ProposalDropped` if the change would be refused now, as far as this member can tell: only
        the leader knows which members are heard, and whether another change is in flight."""
        core, servers = self._core, self._core.configuration.servers
        is_member = any(server.id == change.server.id for server in servers)
        if change.change is Change.REMOVE and not is_member:
            raise ProposalDropped(Refusal.NO_SUCH_MEMBER)
        if change.change is Change.REMOVE and len(servers) == 1:
            raise ProposalDropped(Refusal.THE_LAST_MEMBER)
        if core.is_leader:
            core.raw.check_conf_change(change)

    def _is_own(self, change: ConfChange) -> bool:
        return change.server.id == self._core.node_id

    async def _begin(self, change: ConfChange, deadline: float) -> Proposal:
        """Begin a change, before ``deadline`` on Trio's clock."""
        core, server = self._core, change.server
        core.must_lead()
        if change.change is Change.REMOVE and self._is_own(change):
            self._removal.check(change.force)
            await core.step_down(0, deadline)
            core.must_lead()
        if change.change is Change.ADD and server.id in self.all_members and server.id not in self._current:
            raise ProposalDropped(Refusal.ID_USED_BEFORE)
        if change.change is Change.RAISE and (hindered_by := self._programs.hindered_by(change.level)):
            raise ProposalDropped(Refusal.CANNOT_FOLLOW_LEVEL, "; ".join(hindered_by))
        if change.change in (Change.ADD, Change.SET) and server.id != core.node_id:
            await self._dial_back(server)
        while True:
            applied, start = core.applied_index, partial(core.raw.propose_conf_change, change)
            self._change = proposal = self._proposals.propose(start)
            await proposal.begun.wait()
            if proposal.dropped is None:
                break
            if proposal.dropped.reason == Refusal.NOT_LEADER:
                core.must_lead()
            if proposal.dropped.reason != Refusal.NOTHING_COMMITTED_YET or trio.current_time() >= deadline:
                raise proposal.dropped
            with trio.move_on_at(deadline):
                await core.wait_applied(applied)  # it was only just elected
        if change.change is not Change.RAISE:
            self._log.info("member-change", change=change.change.value, peer=server.id)
        return proposal

    async def _dial_back(self, server: ClusterServer) -> None:
        core, cause = self._core, "no answer in time"
        with trio.move_on_after(core.raft.rpc_timeout_s):
            try:
                established = await self._dial(server.id, server.endpoint)
            except CONNECTION_ERRORS as error:
                cause = str(error) or type(error).__name__
            else:
                await close(established.stream)
                if problem := self._programs.problem(server.id, established.program):
                    raise ProposalDropped(Refusal.CANNOT_FOLLOW_LEVEL, problem)
                return
        raise ProposalDropped(Refusal.CANNOT_BE_DIALLED, cause)

    # ------------------------------------------------------------------ requests

    def refusal(self, request: Request) -> Response | None:
        """The answer to a member whose removal is applied here; None: serve the request. Appends and votes of
        such a member are refused (D6), and the leader orders it to leave."""
        member, core = request.source, self._core
        if member in self._current or member not in self.all_members:
            return None
        self._notify_removed(member)
        kind, leader = MessageType(request.type + 1), core.leader_id or NO_LEADER
        if request.type is MessageType.CLIENT_REQUEST:
            kind = MessageType.APPEND_ENTRIES_RESPONSE
        asks_leader = request.type in (MessageType.CLIENT_REQUEST, MessageType.READ_INDEX_REQUEST)
        return Response(kind, core.node_id, leader if asks_leader else member, core.raw.term, 0, False)

    def on_order_to_leave(self) -> None:
        """The leader says that this member is removed."""
        self._removal.on_order()

    def serve(self, request: Request, server: ClusterServer, pending: PendingResponse) -> None:
        """Answer an AddServerRequest or RemoveServerRequest about ``server``: accepted once the change has
        begun. One at a time: each needs a connection to that server."""
        if self._is_serving:
            reason = Refusal.ANOTHER_CHANGE_IN_FLIGHT
            pending.resolve(self._answer(request, self._core.node_id, reason.number))
        else:
            self._is_serving = True
            self._start(partial(self._serve, request, server, pending))

    async def _serve(self, request: Request, server: ClusterServer, pending: PendingResponse) -> None:
        core, destination = self._core, self._core.node_id
        number: int | None = 0
        add = request.type is MessageType.ADD_SERVER_REQUEST
        # Its connection is closed if the answer takes longer than this plus a heartbeat.
        deadline = pending.since + core.answer_timeout_s - core.raft.heartbeat_s
        try:
            await self._begin(ConfChange(Change.ADD if add else Change.REMOVE, server), deadline)
        except NotLeader as error:
            destination, number = error.leader_id or NO_LEADER, None
        except ProposalDropped as dropped:
            self._log.info("member-change-refused", peer=server.id, reason=dropped.full_reason)
            number = dropped.reason.number or Refusal.NO_SUCH_MEMBER.number
        except NoQuorum:
            number = Refusal.TOO_FEW_MEMBERS_HEARD.number if core.is_leader else None
            destination = core.leader_id or NO_LEADER
        finally:
            self._is_serving = False
        pending.resolve(self._answer(request, destination, number))

    def _answer(self, request: Request, destination: int, number: int | None) -> Response:
        """``number``: of the reason to refuse; 0: the change has begun; None: another member leads."""
        core, kind = self._core, MessageType(request.type + 1)
        next_index = number or core.raw.status().last_index + 1
        return Response(kind, core.node_id, destination, core.raw.term, next_index, number == 0)
