"""Members of a cluster driven by hand, without Trio: events in, what the core wants done out.

`Player` is one member with its disk; `Stage` is several of them and what lies between them, delivered
only when the script says so, and watched by the simulator's invariants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from garlicfarm.extensions import PRE_VOTE, READ_INDEX, TIMEOUT_NOW
from garlicfarm.raft import (
    Change,
    ConfChange,
    Entry,
    HardState,
    LogPosition,
    Persist,
    RaftConfig,
    RawNode,
    Ready,
    Role,
    SnapshotMeta,
)
from garlicfarm.raft.votes import TRANSFER_CAMPAIGN
from garlicfarm.refusals import Refusal
from garlicfarm.testing.memory_storage import Stored, UnsyncedStorage
from garlicfarm.testing.simulator.invariants import Observer
from garlicfarm.wire import encode_configuration, encode_snapshot_sync_request
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

APPEND = MessageType.APPEND_ENTRIES_REQUEST
VOTE = MessageType.REQUEST_VOTE_REQUEST
POLL = MessageType.PRE_VOTE_REQUEST
TIMEOUT = MessageType.TIMEOUT_NOW_REQUEST
SNAPSHOT = MessageType.INSTALL_SNAPSHOT_REQUEST
CLIENT = MessageType.CLIENT_REQUEST
JOIN = MessageType.JOIN_CLUSTER_REQUEST
READ = MessageType.READ_INDEX_REQUEST

ALL = frozenset({PRE_VOTE, TIMEOUT_NOW, READ_INDEX})
"""Every extension that the core speaks."""


def configuration(index: int = 0, previous: int = 0, members: Sequence[int] = (1, 2, 3)) -> Configuration:
    return Configuration(index, previous, tuple(server(i) for i in members))


def application(term: int, value: bytes = b"x") -> LogEntry:
    return LogEntry(term, ValueType.APPLICATION, value)


def log(*terms: int) -> tuple[Entry, ...]:
    """A log of application entries with these terms; the value says index and term."""
    return tuple(
        Entry(index, term, ValueType.APPLICATION, b"%d/%d" % (index, term))
        for index, term in enumerate(terms, 1)
    )


def server(member: int, endpoint: str = "") -> ClusterServer:
    return ClusterServer(member, endpoint or f"tcp://m{member}:1")


def wire(entries: Sequence[Entry]) -> tuple[LogEntry, ...]:
    return tuple(LogEntry(entry.term, entry.value_type, entry.value) for entry in entries)


class Player:
    """A member with the log ``terms``. Its random number is always ``random``, or the lowest there is.

    What it is told to do is done at once by `turn`, but for writes while ``slow_disk`` is set: then
    `sync` does them, one by one. Its application's state is the values applied, one after another.
    """

    def __init__(
        self,
        member: int = 1,
        terms: Sequence[int] = (),
        *,
        term: int | None = None,
        vote: int = 0,
        commit: int = 0,
        members: Sequence[int] = (1, 2, 3),
        extensions: frozenset[str] = frozenset(),
        **config: Any,
    ) -> None:
        self.id = member
        self.config = RaftConfig(
            id=member,
            **{
                "election_timeout_min_ms": 100,
                "election_timeout_max_ms": 200,
                "heartbeat_ms": 50,
                **config,
            },
        )
        self.disk = UnsyncedStorage(configuration(members=members))
        if term is None:
            term = max(terms, default=0)
        self.disk.write(Persist(0, HardState(term, vote, commit), None, log(*terms)))
        self.now = 0
        self.slow_disk = False
        self.random: int | None = None
        self.extensions = dict.fromkeys(members, extensions)  # in force towards each peer
        self.requests: deque[tuple[int, int, Request]] = deque()  # (peer, seq, request)
        self.responses: dict[int, Response | None] = {}
        self.outcomes: dict[int, tuple[int, int] | Refusal | None] = {}
        self.reads: dict[int, int | None] = {}
        self.applied: list[Entry] = []
        self.restored: list[SnapshotMeta] = []
        self.state = b""
        self.token = 0
        self.observer: Observer | None = None
        self.start()

    def start(self) -> None:
        """Begin with what is on the disk."""
        self.node = RawNode(self.config, self.disk, lambda low, high: self.randint(low, high))
        for peer, names in self.extensions.items():
            self.node.set_extensions(peer, names)
        self.node.tick(self.now)
        snapshot = self.disk.snapshot()
        self.state = self.disk.state(snapshot.index) if snapshot.index else b""
        self.turn()

    def randint(self, a: int, b: int) -> int:
        assert a <= b
        return a if self.random is None else max(a, min(self.random, b))

    def turn(self) -> Ready:
        """Do what the core wants done now."""
        ready = self.node.ready()
        if ready.persist is not None:
            self.disk.submit(ready.persist)
        if self.observer:
            self.observer.on_ready(self.id, self.node, ready)
        self.requests.extend((sent.peer, sent.seq, sent.request) for sent in ready.requests)
        self.responses.update({answer.token: answer.response for answer in ready.responses})
        for outcome in ready.outcomes:
            result = outcome.result
            if isinstance(result, LogPosition):
                self.outcomes[outcome.token] = (result.index, result.term)
            else:
                self.outcomes[outcome.token] = result
        self.reads.update({read.token: read.index for read in ready.reads})
        for received in ready.chunks:
            self.disk.submit_chunk(received.token, received.chunk)
        if ready.restore is not None:
            self.restored.append(ready.restore)
            self.applied.clear()
            self.state = self.disk.state(ready.restore.index)
            self.node.report_applied(ready.restore.index)
        self.applied.extend(ready.committed)
        if ready.committed:
            self.state += b"".join(
                entry.value for entry in ready.committed if entry.value_type is ValueType.APPLICATION
            )
            self.node.report_applied(ready.committed[-1].index)
        while self.disk.pending and not self.slow_disk:
            self.sync()
        return ready

    @property
    def writes(self) -> list[Persist]:
        """What was written and is not synced yet; no pieces of snapshots are expected among it."""
        writes = [write for write in self.disk.pending if isinstance(write, Persist)]
        assert len(writes) == len(self.disk.pending)
        return writes

    def sync(self) -> None:
        """The disk is done with the oldest write, of the log or of a piece of a snapshot."""
        done = self._write()
        if isinstance(done, Persist):
            self.node.report_persisted(done.token)
        else:
            self.node.report_chunk_stored(done.token, done.held, done.meta)
        self.turn()

    def sync_all(self) -> None:
        """The disk is done with everything."""
        while self.disk.pending:
            self.sync()

    def _write(self) -> Persist | Stored:
        done = self.disk.sync()
        if self.observer and isinstance(done, Persist):
            self.observer.on_durable(self.id, done)
        return done

    def crash(self, writes: int = 0) -> None:
        """Stop, lose all but so many of the pending writes, start again."""
        for _ in range(writes):
            self._write()
        self.disk.crash()
        if self.observer:
            self.observer.on_crashed(self.id)
        self.requests.clear()
        self.responses.clear()
        self.applied.clear()
        self.start()

    def take_snapshot(self, *, keep: int = 0) -> SnapshotMeta:
        """Write the application's state down, and delete the log up to it but for ``keep`` entries."""
        status = self.node.status()
        index = status.applied
        meta = SnapshotMeta(index, self.disk.term(index), status.configuration)
        self.disk.take_snapshot(meta, self.state)
        if index - keep >= self.disk.first_index():
            self.disk.compact(index - keep)
        return meta

    # What happens to a member.

    def wait(self, duration_ms: int) -> None:
        """Time passes; the member is woken whenever it wanted to be."""
        until, woken = self.now + duration_ms, 0
        while (deadline := self.node.deadline_ms) is not None and deadline <= until:
            woken = woken + 1 if deadline <= self.now else 0
            assert woken < 5, f"it wants to be woken at {deadline} again and again"
            self.now = max(self.now, deadline)
            self.node.tick(self.now)
            self.turn()
        self.now = until
        self.node.tick(self.now)
        self.turn()

    def take(self, request: Request) -> Response | None:
        """A request comes in; its answer, None if it is still waited for (or never comes)."""
        self.token += 1
        self.node.limit_terms(self.now)
        self.node.step(request, self.token)
        self.node.tick(self.now)
        self.turn()
        return self.responses.get(self.token)

    def append(
        self,
        term: int,
        previous: tuple[int, int] = (0, 0),
        entries: Sequence[LogEntry] = (),
        commit: int = 0,
        source: int = 2,
    ) -> Response | None:
        """An AppendEntriesRequest; ``previous`` is (index, term)."""
        index, log_term = previous
        return self.take(Request(APPEND, source, self.id, term, log_term, index, commit, tuple(entries)))

    def ask_vote(
        self, term: int, last: tuple[int, int] = (0, 0), source: int = 2, *, ordered: bool = False
    ) -> Response | None:
        """A RequestVoteRequest; ``last`` is (index, term). ``ordered``: to be judged by term and log
        alone, whatever leader is heard."""
        commit = TRANSFER_CAMPAIGN if ordered else 0
        return self.take(Request(VOTE, source, self.id, term, last[1], last[0], commit))

    def poll(self, term: int, last: tuple[int, int] = (0, 0), source: int = 2) -> Response | None:
        """A PreVoteRequest for ``term``; ``last`` is (index, term)."""
        return self.take(Request(POLL, source, self.id, term, last[1], last[0]))

    def order(self, term: int, source: int = 2) -> Response | None:
        """A TimeoutNowRequest."""
        return self.take(Request(TIMEOUT, source, self.id, term))

    def piece(self, piece: SnapshotSyncRequest, term: int, source: int = 2) -> Response | None:
        """An InstallSnapshotRequest."""
        value = encode_snapshot_sync_request(piece)
        entry = LogEntry(term, ValueType.SNAPSHOT_SYNC_REQUEST, value)
        last = (piece.last_log_term, piece.last_log_index)
        return self.take(Request(SNAPSHOT, source, self.id, term, *last, 0, (entry,)))

    def ask_index(self, source: int = 2) -> Response | None:
        """A ReadIndexRequest."""
        return self.take(Request(READ, source, self.id))

    def propose(self, *values: bytes, token: int = 1) -> None:
        """Entries of its own."""
        self.node.propose(values, token)
        self.turn()

    def change(self, what: Change, member: int, *, token: int = 1, force: bool = False, at: str = "") -> None:
        """A change of the Configuration; ``at``: the endpoint."""
        self.node.propose_conf_change(ConfChange(what, server(member, at), force), token)
        self.turn()

    def add(self, member: int, *, token: int = 1, force: bool = False) -> None:
        """A server that accepts its invitation, with an empty log."""
        self.change(Change.ADD, member, token=token, force=force)
        ((_, seq, request),) = self.sent(member)
        assert request.type is JOIN
        self.answer(seq, request, 1)

    def read(self, token: int = 1) -> None:
        """A linearizable read."""
        self.node.read_index(token)
        self.turn()

    def transfer(self, to: int = 0) -> None:
        """Hand over."""
        self.node.transfer_leadership(to)
        self.turn()

    def hang(self, hangs: bool) -> None:
        """Its disk answers no more, or again; what it wrote meanwhile is up to ``slow_disk``."""
        self.node.report_disk_hang(hangs)
        self.node.tick(self.now)
        self.turn()

    def miss(self, leader: int, term: int) -> None:
        """Somebody saw that the process is gone which led that term."""
        self.node.report_leader_gone(leader, term)
        self.node.tick(self.now)
        self.turn()

    def lose(self, peer: int | None = None) -> None:
        """What waits to be delivered (to ``peer``) is lost, and known to be."""
        for to, seq, _ in self.sent(peer):
            self.node.report_unreachable(to, seq)
        self.turn()

    def post(self, *values: bytes, source: int = 0) -> Response | None:
        """A ClientRequest."""
        entries = tuple(LogEntry(0, ValueType.APPLICATION, value) for value in values)
        return self.take(Request(CLIENT, source, self.id, entries=entries))

    def answer(
        self, seq: int, request: Request, next_index: int = 0, accepted: bool = True, **other: Any
    ) -> None:
        """The peer answers one of our requests, in the term that we are in."""
        kind = MessageType(request.type + 1)
        term = other.get("term", request.term - (request.type is POLL))
        self.hear(seq, Response(kind, request.destination, self.id, term, next_index, accepted))

    def answer_each(self, sent: Sequence[tuple[int, int, Request]], *how: Any, **other: Any) -> None:
        """The peers answer all of these requests alike."""
        for _, seq, request in sent:
            self.answer(seq, request, *how, **other)

    def hear(self, seq: int, response: Response) -> None:
        """The answer to our request ``seq``."""
        self.node.limit_terms(self.now)
        self.node.step_response(seq, response)
        self.node.tick(self.now)
        self.turn()

    def accept(self, *, peer: int | None = None) -> None:
        """All requests (to ``peer``) that wait to be delivered are accepted."""
        for _, seq, request in self.sent(peer):
            self.answer(seq, request, request.last_log_index + len(request.entries) + 1)

    def refuse(self, peer: int) -> None:
        """The requests to ``peer`` are answered, but it takes nothing."""
        self.answer_each(self.sent(peer), 1, accepted=False)

    def sent(self, peer: int | None = None) -> list[tuple[int, int, Request]]:
        """Take the requests (to ``peer``) that wait to be delivered."""
        found = [item for item in self.requests if peer in (None, item[0])]
        self.requests = deque(item for item in self.requests if item not in found)
        return found

    def campaign(self) -> list[tuple[int, int, Request]]:
        """Wait until it stands for election, after a poll in which everybody is reached; the vote
        requests."""
        term = self.node.term
        for _ in range(20):  # a leader first steps down, since nobody answers it
            self.sent()
            self.wait(self.node.deadline_ms - self.now)
            if self.node.role is Role.CANDIDATE and self.node.term == term:
                for _, seq, request in self.sent():
                    self.answer(seq, request, accepted=request.type is POLL)
            if self.node.term > term:
                break
        return self.sent()

    def lead(self) -> Player:
        """Win an election by as few votes as will do; what it sends then is not delivered yet."""
        for _, seq, request in self.campaign():
            if self.node.role is not Role.LEADER:
                self.answer(seq, request)
        assert self.node.role is Role.LEADER
        return self

    def doubt(self) -> None:
        """Time passes until it knows no leader; what it says meanwhile is lost."""
        before = list(self.requests)
        for _ in range(20):
            if not self.node.leader:
                break
            self.wait(self.node.deadline_ms - self.now)
        assert not self.node.leader
        self.requests = deque(before)

    # What can be seen of it.

    @property
    def terms(self) -> list[int]:
        """The terms of its log, volatile entries included."""
        disk = deepcopy(self.disk)
        while disk.pending:
            disk.sync()
        return [entry.term for entry in disk.contents]

    @property
    def member_ids(self) -> list[int]:
        """Of the Configuration in force."""
        return [server.id for server in self.node.configuration.servers]

    @property
    def commit(self) -> int:
        return self.node.status().commit

    @property
    def picture(self) -> tuple[object, ...]:
        """All that matters, to be compared before and after."""
        status = self.node.status()
        return (status, self.terms, list(self.requests), self.node.deadline_ms)


def leader_of(size: int = 3, **options: Any) -> Player:
    """A leader of term 1 whose first entry is committed and known everywhere."""
    player = Player(members=range(1, size + 1), **options).lead()
    while player.requests:
        player.accept()
    return player


def configuration_entry(term: int, index: int, previous: int, members: Sequence[int] = (1, 2, 3)) -> LogEntry:
    return LogEntry(
        term, ValueType.CONFIGURATION, encode_configuration(configuration(index, previous, members))
    )


class Stage:
    """Players 1, 2, … with these logs, and the messages between them: nothing arrives by itself. Every
    step is checked by the simulator's invariants."""

    def __init__(
        self,
        *logs: Sequence[int],
        extensions: frozenset[str] = frozenset(),
        watched: bool = True,
        **config: Any,
    ) -> None:
        members = range(1, len(logs) + 1)
        self.observer = Observer(members)
        self.players = {
            member: Player(member, terms, members=members, extensions=extensions, **config)
            for member, terms in zip(members, logs, strict=True)
        }
        for player in self.players.values() if watched else ():
            member = self.observer.members[player.id]
            for chain in (member.log, member.disk):
                chain.write(Persist(0, entries=player.disk.contents))
            player.observer = self.observer

    def __getitem__(self, member: int) -> Player:
        return self.players[member]

    def join(self, member: int, **config: Any) -> Player:
        """One more, with an empty store that names nobody."""
        player = self.players[member] = Player(member, members=(), **config)
        player.observer = self[1].observer
        return player

    def elect(self, leader: int, *voters: int) -> None:
        """``leader`` stands for election, again if it has to, and is heard by ``voters`` alone, who hear
        no leader any more."""
        player = self[leader]
        for voter in voters:
            self[voter].doubt()
        for _ in range(3):
            for peer, seq, request in player.campaign():
                if peer in voters:
                    player.hear(seq, self[peer].take(request))
            if player.node.role is Role.LEADER:
                return
        raise AssertionError(f"member {leader} is not elected by {voters}")

    def deliver(self, source: int, *destinations: int) -> None:
        """Deliver what waits from ``source`` to these members, and their answers; others' is lost."""
        player = self[source]
        for peer, seq, request in player.sent():
            if peer in destinations:
                response = self[peer].take(request)
                if response is not None:
                    player.hear(seq, response)
            else:
                player.node.report_unreachable(peer, seq)
        player.turn()

    def settle(self, leader: int, *others: int) -> None:
        """Heartbeats and what follows from them, until the leader has no more to say."""
        for _ in range(3):
            self[leader].wait(60)
            while any(peer in others for peer, _, _ in self[leader].requests):
                self.deliver(leader, *others)
