"""Committed entries, read from the store in a worker thread, in small pieces.

All readers of a node share one limiter. However many drain the log, only one reads at any moment, and the
node's own work continues meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import trio

from garlicfarm.raft.types import Entry


class EntryReader(Protocol):
    """The stored log of one farm, read by blocking calls: `garlicfarm.storage.LogReader`."""

    def entries(self, after: int, upto: int, max_bytes: int) -> Sequence[Entry]: ...
    def surplus(self, upto: int, keep_entries: int, keep_bytes: int) -> int: ...


def reader_limiter() -> trio.CapacityLimiter:
    """The limiter that all `PageReader` of a node share: one of them reads at a time."""
    return trio.CapacityLimiter(1)


class PageReader:
    """Reads pieces of one farm's log."""

    def __init__(self, reader: EntryReader, limiter: trio.CapacityLimiter) -> None:
        self._reader = reader
        self._limiter = limiter

    async def read(self, after: int, upto: int, max_bytes: int) -> Sequence[Entry]:
        """`garlicfarm.storage.LogReader.entries` in a worker thread, once the limiter is free.

        Cancelled: waits for the piece that is being read, some milliseconds.
        """
        read = partial(self._reader.entries, after, upto, max_bytes)
        return await trio.to_thread.run_sync(read, limiter=self._limiter)

    async def surplus(self, upto: int, keep_entries: int, keep_bytes: int) -> int:
        """`garlicfarm.storage.LogReader.surplus`, likewise."""
        find = partial(self._reader.surplus, upto, keep_entries, keep_bytes)
        return await trio.to_thread.run_sync(find, limiter=self._limiter)
