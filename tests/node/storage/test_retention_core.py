"""Cores over logs that begin late: they start from their snapshot, and send it to whom needs what is gone."""

from __future__ import annotations

from collections import deque

import pytest

from garlicfarm.raft import Entry, HardState, Persist, RaftConfig, RawNode, Role
from garlicfarm.raft.types import SnapshotMeta
from garlicfarm.testing.memory_storage import MemoryStorage
from garlicfarm.wire.messages import ClusterServer, Configuration, MessageType, Request, ValueType

MEMBERS = Configuration(0, 0, tuple(ClusterServer(i, f"tcp://m{i}:1") for i in (1, 2, 3)))
BOUNDARY, TAKEN, LAST = 6, 8, 10
STATE = b"the state after eight entries"


def late() -> MemoryStorage:
    """Entries 1 … 10 of term 1, of which those up to 6 are gone; the state up to 8 is in a snapshot."""
    storage = behind(LAST)
    storage.write(Persist(2, hard_state=HardState(1, 0, 9)))
    storage.take_snapshot(SnapshotMeta(TAKEN, 1, MEMBERS), STATE)
    storage.compact(BOUNDARY)
    return storage


def behind(last: int) -> MemoryStorage:
    """The first entries of that log, none known to be committed."""
    storage = MemoryStorage(MEMBERS)
    log = tuple(Entry(i, 1, ValueType.APPLICATION, b"%d" % i) for i in range(1, last + 1))
    storage.write(Persist(1, hard_state=HardState(1), entries=log))
    return storage


class ThreeMembers:
    """Three members whose messages arrive at once, and whose disks write at once; the first one leads."""

    def __init__(self, second: MemoryStorage, batch_bytes: int) -> None:
        self.disks = {1: late(), 2: second, 3: late()}
        self.applied: dict[int, list[int]] = {i: [] for i in self.disks}
        self.restored: dict[int, list[int]] = {i: [] for i in self.disks}
        self.sent: list[Request] = []
        self.nodes = {}
        for i, disk in self.disks.items():
            timeout = 100 if i == 1 else 1000
            config = RaftConfig(
                id=i,
                election_timeout_min_ms=timeout,
                election_timeout_max_ms=timeout + 1,
                heartbeat_ms=50,
                batch_bytes=batch_bytes,
            )
            self.nodes[i] = RawNode(config, disk, lambda lo, hi: lo)
        self._waiting: dict[int, tuple[int, int]] = {}  # token → who asked, and as what
        self._token = 0
        for now in range(0, 1000, 50):
            for node in self.nodes.values():
                node.tick(now)
            self.settle()
        assert self.nodes[1].role is Role.LEADER

    def settle(self) -> None:
        """Until nobody has anything to do."""
        todo = deque(self.nodes)
        while todo:
            todo += self.turn(todo.popleft())

    def turn(self, i: int) -> set[int]:
        """What a member wants done; who may have something to do then."""
        node, ready = self.nodes[i], self.nodes[i].ready()
        moved: set[int] = {i} if node.has_more_committed or node.has_more_catch_up else set()
        if ready.persist is not None:
            self.disks[i].write(ready.persist)
            node.report_persisted(ready.persist.token)
            moved.add(i)
        if ready.restore is not None:
            assert self.disks[i].state(ready.restore.index) == STATE
            self.restored[i].append(ready.restore.index)
            node.report_applied(ready.restore.index)
        if ready.committed:
            self.applied[i] += [entry.index for entry in ready.committed]
            node.report_applied(ready.committed[-1].index)
            moved.add(i)
        for received in ready.chunks:
            node.report_chunk_stored(received.token, *self.disks[i].store_chunk(received.chunk))
            moved.add(i)
        for outgoing in ready.requests:
            self.sent.append(outgoing.request)
            self._token += 1
            self._waiting[self._token] = (i, outgoing.seq)
            self.nodes[outgoing.peer].step(outgoing.request, self._token)
            moved.add(outgoing.peer)
        for answer in ready.responses:
            asker, seq = self._waiting.pop(answer.token)
            assert answer.response is not None
            self.nodes[asker].step_response(seq, answer.response)
            moved.add(asker)
        return moved

    def pieces(self) -> int:
        return sum(request.type is MessageType.INSTALL_SNAPSHOT_REQUEST for request in self.sent)


@pytest.mark.parametrize("batch_bytes", [20, 1 << 20])
@pytest.mark.parametrize("held", [0, 3, BOUNDARY - 1])
def test_peer_that_needs_what_is_gone_is_sent_the_snapshot_and_what_came_after_it(
    held: int, batch_bytes: int
) -> None:
    three = ThreeMembers(behind(held), batch_bytes)
    assert three.pieces() == (4 if batch_bytes == 20 else 1), "61 bytes"
    assert three.restored == {1: [], 2: [TAKEN], 3: []}
    # The last one is the leader's own, of its term.
    assert three.applied == {1: [9, 10, 11], 2: [9, 10, 11], 3: [9, 10, 11]}
    assert (three.disks[2].first_index(), three.disks[2].last_index()) == (TAKEN + 1, LAST + 1)
    assert three.nodes[1].status().peers[2].state == "replicate"


@pytest.mark.parametrize("held", [BOUNDARY, BOUNDARY + 1, LAST])
def test_peer_that_holds_the_boundary_needs_no_snapshot(held: int) -> None:
    three = ThreeMembers(behind(held), 1 << 20)
    assert three.pieces() == 0
    assert three.applied[2] == list(range(1, LAST + 2))
    assert three.disks[2].first_index() == 1
