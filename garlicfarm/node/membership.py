"""Who joins, who leaves, and what becomes of those that left (protocol page §5, D6, D12)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import trio

from garlicfarm.errors import (
    AuthError,
    GarlicFarmError,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    ProposalDropped,
    RemoteProtocolError,
    Removed,
    TransportError,
)
from garlicfarm.net.link import CONNECTION_ERRORS, RpcClient, close
from garlicfarm.raft import Change, ConfChange, Refusal
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

if TYPE_CHECKING:
    from garlicfarm.node.proposals import Proposal
    from garlicfarm.node.replica import Replica
    from garlicfarm.node.session import PendingResponse

__all__ = ["Membership"]

TOLD_EVERY_S = 60.0
ASK_AGAIN_S = 0.05
_REASONS = {
    "id-used-before": Refusal.ID_USED,
    "a-member-already": Refusal.ID_USED,
    "another-change-in-flight": Refusal.CHANGE_IN_FLIGHT,
    "nothing-committed-yet": Refusal.CHANGE_IN_FLIGHT,
    "leadership-in-transfer": Refusal.TRANSFER,
    "disk-hangs": Refusal.TRANSFER,
    "endpoint-of-another-member": Refusal.ENDPOINT,
    "too-few-members-heard": Refusal.NO_QUORUM,
    "the-last-member": Refusal.NO_QUORUM,
    "cannot-be-dialled": Refusal.NOT_DIALLED,
}
_WORDS = {
    Refusal.APPLICATION: "no-such-member",
    Refusal.TRANSFER: "leadership-in-transfer",
    Refusal.ID_USED: "id-used-before",
    Refusal.CHANGE_IN_FLIGHT: "another-change-in-flight",
    Refusal.NOT_DIALLED: "cannot-be-dialled",
    Refusal.ENDPOINT: "endpoint-of-another-member",
    Refusal.NO_QUORUM: "too-few-members-heard",
}
"""What a refusal says to a member that asks for a change."""


class Membership:
    """The changes of one farm's members. ``ever``: the last endpoint of every id that was a member's."""

    def __init__(self, farm: Replica, configuration: Configuration) -> None:
        self._farm = farm
        self.ever = {server.id: server.endpoint for server in configuration.servers}
        self._current = frozenset(self.ever)
        self._told: dict[int, float] = {}  # when a removed id was last told that it is
        self._tasks: deque[Callable[[], Awaitable[None]]] = deque()
        self._work = trio.Event()
        self._serving = False
        self._left = trio.Event()  # the leader says that this member is removed
        self._out = trio.Event()  # the applied Configuration says so
        self._change: Proposal | None = None  # the last one that this member proposed

    @property
    def removed(self) -> dict[int, str]:
        """Id and last endpoint of everybody whose removal is applied here."""
        return {member: at for member, at in self.ever.items() if member not in self._current}

    def is_member(self, server: int) -> bool:
        """Whether the applied Configuration names this server."""
        return server in self._current

    @property
    def changing(self) -> bool:
        """Whether this member, as the leader, is changing the Configuration."""
        return self._change is not None and not self._change.done.is_set()

    def restored(self, configuration: Configuration, ever: Sequence[ClusterServer]) -> None:
        """The application goes on from a snapshot with this Configuration, in which ``ever`` were members."""
        self.ever.update((server.id, server.endpoint) for server in ever)
        self.applied(configuration)

    def applied(self, configuration: Configuration) -> None:
        """A Configuration is applied."""
        farm, members = self._farm, frozenset(server.id for server in configuration.servers)
        self.ever.update((server.id, server.endpoint) for server in configuration.servers)
        gone, self._current = self._current - members, members
        if farm.node_id in gone:
            self._out.set()
        for member in gone - {farm.node_id}:
            farm.log.info("member-removed", peer=member)
            self._tell(member)

    # ------------------------------------------------------------------ the tasks

    async def run(self) -> NoReturn:
        """Tell removed members that they are; raises `Removed` when this one is."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            while True:
                await self._work.wait()
                self._work = trio.Event()
                while self._tasks:
                    nursery.start_soon(self._tasks.popleft())

    async def _watch(self) -> NoReturn:
        """A member that is told to leave waits for the Configuration that says so, as JRaft's do, and one
        that learns it from there for the leader's word, but neither for ever. Until then it gives its vote
        to members that have not heard of the commit. Appends of a later leader make the word void."""
        wait_s = 2 * self._farm.section.raft.election_timeout_max_s
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._outside, wait_s, nursery.cancel_scope)
            nursery.start_soon(self._told_to_go, wait_s, nursery.cancel_scope)
        raise Removed(self._farm.name)

    async def _outside(self, wait_s: float, scope: trio.CancelScope) -> None:
        await self._out.wait()
        with trio.move_on_after(wait_s):
            await self._left.wait()
        scope.cancel()

    async def _told_to_go(self, wait_s: float, scope: trio.CancelScope) -> None:
        while True:
            await self._left.wait()
            with trio.move_on_after(wait_s):
                await self._out.wait()
            if self._out.is_set() or self._farm.raw.is_leaving:
                scope.cancel()
                return
            self._left = trio.Event()

    def _tell(self, member: int) -> None:
        farm, endpoint = self._farm, self.ever.get(member, "")
        now = trio.current_time()
        if farm.is_leader and endpoint and now >= self._told.get(member, now):
            self._told[member] = now + TOLD_EVERY_S
            self._start(partial(self._farewell, member, endpoint))

    def _start(self, task: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(task)
        self._work.set()

    async def _farewell(self, member: int, endpoint: str) -> None:
        farm = self._farm
        await trio.sleep(2 * farm.section.raft.heartbeat_s)  # the others hear of the commit first
        if not farm.is_leader:
            return
        status = farm.raw.status()
        last = (0, status.last_index, status.commit)
        request = Request(MessageType.LEAVE_CLUSTER_REQUEST, farm.node_id, member, status.term, *last)
        timeout_s = farm.section.raft.rpc_timeout_s
        client = RpcClient(
            partial(farm.dial, member, endpoint), server_id=member, timeout_s=timeout_s, backoff=farm.backoff
        )
        with trio.move_on_after(timeout_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                try:
                    await client.call(request)
                except GarlicFarmError as error:
                    farm.log.info("member-not-told", peer=member, cause=str(error))
                nursery.cancel_scope.cancel()

    # ------------------------------------------------------------------ changes

    async def change(self, change: ConfChange) -> tuple[int, int]:
        """Change one server; (index, term) of the Configuration after its commit. Only the leader changes
        members: another member asks it over the wire to add or remove one (protocol page §5, "Leave"). A
        leader that is to be removed hands over first.

        Raises `NotLeader` (an endpoint is to be changed, or ``force`` is needed, which the wire does not
        know), `NoQuorum`, `ProposalDropped`: certainly not done; `OutcomeUnknown`. Once a leader has agreed
        to add a server, this takes as long as the server takes to catch up.
        """
        farm, leaving = self._farm, change.server.id == self._farm.node_id
        first, asked = 0, False
        patience_s = 2 * farm.section.raft.election_timeout_max_s + farm.answer_timeout_s
        with trio.move_on_after(patience_s) as scope:
            while True:
                leader = farm.leader_id
                first = first or leader
                if change.change is Change.SET:
                    self.must_lead()
                try:
                    if farm.is_leader and change.change is Change.REMOVE and leaving:
                        self._check_left(change.force)
                        await self.step_down(0, scope.deadline)
                    elif farm.is_leader:
                        proposal = await self._begin(change, scope.deadline)
                        scope.deadline = math.inf
                        return await farm.proposals.outcome(proposal)
                    elif leader:
                        term = await self._ask_leader(leader, change)
                        if term is not None:
                            asked = True
                            if change.change is Change.ADD:
                                scope.deadline = math.inf
                            await self._wait_applied(change)
                            return farm.applied_configuration.log_index, term
                    else:
                        await farm.wait_leader_change()
                except NotLeader:
                    pass  # it leads no more
                except OutcomeUnknown:
                    asked = True
                    if not leaving:
                        raise
                    # Once more: it is removed once.
                except (TransportError, AuthError, RemoteProtocolError) as error:
                    farm.log.info("leader-not-asked", peer=leader, cause=str(error))
                except ProposalDropped as dropped:
                    few = dropped.reason == "too-few-members-heard"
                    if few and change.force:
                        self.must_lead()
                    # A new leader has heard from few so far.
                    if not (few and leader != first) and dropped.reason != "leadership-in-transfer":
                        raise
                await trio.sleep(ASK_AGAIN_S)
        if asked:
            raise OutcomeUnknown("the leader was asked for the change, which is not known to be committed")
        raise NoQuorum(f"no leader was found within {patience_s:g} s")

    async def _ask_leader(self, leader: int, change: ConfChange) -> int | None:
        """The term in which ``leader`` has begun the change; None: another member may lead.

        Raises `ProposalDropped`: it refuses. Other errors as `garlicfarm.net.link.RpcClient.call`.
        """
        farm, remove = self._farm, change.change is Change.REMOVE
        kind = MessageType.REMOVE_SERVER_REQUEST if remove else MessageType.ADD_SERVER_REQUEST
        value = encode_cluster_server(change.server, id_only=remove)
        entry = LogEntry(0, ValueType.CLUSTER_SERVER, value)
        response = await farm.peers.call(leader, Request(kind, farm.node_id, leader, entries=(entry,)))
        if response is None or (not response.accepted and response.destination != leader):
            return None
        if response.accepted:
            return response.term
        # A plain server gives no reason, but its next index.
        words = _WORDS if farm.peers.extensions(leader) else {}
        raise ProposalDropped(words.get(response.next_index, "refused"))

    async def _wait_applied(self, change: ConfChange) -> None:
        """Return once the applied Configuration is as ``change`` makes it."""
        while (change.server.id in self._current) != (change.change is Change.ADD):
            await self._farm.wait_applied(self._farm.applied_index)

    def _check_left(self, force: bool) -> None:
        """Before a leader hands over in order to be removed: raises `ProposalDropped` where the new one would
        refuse to remove it."""
        others = self._current - {self._farm.node_id}
        if not others:
            raise ProposalDropped("the-last-member")
        longest_s = self._farm.section.raft.election_timeout_max_s
        ages = [self._farm.peers.contact_age_s(member) for member in others]
        heard = sum(age is not None and age <= longest_s for age in ages)
        if not force and heard < len(others) // 2 + 1:
            raise ProposalDropped("too-few-members-heard")

    async def _begin(self, change: ConfChange, deadline: float) -> Proposal:
        """Begin a change, before ``deadline`` on Trio's clock."""
        farm, server = self._farm, change.server
        self.must_lead()
        if change.change is Change.REMOVE and server.id == farm.node_id:
            self._check_left(change.force)
            await self.step_down(0, deadline)
            self.must_lead()
        if change.change is Change.ADD and server.id in self.ever and server.id not in self._current:
            raise ProposalDropped("id-used-before")
        if change.change is not Change.REMOVE and server.id != farm.node_id:
            await self._dial_back(server)
        while True:
            applied, start = farm.applied_index, partial(farm.raw.propose_conf_change, change)
            self._change = proposal = farm.proposals.propose(start)
            await proposal.begun.wait()
            if proposal.dropped is None:
                break
            if proposal.dropped.reason == "not-leader":
                self.must_lead()
            if proposal.dropped.reason != "nothing-committed-yet" or trio.current_time() >= deadline:
                raise proposal.dropped
            with trio.move_on_at(deadline):
                await farm.wait_applied(applied)  # it has only just been elected
        farm.log.info("member-change", change=change.change.value, peer=server.id)
        return proposal

    async def _dial_back(self, server: ClusterServer) -> None:
        farm, cause = self._farm, "no answer in time"
        with trio.move_on_after(farm.section.raft.rpc_timeout_s):
            try:
                established = await farm.dial(server.id, server.endpoint)
            except CONNECTION_ERRORS as error:
                cause = str(error) or type(error).__name__
            else:
                await close(established.stream)
                return
        raise ProposalDropped(f"cannot-be-dialled: {cause}")

    async def step_down(self, to: int, deadline: float = math.inf) -> int:
        """Have the member ``to`` lead, 0: the one best placed; the new leader's id. ``deadline``: on Trio's
        clock.

        Raises `NotLeader`, `ProposalDropped` (no such member, or one that cannot take over now),
        `NoQuorum`: no member took over within two election timeouts, or before the deadline.
        """
        farm, begun = self._farm, trio.Event()
        refused: list[ProposalDropped] = []

        def begin() -> None:
            try:
                farm.raw.transfer_leadership(to)
            except ProposalDropped as dropped:
                refused.append(dropped)
            begun.set()

        self.must_lead()
        farm.put(begin)
        await begun.wait()
        if refused:
            raise refused[0]
        longest = trio.current_time() + 2 * farm.section.raft.election_timeout_max_s
        with trio.move_on_at(min(deadline, longest)):
            while farm.is_leader or not farm.leader_id:
                await farm.wait_leader_change()
            return farm.leader_id
        raise NoQuorum("nobody took over the leadership in time")

    def must_lead(self) -> None:
        """Raises `NotLeader` unless this member leads."""
        farm = self._farm
        if not farm.is_leader:
            endpoints = {server.id: server.endpoint for server in farm.configuration.servers}
            raise NotLeader(farm.leader_id or None, endpoints.get(farm.leader_id))

    # ------------------------------------------------------------------ requests

    def refusal(self, request: Request) -> Response | None:
        """The answer to somebody whose removal is applied here (D6), None to everybody else. The leader
        tells it to leave."""
        member, farm = request.source, self._farm
        if member in self._current or member not in self.ever:
            return None
        self._tell(member)
        kind, leader = MessageType(request.type + 1), farm.leader_id or NO_LEADER
        if request.type is MessageType.CLIENT_REQUEST:
            kind = MessageType.APPEND_ENTRIES_RESPONSE
        asks_leader = request.type in (MessageType.CLIENT_REQUEST, MessageType.READ_INDEX_REQUEST)
        return Response(kind, farm.node_id, leader if asks_leader else member, farm.raw.term, 0, False)

    def told_to_leave(self) -> None:
        """The leader says that this member is removed."""
        self._left.set()

    def serve(self, request: Request, server: ClusterServer, slot: PendingResponse) -> None:
        """Answer an AddServerRequest or RemoveServerRequest about ``server``: accepted once the change has
        begun. One at a time: it takes a connection to that server."""
        if self._serving:
            slot.resolve(self._answer(request, self._farm.node_id, Refusal.CHANGE_IN_FLIGHT))
        else:
            self._serving = True
            self._start(partial(self._serve, request, server, slot))

    async def _serve(self, request: Request, server: ClusterServer, slot: PendingResponse) -> None:
        farm, destination = self._farm, self._farm.node_id
        reason: int | None = 0
        add = request.type is MessageType.ADD_SERVER_REQUEST
        # Its connection is closed where the answer takes longer than this and a heartbeat.
        deadline = slot.since + farm.answer_timeout_s - farm.section.raft.heartbeat_s
        try:
            await self._begin(ConfChange(Change.ADD if add else Change.REMOVE, server), deadline)
        except NotLeader as error:
            destination, reason = error.leader_id or NO_LEADER, None
        except ProposalDropped as dropped:
            farm.log.info("member-change-refused", peer=server.id, reason=dropped.reason)
            word = dropped.reason.partition(":")[0]
            reason = _REASONS.get(word, Refusal.APPLICATION)
        except NoQuorum:
            reason = Refusal.NO_QUORUM if farm.is_leader else None
            destination = farm.leader_id or NO_LEADER
        finally:
            self._serving = False
        slot.resolve(self._answer(request, destination, reason))

    def _answer(self, request: Request, destination: int, reason: int | None) -> Response:
        """``reason`` 0: it has begun; None: another member leads."""
        farm, kind = self._farm, MessageType(request.type + 1)
        next_index = reason or farm.raw.status().last_index + 1
        return Response(kind, farm.node_id, destination, farm.raw.term, next_index, reason == 0)
