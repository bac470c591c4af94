"""The core over a log that begins late: it serves who holds the rest, and nobody else ends it."""

from __future__ import annotations

from garlicfarm.raft import Entry, HardState, Persist, RaftConfig, RawNode, Role
from garlicfarm.raft.types import SnapshotMeta
from garlicfarm.testing.memory_storage import MemoryStorage
from garlicfarm.wire.messages import (
    ClusterServer,
    Configuration,
    MessageType,
    Request,
    Response,
    ValueType,
)

MEMBERS = Configuration(0, 0, tuple(ClusterServer(i, f"tcp://m{i}:1") for i in (1, 2, 3)))
ANSWER = MessageType.APPEND_ENTRIES_RESPONSE
BOUNDARY, LAST = 6, 10


class LateStorage(MemoryStorage):
    """Entries 1 … 10 of term 1, of which those up to 6 are gone; the state up to 8 is in a snapshot."""

    def __init__(self) -> None:
        super().__init__(MEMBERS)
        log = tuple(Entry(i, 1, ValueType.APPLICATION, b"%d" % i) for i in range(1, LAST + 1))
        self.write(Persist(1, hard_state=HardState(1, 0, 9), entries=log))
        self.take_snapshot(SnapshotMeta(8, 1, MEMBERS), b"state")
        self.compact(BOUNDARY)


class Leader:
    """Member 1, elected in term 2 by member 3; time is told by hand."""

    def __init__(self) -> None:
        self.storage = LateStorage()
        config = RaftConfig(id=1, election_timeout_min_ms=100, election_timeout_max_ms=200, heartbeat_ms=50)
        self.node = RawNode(config, self.storage, lambda lo, hi: lo)
        self.applied: list[int] = []
        self.now = 0
        self.tick(0)
        for _, seq, request in self.tick(100):
            if request.destination == 3:
                vote = Response(MessageType.REQUEST_VOTE_RESPONSE, 3, 1, request.term, 0, True)
                self.node.answered(seq, vote)
        assert self.node.role is Role.LEADER

    def tick(self, ms: int) -> list[tuple[int, int, Request]]:
        """What goes out after ``ms``."""
        self.now += ms
        self.node.tick(self.now)
        return self.turn()

    def turn(self) -> list[tuple[int, int, Request]]:
        sent = []
        for _ in range(5):
            ready = self.node.ready()
            sent += ready.requests
            if ready.persist is not None:
                self.storage.write(ready.persist)
            self.applied += [entry.index for entry in ready.committed]
            self.node.advance(ready)
        return sent

    def answer(
        self, seq: int, member: int, next_index: int, accepted: bool
    ) -> list[tuple[int, int, Request]]:
        self.node.answered(seq, Response(ANSWER, member, 1, 2, next_index, accepted))
        return self.turn()


def to(member: int, sent: list[tuple[int, int, Request]]) -> list[tuple[int, Request]]:
    return [(seq, request) for peer, seq, request in sent if peer == member]


def test_core_started_on_a_snapshot_applies_what_comes_after_it() -> None:
    leader = Leader()
    assert leader.applied == [9]
    status = leader.node.status()
    assert (status.first_index, status.applied, status.commit) == (7, 9, 9)


def test_peer_that_needs_what_is_gone_waits_for_heartbeats_and_ends_nobody() -> None:
    leader = Leader()
    [(seq, request)] = to(2, leader.turn() or leader.tick(50))
    assert request.last_log_index == LAST
    assert to(2, leader.answer(seq, 2, 3, False)) == [], "nothing can be sent"
    assert leader.node.status().peers[2].state == "snapshot"
    for _ in range(3):
        [(seq, request)] = to(2, leader.tick(50))
        assert (request.last_log_index, request.last_log_term, request.entries) == (BOUNDARY, 1, ())
        assert to(2, leader.answer(seq, 2, 3, False)) == []
    assert leader.node.role is Role.LEADER


def test_peer_that_holds_the_boundary_after_all_is_served_from_there() -> None:
    """Its hint jumped too far back: it passes over a whole term, down to its own commit index."""
    leader = Leader()
    [(seq, _)] = to(2, leader.turn() or leader.tick(50))
    leader.answer(seq, 2, 3, False)
    [(seq, request)] = to(2, leader.tick(50))
    [(seq, request)] = to(2, leader.answer(seq, 2, BOUNDARY + 1, True))
    assert request.last_log_index == BOUNDARY
    assert len(request.entries) == LAST + 1 - BOUNDARY
    assert leader.node.status().peers[2].state == "replicate"
    leader.answer(seq, 2, LAST + 2, True)
    assert leader.applied == [9, 10, 11]
