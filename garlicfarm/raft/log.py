"""The log as the core sees it: what is durable lies in `Storage`, what is not yet in memory here."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from garlicfarm.raft.types import Entry, LogPosition, Storage

__all__ = ["ENTRY_HEADER_BYTES", "RaftLog"]

ENTRY_HEADER_BYTES = 13
"""What an entry costs beside its value: without it, entries without a value would know no bounds."""


class RaftLog:
    """Storage plus the entries that are not durable yet.

    Invariants: ``stable`` ≤ ``last_index``; entries ≤ ``stable`` are read from the storage, all later
    ones lie in memory; a truncation lowers ``stable`` at once, so nothing that a pending write still
    reports can bring a deleted entry back (etcd's A-B-A race).
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._floor = (0, 0)  # (index, term) of a received snapshot that the storage may not show yet
        self.last_index = storage.last_index()
        self.last_term = storage.term(self.last_index)
        self.stable = self.last_index
        self._memory: list[Entry] = []
        self._issued = self.last_index
        self._writes: deque[list[int]] = deque()  # [token, last index that it makes durable]
        self._truncate_from: int | None = None

    @property
    def last(self) -> LogPosition:
        """The last entry, durable or not."""
        return LogPosition(self.last_index, self.last_term)

    @property
    def first_index(self) -> int:
        """The first entry that can be read."""
        return max(self.storage.first_index(), self._floor[0] + 1)

    def term(self, index: int) -> int:
        """The term at ``index`` ≤ last_index; `Compacted` below the storage's boundary."""
        if index == self.last_index:
            return self.last_term
        if index == self._floor[0]:
            return self._floor[1]
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
        if index <= self._issued:
            self._truncate_from = index  # lower than one that waits, which has lowered `_issued`
            self._issued = index - 1
        self.stable = min(self.stable, index - 1)
        for write in self._writes:
            write[1] = min(write[1], index - 1)
        self.last_index = index - 1
        if self._memory:
            self.last_term = self._memory[-1].term
        elif self.last_index == self._floor[0]:
            self.last_term = self._floor[1]
        else:
            self.last_term = self.storage.term(self.last_index)

    def restore(self, index: int, term: int) -> bool:
        """A snapshot stands for all entries up to ``index``. Entries behind it stay if the log holds the
        one at ``index`` itself (Raft §7): they may be acknowledged. Returns whether it does."""
        fits = self.first_index - 1 <= index <= self.last_index and self.term(index) == term
        if fits:
            if self._truncate_from is not None:
                self._truncate_from = max(self._truncate_from, index + 1)
            self._issued = max(self._issued, index)
        else:
            self._memory.clear()
            if self._truncate_from is not None or self._issued > index:
                self._truncate_from = index + 1
            self._issued = self.last_index = index
            self.last_term = term
            self.stable = min(self.stable, index)
            for write in self._writes:
                write[1] = min(write[1], index)
        self._floor = (index, term)
        return fits

    @property
    def has_unwritten(self) -> bool:
        """Whether something was appended or deleted that no write covers yet."""
        return self._truncate_from is not None or self._issued < self.last_index

    def take_unwritten(self, token: int) -> tuple[int | None, tuple[Entry, ...]]:
        """What the write ``token`` is to delete and append: (truncate_from, entries)."""
        truncate_from, self._truncate_from = self._truncate_from, None
        count = self.last_index - self._issued
        entries = tuple(self._memory[-count:]) if count else ()
        self._issued = self.last_index
        self._writes.append([token, self.last_index])
        return truncate_from, entries

    def on_persisted(self, token: int) -> None:
        """Everything up to ``token`` is durable and can be read from the storage."""
        while self._writes and self._writes[0][0] <= token:
            self.stable = max(self.stable, self._writes.popleft()[1])
        if self._memory and self._memory[0].index <= self.stable:
            del self._memory[: self.stable + 1 - self._memory[0].index]
