"""Stores in memory with the read side that the core uses."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from garlicfarm.raft.types import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import Configuration, ValueType

__all__ = ["MemoryStorage", "UnsyncedStorage"]


class MemoryStorage:
    """Implements `garlicfarm.raft.Storage`; what `write` has taken is "durable". ``genesis`` is the
    Configuration in force at index 0."""

    def __init__(self, genesis: Configuration) -> None:
        self._genesis = genesis
        self._hard_state = HardState()
        self._entries: list[Entry] = []

    def write(self, persist: Persist) -> None:
        """Carry out one durable step."""
        if persist.truncate_from is not None:
            del self._entries[persist.truncate_from - 1 :]
        if persist.entries:
            if persist.entries[0].index != len(self._entries) + 1:
                raise AssertionError(f"a gap before index {persist.entries[0].index}")
            self._entries.extend(persist.entries)
        if persist.hard_state is not None:
            self._hard_state = persist.hard_state

    @property
    def contents(self) -> tuple[Entry, ...]:
        """The whole durable log."""
        return tuple(self._entries)

    def initial_state(self) -> tuple[HardState, Configuration]:
        committed = self._entries[: self._hard_state.commit]
        for entry in reversed(committed):
            if entry.value_type is ValueType.CONFIGURATION:
                return self._hard_state, decode_configuration(entry.value)
        return self._hard_state, self._genesis

    def entries(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry]:
        stop, size = lo - 1, 0
        for entry in self._entries[lo - 1 : hi - 1]:
            size += len(entry.value)
            if size > max_bytes and stop > lo - 1:
                break
            stop += 1
        return self._entries[lo - 1 : stop]

    def term(self, index: int) -> int:
        return self._entries[index - 1].term if index else 0

    def first_index(self) -> int:
        return 1

    def last_index(self) -> int:
        return len(self._entries)

    def snapshot(self) -> SnapshotMeta:
        return SnapshotMeta(0, 0, self._genesis)


class UnsyncedStorage(MemoryStorage):
    """A disk with a cache: steps are `submit`ted, durable once `sync`ed, and a crash loses the others."""

    def __init__(self, genesis: Configuration) -> None:
        super().__init__(genesis)
        self.pending: deque[Persist] = deque()

    def submit(self, persist: Persist) -> None:
        """Take a step; it cannot be read yet, nor is it durable."""
        self.pending.append(persist)

    def sync(self) -> Persist:
        """Make the oldest submitted step durable; returns it."""
        persist = self.pending.popleft()
        self.write(persist)
        return persist
