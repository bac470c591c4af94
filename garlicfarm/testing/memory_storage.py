"""Stores in memory with the read side that the core uses."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from garlicfarm.errors import Compacted
from garlicfarm.raft.types import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import Configuration, SnapshotSyncRequest, ValueType

_KEPT_SNAPSHOTS = 2
_DIGEST_BYTES = 24  # of a SHA-256
_COUNT = struct.Struct(">q")


class Stored(msgspec.Struct, frozen=True):
    """The outcome of a piece of a snapshot: the arguments of ``RawNode.report_chunk_stored``."""

    token: int
    held: int
    meta: SnapshotMeta | None


class MemoryStorage:
    """Implements `garlicfarm.raft.Storage`; steps are "durable" once `write` has taken them. ``genesis`` is
    the Configuration in force at index 0.

    A snapshot travels as a checksum of all that follows, the number of Application entries up to there
    (−1: not known), and the state.
    """

    def __init__(self, genesis: Configuration) -> None:
        self._hard_state = HardState()
        self._boundary = SnapshotMeta(0, 0, genesis, 0)
        self._entries: list[Entry] = []
        self._snapshot = self._boundary
        self._files: dict[int, bytes] = {}  # by index: sendable snapshots, and one just received
        self._part: tuple[tuple[int, int], bytes] | None = None  # index and term, and what is held

    def write(self, persist: Persist) -> None:
        """Carry out one durable step."""
        if persist.snapshot is not None:
            if persist.snapshot.index <= self._hard_state.commit or persist.snapshot.index not in self._files:
                raise AssertionError(f"snapshot {persist.snapshot.index} is old, or was not received")
            self._renew(persist.snapshot)
            self._drop(persist.snapshot)
        if persist.truncate_from is not None:
            del self._entries[persist.truncate_from - self.first_index() :]
        if persist.entries:
            if persist.entries[0].index != self.last_index() + 1:
                raise AssertionError(f"a gap before index {persist.entries[0].index}")
            self._entries.extend(persist.entries)
        if persist.hard_state is not None:
            self._hard_state = persist.hard_state

    def take_snapshot(self, meta: SnapshotMeta, state: bytes) -> None:
        """The application's state after ``meta.index``, which is committed, durable at once."""
        self._files[meta.index] = encode_snapshot(state, meta.application_entries)
        self._renew(meta)

    def compact(self, upto: int) -> None:
        """Delete all entries up to ``upto``, which a snapshot covers."""
        if not self.first_index() <= upto <= self._snapshot.index:
            raise AssertionError(f"compaction up to {upto}, with a snapshot of {self._snapshot.index}")
        configuration = self._configuration(upto)
        self._drop(SnapshotMeta(upto, self.term(upto), configuration))

    def store_chunk(self, request: SnapshotSyncRequest) -> tuple[int, SnapshotMeta | None]:
        """Take a piece of a snapshot; the number of bytes held now, and the snapshot once it is complete and
        its hash is correct."""
        key = (request.last_log_index, request.last_log_term)
        held = self._part[1] if self._part is not None and key == self._part[0] else b""
        offset, data = request.offset, request.data
        if offset > len(held):
            return len(held), None
        if offset == 0 and held[: len(data)] != data[: len(held)]:
            held = b""
        held += data[len(held) - offset :]
        self._part = key, held
        if not request.done or offset + len(data) < len(held):
            return len(held), None
        self._part = None
        if _digest(held[_DIGEST_BYTES:]) != held[:_DIGEST_BYTES]:
            return 0, None
        self._files[request.last_log_index] = held
        (count,) = _COUNT.unpack_from(held, _DIGEST_BYTES)
        return len(held), SnapshotMeta(*key, request.configuration, None if count < 0 else count)

    @property
    def contents(self) -> tuple[Entry, ...]:
        """All entries of the durable log."""
        return tuple(self._entries)

    def state(self, index: int) -> bytes:
        """The state in the snapshot of ``index``, which must be there."""
        return self._files[index][_DIGEST_BYTES + _COUNT.size :]

    def initial_state(self) -> tuple[HardState, Configuration]:
        # Only committed entries get into a snapshot; the commit index is written now and then.
        commit = max(self._hard_state.commit, self._snapshot.index)
        return msgspec.structs.replace(self._hard_state, commit=commit), self._configuration(commit)

    def entries(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry]:
        first = self.first_index()
        if lo < first:
            raise Compacted(first)
        start = stop = lo - first
        size = 0
        for entry in self._entries[start : hi - first]:
            size += len(entry.value)
            if size > max_bytes and stop > start:
                break
            stop += 1
        return self._entries[start:stop]

    def term(self, index: int) -> int:
        if index == self._boundary.index:
            return self._boundary.term
        if index < self._boundary.index:
            raise Compacted(self.first_index())
        return self._entries[index - self.first_index()].term

    def first_index(self) -> int:
        return self._boundary.index + 1

    def last_index(self) -> int:
        return self._boundary.index + len(self._entries)

    def snapshot(self) -> SnapshotMeta:
        return self._snapshot

    def snapshot_chunk(self, index: int, offset: int, max_bytes: int) -> tuple[bytes, bool]:
        if index not in self._files:
            raise Compacted(self.first_index())
        data = self._files[index]
        return data[offset : offset + max_bytes], offset + max_bytes >= len(data)

    def _configuration(self, index: int) -> Configuration:
        for entry in reversed(self._entries[: index - self._boundary.index]):
            if entry.value_type is ValueType.CONFIGURATION:
                return decode_configuration(entry.value)
        return self._boundary.configuration

    def _renew(self, newest: SnapshotMeta) -> None:
        self._snapshot = newest
        for index in sorted(i for i in self._files if i <= newest.index)[:-_KEPT_SNAPSHOTS]:
            del self._files[index]

    def _drop(self, boundary: SnapshotMeta) -> None:
        """The log begins after ``boundary``."""
        del self._entries[: boundary.index - self._boundary.index]
        self._boundary = boundary


class UnsyncedStorage(MemoryStorage):
    """A disk with a cache: steps and pieces are submitted, durable once `sync`ed in that order, and a
    `crash` loses the others."""

    def __init__(self, genesis: Configuration) -> None:
        super().__init__(genesis)
        self.pending: deque[Persist | tuple[int, SnapshotSyncRequest]] = deque()

    def submit(self, persist: Persist) -> None:
        """Take a step; it cannot be read yet, nor is it durable."""
        self.pending.append(persist)

    def submit_chunk(self, token: int, request: SnapshotSyncRequest) -> None:
        """Take a piece of a snapshot, which `sync` stores."""
        self.pending.append((token, request))

    def sync(self) -> Persist | Stored:
        """Make the oldest submitted step or piece durable; the step, or the outcome of the piece."""
        oldest = self.pending.popleft()
        if isinstance(oldest, Persist):
            self.write(oldest)
            return oldest
        token, request = oldest
        return Stored(token, *self.store_chunk(request))

    def crash(self, torn: int = 0, *, garbled: bool = False) -> None:
        """Lose everything not durable, except the first ``torn`` bytes of a piece that was being written; the
        last of them is wrong if ``garbled``. A complete snapshot that no step installed is received again."""
        oldest = self.pending[0] if self.pending else None
        self.pending.clear()
        if isinstance(oldest, tuple) and torn:
            request = oldest[1]
            data = request.data[:torn]
            if garbled and data:
                data = data[:-1] + bytes([data[-1] ^ 1])
            self.store_chunk(msgspec.structs.replace(request, data=data, done=False))
        for index in [index for index in self._files if index > self._snapshot.index]:
            del self._files[index]


def encode_snapshot(state: bytes, application_entries: int | None = None) -> bytes:
    """A snapshot as `MemoryStorage` sends and receives it."""
    contents = _COUNT.pack(-1 if application_entries is None else application_entries) + state
    return _digest(contents) + contents


def _digest(contents: bytes) -> bytes:
    return sha256(contents).digest()[:_DIGEST_BYTES]
