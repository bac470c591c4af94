"""Snapshots and compaction: how much of its log a member keeps.

Entries are deleted when they are in a durable snapshot and ``[farm.retention]`` does not keep them for
readers; nor those of the current epoch, where a feed serves whole ones. It does not wait for members that
lag: one that needs deleted entries is sent the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import StorageError
from garlicfarm.feed.pages import PageReader
from garlicfarm.node.applier import Applier
from garlicfarm.node.epochs import Epochs
from garlicfarm.storage import SNAPSHOTS, LogStore, Writer, remove_snapshots, write_snapshot

CHECK_S = 5.0
KEPT_SNAPSHOTS = 2  # the older one is used if the newer one is damaged


class Retention:
    """Takes the snapshots of one farm, and shortens its log. ``kept``: of these epochs the current one stays
    whole; None: no feed needs that. ``wanted()``: see `garlicfarm.raft.RawNode.snapshot_wanted`."""

    def __init__(
        self,
        context: ApplicationContext,
        applier: Applier,
        store: LogStore,
        writer: Writer,
        pages: PageReader,
        kept: Epochs | None = None,
        wanted: Callable[[], int] = lambda: 0,
    ) -> None:
        self._context = context
        self._applier = applier
        self._store = store
        self._writer = writer
        self._pages = pages
        self._kept = kept
        self._wanted = wanted
        self._directory = store.path.parent / SNAPSHOTS
        self._limiter = trio.CapacityLimiter(1)
        self._keep = context.section.retention
        self._tried = 0  # index of the last snapshot that this member took or failed to take
        self._tidied = 0  # index of the newest one, own or received, after which was tidied

    async def run(self) -> NoReturn:
        """Run until cancelled, which waits for the disk to finish a snapshot in progress. A snapshot that
        cannot be written is logged, and tried again after as many more entries: it only serves to shorten
        the log.

        Raises `StorageError`: the log cannot be read.
        """
        context, store = self._context, self._store
        while True:
            if store.snapshot().index == self._tidied:
                with trio.move_on_after(CHECK_S):
                    await context.wait_applied(self._due - 1)
            if context.applied_index >= self._due:  # a received snapshot postpones it
                self._tried = context.applied_index
                await self._take_snapshot()
            if store.snapshot().index != self._tidied:
                await self._tidy(store.snapshot().index)

    @property
    def _due(self) -> int:
        """The applied index at which to take the next snapshot."""
        due = max(self._store.snapshot().index, self._tried) + self._keep.snapshot_every_entries
        wanted = self._wanted()  # by a member that is being repaired
        return min(due, max(wanted, self._tried) + 1) if wanted else due

    async def _take_snapshot(self) -> None:
        context, snapshot = self._context, self._applier.snapshot()
        try:
            await trio.to_thread.run_sync(write_snapshot, self._directory, snapshot, limiter=self._limiter)
        except StorageError as error:
            context.metrics.count_snapshot("failed")
            context.log.error("snapshot-failed", index=snapshot.index, cause=str(error))
            return
        self._store.on_snapshot_written(snapshot.meta)
        context.metrics.count_snapshot("ok")
        context.log.info("snapshot", index=snapshot.index)

    async def _tidy(self, newest: int) -> None:
        """Delete what the snapshot of ``newest`` makes unnecessary: older ones, and entries."""
        keep, store = self._keep, self._store
        self._tidied = newest
        try:
            await trio.to_thread.run_sync(
                remove_snapshots, self._directory, newest, KEPT_SNAPSHOTS, limiter=self._limiter
            )
        except StorageError as error:
            self._context.log.error("snapshot-failed", index=newest, cause=str(error))
        surplus = await self._pages.surplus(newest, keep.keep_entries, keep.keep_bytes)
        upto = min(surplus, newest - 1, store.last_index() - 1)  # the last one always stays
        if self._kept is not None:
            upto = min(upto, self._kept.current_start() - 1)
        if upto >= store.first_index():
            self._writer.compact(upto)
