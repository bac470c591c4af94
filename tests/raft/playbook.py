"""Members of a cluster driven by hand, without Trio: events in, what the core wants done out.

`Player` is one member with its disk; `Stage` is several of them and what lies between them, delivered
only when the script says so, and watched by the simulator's invariants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from garlicfarm.raft import Entry, HardState, Persist, RaftConfig, RawNode, Ready, Role
from garlicfarm.testing.invariants import Observer
from garlicfarm.testing.memory_storage import UnsyncedStorage
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import (
    ClusterServer,
    Configuration,
    LogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)

APPEND = MessageType.APPEND_ENTRIES_REQUEST
VOTE = MessageType.REQUEST_VOTE_REQUEST
CLIENT = MessageType.CLIENT_REQUEST


def configuration(index: int = 0, previous: int = 0, members: Sequence[int] = (1, 2, 3)) -> Configuration:
    return Configuration(index, previous, tuple(ClusterServer(i, f"tcp://m{i}:1") for i in members))


def application(term: int, value: bytes = b"x") -> LogEntry:
    return LogEntry(term, ValueType.APPLICATION, value)


def log(*terms: int) -> tuple[Entry, ...]:
    """A log of application entries with these terms; the value says index and term."""
    return tuple(
        Entry(index, term, ValueType.APPLICATION, b"%d/%d" % (index, term))
        for index, term in enumerate(terms, 1)
    )


def wire(entries: Sequence[Entry]) -> tuple[LogEntry, ...]:
    return tuple(LogEntry(entry.term, entry.value_type, entry.value) for entry in entries)


class Player:
    """A member with the log ``terms``. Its random number is always ``random``, or the lowest there is.

    What it is told to do is done at once by `turn`, but for writes while ``slow_disk`` is set: then
    `sync` does them, one by one.
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
        **config: int,
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
        self.requests: deque[tuple[int, int, Request]] = deque()  # (peer, seq, request)
        self.responses: dict[int, Response | None] = {}
        self.outcomes: dict[int, tuple[int, int] | None] = {}
        self.applied: list[Entry] = []
        self.token = 0
        self.observer: Observer | None = None
        self.start()

    def start(self) -> None:
        """Begin with what is on the disk."""
        self.node = RawNode(self.config, self.disk, self._randint)
        self.node.tick(self.now)
        self.turn()

    def _randint(self, low: int, high: int) -> int:
        assert low <= high
        return low if self.random is None else min(self.random, high)

    def turn(self) -> Ready:
        """Do what the core wants done now."""
        ready = self.node.ready()
        if ready.persist is not None:
            self.disk.submit(ready.persist)
        if self.observer:
            self.observer.turn(self.id, self.node, ready)
        self.requests.extend(ready.requests)
        self.responses.update(ready.responses)
        self.outcomes.update(ready.outcomes)
        self.applied.extend(ready.committed)
        if ready.committed:
            self.node.applied(ready.committed[-1].index)
        while self.disk.pending and not self.slow_disk:
            self.sync()
        return ready

    def sync(self) -> Persist:
        """The disk is done with the oldest write."""
        persist = self._write()
        self.node.persisted(persist.token)
        self.turn()
        return persist

    def _write(self) -> Persist:
        persist = self.disk.sync()
        if self.observer:
            self.observer.durable(self.id, persist)
        return persist

    def crash(self, writes: int = 0) -> None:
        """Stop, lose all but so many of the pending writes, start again."""
        for _ in range(writes):
            self._write()
        self.disk.pending.clear()
        if self.observer:
            self.observer.crashed(self.id)
        self.requests.clear()
        self.responses.clear()
        self.applied.clear()
        self.start()

    # What happens to a member.

    def wait(self, duration_ms: int) -> None:
        """Time passes; the member is woken whenever it wanted to be."""
        until = self.now + duration_ms
        while (deadline := self.node.deadline_ms) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.node.tick(self.now)
            self.turn()
        self.now = until
        self.node.tick(self.now)
        self.turn()

    def take(self, request: Request) -> Response | None:
        """A request comes in; its answer, None if it is still waited for (or never comes)."""
        self.token += 1
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

    def ask_vote(self, term: int, last: tuple[int, int] = (0, 0), source: int = 2) -> Response | None:
        """A RequestVoteRequest; ``last`` is (index, term)."""
        return self.take(Request(VOTE, source, self.id, term, last[1], last[0]))

    def post(self, *values: bytes, source: int = 0) -> Response | None:
        """A ClientRequest."""
        entries = tuple(LogEntry(0, ValueType.APPLICATION, value) for value in values)
        return self.take(Request(CLIENT, source, self.id, entries=entries))

    def answer(
        self, seq: int, request: Request, next_index: int = 0, accepted: bool = True, **other: Any
    ) -> None:
        """The peer answers one of our requests."""
        kind = MessageType(request.type + 1)
        term = other.get("term", request.term)
        self.hear(seq, Response(kind, request.destination, self.id, term, next_index, accepted))

    def hear(self, seq: int, response: Response) -> None:
        """The answer to our request ``seq``."""
        self.node.answered(seq, response)
        self.node.tick(self.now)
        self.turn()

    def accept(self, *, peer: int | None = None) -> None:
        """All requests (to ``peer``) that wait to be delivered are accepted."""
        for _, seq, request in self.sent(peer):
            self.answer(seq, request, request.last_log_index + len(request.entries) + 1)

    def sent(self, peer: int | None = None) -> list[tuple[int, int, Request]]:
        """Take the requests (to ``peer``) that wait to be delivered."""
        found = [item for item in self.requests if peer in (None, item[0])]
        self.requests = deque(item for item in self.requests if item not in found)
        return found

    def campaign(self) -> list[tuple[int, int, Request]]:
        """Wait until it stands for election, after a poll in which everybody is reached; the vote
        requests."""
        term = self.node.term
        for _ in range(3):
            self.sent()
            deadline = self.node.deadline_ms
            assert deadline is not None
            self.wait(deadline - self.now)
            if self.node.role is Role.CANDIDATE and self.node.term == term:
                for _, seq, request in self.sent():
                    self.answer(seq, request, accepted=False)
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

    # What can be seen of it.

    @property
    def terms(self) -> list[int]:
        """The terms of its log, volatile entries included."""
        return [self.node._member.log.term(index) for index in range(1, self.node._member.log.last_index + 1)]

    @property
    def commit(self) -> int:
        return self.node.status().commit

    @property
    def picture(self) -> tuple[object, ...]:
        """All that matters, to be compared before and after."""
        status = self.node.status()
        return (status, self.terms, list(self.requests), self.node.deadline_ms)


def configuration_entry(term: int, index: int, previous: int, members: Sequence[int] = (1, 2, 3)) -> LogEntry:
    return LogEntry(
        term, ValueType.CONFIGURATION, encode_configuration(configuration(index, previous, members))
    )


class Stage:
    """Players 1, 2, … with these logs, and the messages between them: nothing arrives by itself. Every
    step is checked by the simulator's invariants."""

    def __init__(self, *logs: Sequence[int], **config: int) -> None:
        members = range(1, len(logs) + 1)
        self.observer = Observer(members)
        self.players = {
            member: Player(member, terms, members=members, **config)
            for member, terms in zip(members, logs, strict=True)
        }
        for player in self.players.values():
            member = self.observer.members[player.id]
            for chain in (member.log, member.disk):
                chain.write(Persist(0, entries=player.disk.contents))
            player.observer = self.observer

    def __getitem__(self, member: int) -> Player:
        return self.players[member]

    def elect(self, leader: int, *voters: int) -> None:
        """``leader`` stands for election, again if it has to, and is heard by ``voters`` alone."""
        player = self[leader]
        for _ in range(3):
            for peer, seq, request in player.campaign():
                if peer in voters:
                    response = self[peer].take(request)
                    assert response is not None
                    player.hear(seq, response)
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
