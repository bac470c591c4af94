"""The log as the core sees it: durable entries are read from `Storage`, pending ones are held here."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from garlicfarm.raft.types import Entry, LogPosition, Storage

ENTRY_HEADER_BYTES = 13
"""What an entry costs beside its value. It bounds the number of entries without a value."""


class _PendingWrite(msgspec.Struct):
    token: int
    last_index: int  # the log is durable up to it once this write is


class RaftLog:
    """Storage plus the entries that are not durable yet.

    Invariants: ``stable`` ≤ ``last_index``; entries ≤ ``stable`` are read from the storage, all later
    ones are in memory; a truncation lowers ``stable`` at once, so no report of a pending write can bring a
    deleted entry back (etcd's A-B-A race).
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._snapshot = LogPosition(0, 0)  # a received one, which the storage may not show yet
        self.last_index = storage.last_index()
        self.last_term = storage.term(self.last_index)
        self.stable = self.last_index
        self._memory: list[Entry] = []
        self._handed_out_index = self.last_index  # the last one that a write handed out covers
        self._writes: deque[_PendingWrite] = deque()
        self._truncate_from: int | None = None

    @property
    def last(self) -> LogPosition:
        """The last entry, durable or not."""
        return LogPosition(self.last_index, self.last_term)

    @property
    def first_index(self) -> int:
        """The first entry that can be read."""
        return max(self.storage.first_index(), self._snapshot.index + 1)

    def term(self, index: int) -> int:
        """The term at ``index`` ≤ last_index; `Compacted` below the storage's boundary."""
        if index == self.last_index:
            return self.last_term
        if index == self._snapshot.index:
            return self._snapshot.term
        if index > self.stable:
            return self._memory[index - self._memory[0].index].term
        return self.storage.term(index)

    def entries(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry]:
        """Entries lo ≤ index < hi: at least one, then as many as ``max_bytes`` allow; fewer where
        durable and volatile entries meet, and where headers alone come to ``max_bytes``."""
        hi = min(hi, lo + 1 + max_bytes // ENTRY_HEADER_BYTES)
        if lo <= self.stable:
            return self.storage.entries(lo, min(hi, self.stable + 1), max_bytes)
        start = lo - self._memory[0].index
        stop, size = start, 0
        for entry in self._memory[start : start + hi - lo]:
            size += len(entry.value)
            if size > max_bytes and stop > start:
                break
            stop += 1
        return self._memory[start:stop]

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries that follow last_index without a gap."""
        self._memory.extend(entries)
        self.last_index = entries[-1].index
        self.last_term = entries[-1].term

    def truncate(self, index: int) -> None:
        """Delete all entries from ``index`` on."""
        if self._memory and self._memory[0].index < index:
            del self._memory[index - self._memory[0].index :]
        else:
            self._memory.clear()
        if index <= self._handed_out_index:
            self._truncate_from = index  # lower than a pending one, which has lowered `_handed_out_index`
            self._handed_out_index = index - 1
        self.stable = min(self.stable, index - 1)
        for write in self._writes:
            write.last_index = min(write.last_index, index - 1)
        self.last_index = index - 1
        if self._memory:
            self.last_term = self._memory[-1].term
        elif self.last_index == self._snapshot.index:
            self.last_term = self._snapshot.term
        else:
            self.last_term = self.storage.term(self.last_index)

    def restore(self, index: int, term: int) -> bool:
        """A snapshot replaces all entries up to ``index``. Entries behind it stay if the log holds the
        snapshot's last entry (Raft §7): they may be acknowledged. Returns whether it does."""
        fits = self.first_index - 1 <= index <= self.last_index and self.term(index) == term
        if fits:
            if self._truncate_from is not None:
                self._truncate_from = max(self._truncate_from, index + 1)
            self._handed_out_index = max(self._handed_out_index, index)
        else:
            self._memory.clear()
            if self._truncate_from is not None or self._handed_out_index > index:
                self._truncate_from = index + 1
            self._handed_out_index = self.last_index = index
            self.last_term = term
            self.stable = min(self.stable, index)
            for write in self._writes:
                write.last_index = min(write.last_index, index)
        self._snapshot = LogPosition(index, term)
        return fits

    @property
    def has_unwritten(self) -> bool:
        """Whether something was appended or deleted that no write covers yet."""
        return self._truncate_from is not None or self._handed_out_index < self.last_index

    def take_unwritten(self, token: int) -> tuple[int | None, tuple[Entry, ...]]:
        """What the write ``token`` has to delete and append: (truncate_from, entries)."""
        truncate_from, self._truncate_from = self._truncate_from, None
        count = self.last_index - self._handed_out_index
        entries = tuple(self._memory[-count:]) if count else ()
        self._handed_out_index = self.last_index
        self._writes.append(_PendingWrite(token, self.last_index))
        return truncate_from, entries

    def on_persisted(self, token: int) -> None:
        """Everything up to ``token`` is durable and can be read from the storage."""
        while self._writes and self._writes[0].token <= token:
            self.stable = max(self.stable, self._writes.popleft().last_index)
        if self._memory and self._memory[0].index <= self.stable:
            del self._memory[: self.stable + 1 - self._memory[0].index]
