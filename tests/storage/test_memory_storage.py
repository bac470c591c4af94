"""The stores in memory keep, lose and serve snapshots as a disk does."""

from __future__ import annotations

import pytest

from garlicfarm.errors import Compacted
from garlicfarm.raft import Entry, HardState, Persist
from garlicfarm.raft.types import SnapshotMeta
from garlicfarm.testing.memory_storage import MemoryStorage, Stored, UnsyncedStorage
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import ClusterServer, Configuration, SnapshotSyncRequest, ValueType

GENESIS = Configuration(0, 0, (ClusterServer(1, "tcp://a:1"),))
LATER = Configuration(4, 0, (ClusterServer(1, "tcp://a:1"), ClusterServer(2, "tcp://b:1")))
STATE = bytes(range(200))


def log(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    return tuple(Entry(i, term, ValueType.APPLICATION, b"%d" % i) for i in range(first, last + 1))


def source() -> MemoryStorage:
    """A leader's: a snapshot of 30, in term 2."""
    storage = MemoryStorage(GENESIS)
    storage.take_snapshot(SnapshotMeta(30, 2, LATER, 29), STATE)
    return storage


def pieces(storage: MemoryStorage, size: int, offset: int = 0) -> list[SnapshotSyncRequest]:
    meta = storage.snapshot()
    found = []
    while True:
        data, last = storage.snapshot_chunk(meta.index, offset, size)
        found.append(SnapshotSyncRequest(meta.index, meta.term, meta.configuration, offset, data, last))
        offset += len(data)
        if last:
            return found


def test_memory_storage_compacted_begins_late_with_the_configuration_in_force_there() -> None:
    storage = MemoryStorage(GENESIS)
    change = Entry(4, 1, ValueType.CONFIGURATION, encode_configuration(LATER))
    storage.write(Persist(1, hard_state=HardState(1, 0, 5), entries=(*log(1, 3), change, *log(5, 9))))
    storage.take_snapshot(SnapshotMeta(7, 1, LATER), STATE)
    storage.compact(6)
    assert (storage.first_index(), storage.last_index(), storage.term(6)) == (7, 9, 1)
    assert storage.initial_state() == (HardState(1, 0, 7), LATER)
    assert [entry.index for entry in storage.entries(7, 10, 1 << 20)] == [7, 8, 9]
    for call in (lambda: storage.entries(6, 8, 1), lambda: storage.term(5)):
        with pytest.raises(Compacted):
            call()


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000])
def test_memory_storage_received_snapshot_replaces_the_log(size: int) -> None:
    storage = MemoryStorage(GENESIS)
    storage.write(Persist(1, entries=log(1, 12)))
    results = [storage.store_chunk(piece) for piece in pieces(source(), size)]
    meta = SnapshotMeta(30, 2, LATER, 29)
    assert results[-1] == (len(STATE) + 32, meta)
    assert {result[1] for result in results[:-1]} <= {None}
    assert storage.snapshot().index == 0, "it counts from the step on that names it"
    storage.write(Persist(2, HardState(2, 0, 30), 31, (), meta))
    assert (storage.first_index(), storage.last_index(), storage.term(30)) == (31, 30, 2)
    assert storage.initial_state() == (HardState(2, 0, 30), LATER)
    assert storage.state(30) == STATE
    storage.write(Persist(3, entries=log(31, 33, 2)))
    assert storage.last_index() == 33


def test_memory_storage_snapshot_within_the_log_keeps_what_follows() -> None:
    storage = MemoryStorage(GENESIS)
    storage.write(Persist(1, entries=log(1, 35, 2)))
    for piece in pieces(source(), 50):
        storage.store_chunk(piece)
    storage.write(Persist(2, HardState(2, 0, 30), snapshot=SnapshotMeta(30, 2, LATER, 29)))
    assert (storage.first_index(), storage.last_index()) == (31, 35)


def test_unsynced_storage_crash_keeps_a_torn_piece_that_can_be_gone_on_from() -> None:
    storage = UnsyncedStorage(GENESIS)
    first, second, third = pieces(source(), 100)
    storage.submit_chunk(1, first)
    storage.submit_chunk(2, second)
    assert storage.sync() == Stored(1, 100, None)
    storage.crash(torn=7)
    assert storage.store_chunk(first) == (107, None)
    assert storage.store_chunk(third) == (107, None), "a gap is told, not filled"
    [rest] = pieces(source(), 1000, offset=107)
    assert storage.store_chunk(rest) == (232, SnapshotMeta(30, 2, LATER, 29))


def test_unsynced_storage_garbled_piece_is_found_out_and_begun_anew() -> None:
    storage = UnsyncedStorage(GENESIS)
    first, second, _ = pieces(source(), 100)
    storage.store_chunk(first)
    storage.submit_chunk(2, second)
    storage.crash(torn=7, garbled=True)
    [rest] = pieces(source(), 1000, offset=107)
    assert storage.store_chunk(rest) == (0, None)
    assert [storage.store_chunk(piece)[0] for piece in pieces(source(), 100)] == [100, 200, 232]


def test_unsynced_storage_crash_before_the_step_leaves_the_old_state() -> None:
    storage = UnsyncedStorage(GENESIS)
    storage.write(Persist(1, entries=log(1, 3)))
    [piece] = pieces(source(), 1000)
    assert storage.store_chunk(piece)[1] is not None
    storage.submit(Persist(2, HardState(2, 0, 30), 31, (), SnapshotMeta(30, 2, LATER, 29)))
    storage.crash()
    assert (storage.snapshot().index, storage.last_index()) == (0, 3)
