"""Committed entries, read from the store in a worker thread, in small pieces.

All readers of a node share one limiter: however many drain the log at a time, one of them reads at
that moment, and the node's own work goes on beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from garlicfarm.raft.types import Entry

if TYPE_CHECKING:
    from garlicfarm.storage.reader import LogReader

__all__ = ["PageReader", "reader_limiter"]


def reader_limiter() -> trio.CapacityLimiter:
    """What all `PageReader` of a node share: one of them reads at a time."""
    return trio.CapacityLimiter(1)


class PageReader:
    """Reads pieces of one farm's log through ``reader``, which has its own connection to the store."""

    def __init__(self, reader: LogReader, limiter: trio.CapacityLimiter) -> None:
        self._reader = reader
        self._limiter = limiter

    async def read(self, after: int, upto: int, max_bytes: int) -> Sequence[Entry]:
        """`LogReader.entries`, in a worker thread, when it is this reader's turn.

        Cancelled, it waits for the piece at hand: milliseconds.
        """
        read = partial(self._reader.entries, after, upto, max_bytes)
        return await trio.to_thread.run_sync(read, limiter=self._limiter)

    async def surplus(self, upto: int, keep_entries: int, keep_bytes: int) -> int:
        """`LogReader.surplus`, likewise."""
        find = partial(self._reader.surplus, upto, keep_entries, keep_bytes)
        return await trio.to_thread.run_sync(find, limiter=self._limiter)
