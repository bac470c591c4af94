"""Members of one cluster under one scheduler: their processes, disks, clocks and connections.

`SimulatedCluster` drives the core as a node does and reports everything to the observer. `fault_injector` has
the faults, `clients` the users.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from garlicfarm.application import StateMachine
from garlicfarm.errors import ProposalDropped, RemoteProtocolError
from garlicfarm.extensions import LEASE, PRE_VOTE, READ_INDEX, TIMEOUT_NOW
from garlicfarm.levels import OUTSIDE
from garlicfarm.raft import Persist, RaftConfig, RawNode, Ready, Role, SnapshotMeta
from garlicfarm.refusals import Refusal
from garlicfarm.testing.memory_storage import Stored
from garlicfarm.testing.simulator.faults import Faults
from garlicfarm.testing.simulator.invariants import Observer, Violation
from garlicfarm.testing.simulator.member import SimulatedMember
from garlicfarm.testing.simulator.network import CLIENT, SERVER, Connection, Network, Scheduler
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import (
    EXTENSION_OF,
    ClusterServer,
    Configuration,
    MessageType,
    Request,
    Response,
    ValueType,
)

EXTENSIONS = (PRE_VOTE, TIMEOUT_NOW, READ_INDEX, LEASE)
ORDERED = 2**64 - 1
_JOINING = (MessageType.JOIN_CLUSTER_REQUEST, MessageType.SYNC_LOG_REQUEST)
_NO_SERVERS = Configuration(0, 0)


class Outcome(msgspec.Struct, frozen=True):
    """The result of a run; ``counts`` of its events, by name."""

    seed: int
    digest: str
    events: int
    term: int
    committed: int
    counts: dict[str, int]


class NetworkClient(Protocol):
    """Sends requests but is not a member; its id is negative."""

    def on_answer(self, connection: Connection, tag: Any, response: Response) -> None:
        """The answer to the request of ``tag`` arrived."""

    def on_failure(self, connection: Connection, tags: list[Any]) -> None:
        """The connection is lost; these requests get no answer."""


class SimulatedCluster:
    """All members, running. ``draw``: the faults of the seed; ``make_application``: what each member
    applies entries to; ``timing``: the times of `RaftConfig`. ``rpc_timeout_ms``: how long a member waits for
    the answer to a request, ``answer_timeout_ms`` to a read, ``client_timeout_ms`` a client to anything."""

    genesis_level = 0
    highest_level = OUTSIDE
    """Of the levels that administrators raise the farm to. Seeds of mutants depend on it."""
    rpc_timeout_ms = 400
    answer_timeout_ms = 1_000
    client_timeout_ms = 1_000

    def __init__(
        self,
        seed: int,
        nodes: int,
        draw: Callable[[random.Random], Faults],
        make_application: Callable[[], StateMachine],
        timing: dict[str, int],
    ) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.rng = self.scheduler.rng
        self.faults = draw(self.rng)
        self._make_application = make_application
        self._config = {**timing, **self.faults.config}
        self._next_token = 0
        self.counts: Counter[str] = Counter()
        self.members: dict[int, SimulatedMember] = {}
        self.clients: dict[int, NetworkClient] = {}
        self.observer = Observer(range(1, nodes + 1), make_application)
        self.network = Network(
            self.scheduler,
            self._serve,
            self._take_answers,
            self._failed,
            self.is_paused,
            lambda receiver: self.members[receiver].node is not None,
        )
        self.network.faults = self.faults.network
        ids = range(1, nodes + 1)
        servers = tuple(ClusterServer(i, f"tcp://member{i}:9001") for i in ids)
        genesis = Configuration(0, 0, servers, self.genesis_level)
        for member_id in ids:
            self.join(member_id, genesis)

    # ------------------------------------------------------------------ members

    def join(self, member_id: int, genesis: Configuration = _NO_SERVERS) -> SimulatedMember:
        """A new process with an empty store, started."""
        has_none = self.scheduler.chance(self.faults.no_extensions)
        member = SimulatedMember(member_id, genesis, frozenset(() if has_none else EXTENSIONS))
        member.set_clock(self.scheduler.now, self.rng.randint(*self.faults.rates))
        self.members[member_id] = member
        self.start(member)
        return member

    @property
    def newest(self) -> Configuration:
        """The newest committed Configuration."""
        return self.observer.history.configurations[-1]

    def outcome(self) -> Outcome:
        """What happened until now."""
        counts = self.counts | Counter(
            cut_messages=self.network.cut_messages, repeated=self.network.repeated_requests
        )
        term = max(member.node.term for member in self.members.values() if member.node is not None)
        committed = len(self.observer.history.chain.entries)
        digest = self.scheduler.digest.hexdigest()
        return Outcome(self.seed, digest, self.scheduler.events, term, committed, dict(counts))

    def pick(self, ids: Sequence[int]) -> SimulatedMember:
        """One of these; subclasses may prefer the member whose failure matters most."""
        return self.members[self.rng.choice(ids)]

    def leading(self) -> list[SimulatedMember]:
        """The members that lead, or believe that they lead."""
        return [member for member in self.members.values() if member.is_leader]

    def is_paused(self, member_id: int) -> bool:
        """Whether it is a member that is stopped for a while."""
        return member_id > 0 and self.members[member_id].paused_until > self.scheduler.now

    def start(self, member: SimulatedMember) -> None:
        """Start its process from its disk."""
        if member.node is not None or member.retired:
            return
        member.node = RawNode(RaftConfig(id=member.id, **self._config), member.disk, self.rng.randint)
        member.tick_at = None
        member.written_at = member.applied_at = self.scheduler.now
        snapshot = member.disk.snapshot()
        member.application = self._make_application()
        if not snapshot.index and snapshot.configuration.servers:
            member.application.configure(0, snapshot.configuration)
        self._restore(member, snapshot)
        self.drive(member, member.node.tick, member.clock_ms(self.scheduler.now))

    def crash(self, member: SimulatedMember) -> None:
        """Kill its process. A random number of its pending writes reached the disk, and perhaps a part of the
        next one."""
        if member.node is None:
            return
        self.counts["crashes"] += 1
        for _ in range(self.rng.randint(0, len(member.disk.pending))):
            self._sync(member)
        member.disk.crash(self.rng.randint(0, 60), garbled=self.scheduler.chance(0.3))
        self.observer.on_crashed(member.id)
        member.node = None
        member.generation += 1
        member.answers.clear()
        member.links.clear()
        member.to_apply.clear()
        member.until_applied.clear()
        waiting, member.waiting = member.waiting, {}
        for then in waiting.values():
            then(None)
        for connection in self.network.of(member.id):
            self.network.sever(connection)
            self.network.lose(connection, CLIENT if connection.client == member.id else SERVER)
        for other in self.members.values():
            if other.node is not None and self.scheduler.chance(self.faults.seen_crashes):
                self.scheduler.at(self.scheduler.around(50), self._see, other, other.generation, member)

    def _see(self, member: SimulatedMember, generation: int, crashed: SimulatedMember) -> None:
        """A member dials one that crashed. That one's machine refuses the connection, if it is reached."""
        is_cut = {(member.id, crashed.id), (crashed.id, member.id)} & self.network.blocked
        is_running = member.node is not None and member.generation == generation
        if is_running and not is_cut and not self.is_paused(member.id) and crashed.node is None:
            assert member.node is not None
            self.counts["seen_crashes"] += member.node.leader == crashed.id
            self.drive(member, member.node.report_leader_gone, crashed.id, member.node.term)

    def drive(self, member: SimulatedMember, function: Callable[..., None], *arguments: Any) -> None:
        """Give a member one input and carry out what it asks for."""
        node = member.node
        assert node is not None
        was_leader = node.role is Role.LEADER
        try:
            function(*arguments)
        except RemoteProtocolError as error:
            raise Violation("no member breaks the protocol", f"{member}: {error}") from error
        now = self.scheduler.now
        node.tick(member.clock_ms(now))
        while True:
            self._carry_out(member, node, node.ready())
            if not node.has_more_committed and not node.has_more_catch_up:
                break
        deadline = node.deadline_ms
        if deadline is not None:
            at = member.when(now, deadline)
            if member.tick_at is None or at < member.tick_at:
                member.tick_at = at
                self.scheduler.at(at, self._timer, member, member.generation)
        if node.role is Role.LEADER and not was_leader:
            self.on_elected()
            if self.scheduler.chance(self.faults.new_leader_crashes):
                self.scheduler.at(self.scheduler.around(20), self.crash_for_a_while, member)

    def crash_for_a_while(self, member: SimulatedMember) -> None:
        """Crash a member and start it again later."""
        if not self.faults.away_ms:
            return  # faults are over
        self.crash(member)
        self.scheduler.at(self.scheduler.around(self.faults.away_ms) + 1, self.start, member)

    def call(
        self,
        member: SimulatedMember,
        function: Callable[..., None],
        *arguments: Any,
        then: Callable[[Any], None],
    ) -> Refusal | None:
        """Give a member one input that takes a token. ``then`` gets its outcome from `Ready`, None if the
        process died. Returns why the input was dropped, None if it was not."""
        token = self.token()
        member.waiting[token] = then
        try:
            self.drive(member, function, *arguments, token)
        except ProposalDropped as dropped:
            del member.waiting[token]
            return dropped.reason
        return None

    def propose(self, member: SimulatedMember, entry: bytes) -> bool:
        """Have a member append an entry of its own, if it leads; whether it did."""
        assert member.node is not None
        offer = self.token()
        self.observer.refused.on_offered(offer, [entry])
        if self.call(member, member.node.propose, [entry], then=lambda _: None) is None:
            return True
        self.observer.refused.on_refused(offer)
        return False

    def token(self) -> int:
        """A new number."""
        self._next_token += 1
        return self._next_token

    def _carry_out(self, member: SimulatedMember, node: RawNode, ready: Ready) -> None:
        if ready.persist is not None:
            member.disk.submit(ready.persist)
            self._arrange_write(member)
        for received in ready.chunks:
            member.disk.submit_chunk(received.token, received.chunk)
            self._arrange_write(member)
        self.observer.on_ready(member.id, node, ready)
        self.scheduler.digest.update(b"%d %d %d " % (member.id, node.term, member.applied))
        if ready.restore is not None:
            member.to_apply.clear()  # the snapshot contains them
        if ready.restore is not None or ready.committed:
            if ready.restore is None and (self.faults.apply_ms or member.to_apply):
                member.to_apply.append(ready)
                member.applied_at = max(member.applied_at, self.scheduler.around(self.faults.apply_ms or 1))
                self.scheduler.at(member.applied_at, self._apply_next, member, member.generation)
            else:
                self._apply(member, node, ready)
        for sent in ready.requests:
            self._request(member, node, sent.peer, sent.seq, sent.request)
        for answer in ready.responses:
            if answer.response is not None and not answer.response.accepted:
                self.observer.refused.on_refused(answer.token)
            connection, pending = member.answers.pop(answer.token)
            pending[0] = answer.response
            self.network.answer(connection)
        for outcome in ready.outcomes:
            member.waiting.pop(outcome.token)(outcome.result)
        for read in ready.reads:
            member.waiting.pop(read.token)(read.index)

    # ------------------------------------------------------------------ time, disk, application

    def _timer(self, member: SimulatedMember, generation: int) -> None:
        """Tick unless an earlier timer replaced this one."""
        if member.tick_at == self.scheduler.now:
            self.tick(member, generation)

    def tick(self, member: SimulatedMember, generation: int) -> None:
        """Give a member's process the time."""
        if (node := self._running(member, generation, self.tick)) is not None:
            member.tick_at = None
            self.drive(member, node.tick, member.clock_ms(self.scheduler.now))

    def _running(
        self, member: SimulatedMember, generation: int, then: Callable[[SimulatedMember, int], None]
    ) -> RawNode | None:
        """Its process of this generation. None: it is dead, or is paused and will do this afterwards."""
        if member.node is None or member.generation != generation:
            return None
        if member.paused_until > self.scheduler.now:
            self.scheduler.at(member.paused_until, then, member, generation)
            return None
        return member.node

    def _arrange_write(self, member: SimulatedMember) -> None:
        mean = self.faults.disk_ms * member.disk_factor
        member.written_at = max(member.written_at, self.scheduler.around(mean))
        self.scheduler.at(member.written_at, self._written, member, member.generation)

    def _written(self, member: SimulatedMember, generation: int) -> None:
        """The disk completed a step, sometimes all at once; report it to the process."""
        if not member.disk.pending or (node := self._running(member, generation, self._written)) is None:
            return
        steps = len(member.disk.pending) if self.scheduler.chance(0.3) else 1
        done = [self._sync(member) for _ in range(steps)]
        for position, one in enumerate(done):
            if isinstance(one, Stored):
                self.drive(member, node.report_chunk_stored, one.token, one.held, one.meta)
            elif position + 1 == steps or isinstance(done[position + 1], Stored):
                self.drive(member, node.report_persisted, one.token)

    def _sync(self, member: SimulatedMember) -> Persist | Stored:
        done = member.disk.sync()
        if isinstance(done, Persist):
            self.observer.on_durable(member.id, done)
        return done

    def _apply_next(self, member: SimulatedMember, generation: int) -> None:
        node = self._running(member, generation, self._apply_next)
        if node is not None and member.to_apply:
            self._apply(member, node, member.to_apply.popleft())

    def _apply(self, member: SimulatedMember, node: RawNode, ready: Ready) -> None:
        if ready.restore is not None:
            self.counts["restored"] += 1
            self._restore(member, ready.restore)
        for entry in ready.committed:
            if entry.value_type is ValueType.CONFIGURATION:
                member.application.configure(entry.index, decode_configuration(entry.value))
            else:
                member.application.apply(entry.index, entry.term, entry.value)
        member.position = member.position.after(ready.committed)
        node.report_applied(member.applied)
        self._after_apply(member)

    def _restore(self, member: SimulatedMember, snapshot: SnapshotMeta) -> None:
        if snapshot.index:
            member.application.restore(member.disk.state(snapshot.index))
        member.position = snapshot
        if snapshot.index:
            self._after_apply(member)

    def _after_apply(self, member: SimulatedMember) -> None:
        self.observer.on_applied(member.id, member.position, member.application.snapshot())
        self.on_applied(member)
        due = [then for index, then in member.until_applied if index <= member.applied]
        member.until_applied = [w for w in member.until_applied if w[0] > member.applied]
        for then in due:
            then()

    def on_elected(self) -> None:
        """There is a new leader; for subclasses."""

    def on_applied(self, member: SimulatedMember) -> None:
        """A member's application advanced; for subclasses."""

    def on_sending(self, member: SimulatedMember, peer: int, seq: int) -> None:
        """A member is about to send a request of the core; for subclasses."""

    def on_sent(self, member: SimulatedMember, peer: int, connection: Connection) -> None:
        """It has sent it; for subclasses, which may send more, with tags that are no integers."""

    def on_answered(self, member: SimulatedMember, peer: int, tag: Any, response: Response) -> None:
        """A member reads an answer; for subclasses."""

    def on_unanswered(self, member: SimulatedMember, peer: int, tag: Any) -> None:
        """A request of a member gets no answer; for subclasses."""

    def on_lease_request(self, member: SimulatedMember, request: Request) -> Response:
        """Answer a LeaseRequest; for subclasses. Without one of them nobody sends any."""
        raise Violation("no member breaks the protocol", f"{member} gets {request}")

    def take_snapshot(self, member: SimulatedMember, tail: int) -> None:
        """A member takes a snapshot and keeps a ``tail`` of the entries before it."""
        disk = member.disk
        if member.node is None or member.applied <= disk.snapshot().index:
            return
        self.counts["snapshots"] += 1
        disk.take_snapshot(member.position, member.application.snapshot())
        upto = min(member.applied, disk.last_index()) - tail
        if upto >= disk.first_index():
            disk.compact(upto)
        self.observer.on_compacted(member.id, disk.first_index(), member.applied)

    # ------------------------------------------------------------------ messages

    def _request(self, member: SimulatedMember, node: RawNode, peer: int, seq: int, request: Request) -> None:
        connection = self._connect(member, node, peer, request.type is MessageType.READ_INDEX_REQUEST)
        if connection is None:
            self.scheduler.at(self.scheduler.now, self._unreachable, member, member.generation, peer, seq)
        else:
            self.on_sending(member, peer, seq)
            self.network.send(connection, seq, request)
            self.on_sent(member, peer, connection)

    def _connect(
        self, member: SimulatedMember, node: RawNode, peer: int, reads: bool = False
    ) -> Connection | None:
        """The connection to ``peer``, for ``reads`` or for other requests. If there is none, try to open one,
        with pauses."""
        connection = member.links.get((peer, reads))
        if connection is None or connection.closed[CLIENT]:
            now, ways = self.scheduler.now, {(member.id, peer), (peer, member.id)}
            other = self.members[peer]
            if now >= member.retry_at.get(peer, 0) and (other.node is None or ways & self.network.blocked):
                member.retry_at[peer] = self.scheduler.around(30) + 1
            if now < member.retry_at.get(peer, 0):
                return None
            timeout_ms = self.answer_timeout_ms if reads else self.rpc_timeout_ms
            connection = member.links[peer, reads] = self.network.connect(member.id, peer, timeout_ms)
            node.set_extensions(peer, member.extensions & other.extensions)
        return connection

    def read_index(self, member: SimulatedMember, then: Callable[[Any], None]) -> Refusal | None:
        """A linearizable read, as `call`. As in a node, a follower keeps a connection to its leader."""
        assert member.node is not None
        if member.node.leader not in (0, member.id):
            self._connect(member, member.node, member.node.leader)
        return self.call(member, member.node.read_index, then=then)

    def _failed(self, connection: Connection, tags: list[Any]) -> None:
        if connection.client < 0:
            self.clients[connection.client].on_failure(connection, tags)
            return
        member = self.members[connection.client]
        for seq in tags:
            self._unreachable(member, member.generation, connection.server, seq)

    def _unreachable(self, member: SimulatedMember, generation: int, peer: int, seq: Any) -> None:
        if member.node is not None and member.generation == generation:
            self.on_unanswered(member, peer, seq)
            if isinstance(seq, int):
                self.drive(member, member.node.report_unreachable, peer, seq)

    def _serve(self, connection: Connection) -> None:
        member = self.members[connection.server]
        while not connection.closed[SERVER] and (request := connection.requests.next_message()) is not None:
            assert member.node is not None
            self.scheduler.trace.append((self.scheduler.now, f"{member} takes", request))
            pending: list[Any] = [False]
            connection.pending.append(pending)
            token = self.token()
            member.answers[token] = (connection, pending)
            if request.type is MessageType.CLIENT_REQUEST:
                self.observer.refused.on_offered(token, [entry.value for entry in request.entries])
            elif _needs(request) - member.extensions:
                raise Violation("no member breaks the protocol", f"{member} has no extension for {request}")
            if request.type is MessageType.LEASE_REQUEST:
                pending[0] = self.on_lease_request(member, request)
                del member.answers[token]
                self.network.answer(connection)
            elif request.type in _JOINING:
                self.drive(member, self._step_late, member, request, token)
            else:
                self.drive(member, member.node.step, request, token)

    def _step_late(self, member: SimulatedMember, request: Request, token: int) -> None:
        """Step a request that may be outdated on arrival; if it is, close the connection."""
        assert member.node is not None
        try:
            member.node.step(request, token)
        except RemoteProtocolError:
            connection, _ = member.answers.pop(token)
            self.network.sever(connection)
            self.network.lose(connection, SERVER)

    def _take_answers(self, connection: Connection) -> None:
        while (taken := self.network.take(connection)) is not None:
            tag, response = taken
            self.scheduler.trace.append((self.scheduler.now, f"{connection} answered", response))
            if connection.client > 0:
                member = self.members[connection.client]
                assert member.node is not None
                self.on_answered(member, connection.server, tag, response)
                if isinstance(tag, int):
                    self.drive(member, member.node.step_response, tag, response)
            else:
                self.clients[connection.client].on_answer(connection, tag, response)

    def cut(self, a: int, b: int) -> None:
        """Block messages from ``a`` to ``b``."""
        self.network.blocked.add((a, b))

    def separate(self, side: Sequence[int], rest: Sequence[int]) -> None:
        """Block messages between the two sides."""
        for a in side:
            for b in rest:
                self.cut(a, b)
                self.cut(b, a)


def _needs(request: Request) -> frozenset[str]:
    """The extension that a request belongs to (D5: in force only if both sides named it)."""
    if request.type is MessageType.REQUEST_VOTE_REQUEST and request.commit_index == ORDERED:
        return frozenset((TIMEOUT_NOW,))
    return frozenset((EXTENSION_OF[request.type],) if request.type in EXTENSION_OF else ())
