"""Pages of committed entries, read from the store in a worker thread.

All readers of a node share one limiter: however many drain the log at a time, one of them reads at
that moment, in small pieces, and the node's own work goes on beside it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from garlicfarm.feed.lines import Page

if TYPE_CHECKING:
    from garlicfarm.storage.reader import LogReader

__all__ = ["MAX_PAGE_BYTES", "PageReader", "reader_limiter"]

MAX_PAGE_BYTES = 256 << 10
"""Bytes of values in a page; a single larger entry is a page of its own."""


def reader_limiter() -> trio.CapacityLimiter:
    """What all `PageReader` of a node share: one of them reads at a time."""
    return trio.CapacityLimiter(1)


class PageReader:
    """Reads pages of one farm's log through ``reader``, which has its own connection to the store."""

    def __init__(self, reader: LogReader, limiter: trio.CapacityLimiter) -> None:
        self._reader = reader
        self._limiter = limiter

    async def read(self, after: int, limit: int, *, upto_index: int, all_types: bool) -> Page:
        """Entries with ``after`` < index ≤ ``upto_index``: at most ``limit``, and `MAX_PAGE_BYTES`.

        :param limit: 1 and more.
        :param upto_index: the commit index, or the last durable index if that is smaller.
        :param all_types: Configurations too, not application entries alone.
        :returns: a page that may be empty and yet move on, over entries of other types.
        :raises Compacted: ``after`` < first index − 1: the reader starts from the state.
        :raises StorageError: the store cannot be read.

        Cancelled, it waits for the page at hand: milliseconds.
        """
        read = partial(self._reader.page, after, limit, MAX_PAGE_BYTES, upto_index, all_types)
        entries, next_after = await trio.to_thread.run_sync(read, limiter=self._limiter)
        return Page(entries, next_after)
