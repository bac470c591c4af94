"""Snapshots and compaction: how much of its log a member keeps.

Entries are deleted when they are in a durable snapshot and ``[farm.retention]`` does not keep them for
readers; nor those of the current epoch, where a feed serves whole ones. It does not wait for members that
lag: one that needs deleted entries is sent the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import StorageDamaged, StorageError
from garlicfarm.feed.pages import PageReader
from garlicfarm.node.applier import Applier
from garlicfarm.node.epochs import Epochs
from garlicfarm.storage import SNAPSHOTS, LogStore, Writer, remove_snapshots, snapshot_name, write_snapshot

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
        self._lost = 0  # entries up to this one are damaged on the disk
        self._unsound: set[Path] = set()  # snapshots that are
        self._tidied = 0  # index of the newest one, own or received, after which was tidied

    def discard(self, upto: int) -> None:
        """Among the entries up to ``upto`` are some that the disk has damaged: delete them as soon as a
        snapshot of this member's own state makes them unnecessary, whoever reads them."""
        self._lost = max(self._lost, upto)

    def replace(self, snapshot: Path) -> None:
        """A snapshot is damaged: write a new one, then delete it."""
        self._unsound.add(snapshot)

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
            if self._unsound and await self._take_snapshot():
                await self._remove_unsound()
            elif context.applied_index >= self._due:  # a received snapshot postpones it
                self._tried = context.applied_index
                await self._take_snapshot()
            if store.snapshot().index != self._tidied or self._can_discard:
                await self._tidy(store.snapshot().index)

    @property
    def _due(self) -> int:
        """The applied index at which to take the next snapshot."""
        due = max(self._store.snapshot().index, self._tried) + self._keep.snapshot_every_entries
        if self._lost >= self._store.first_index() and self._lost > self._store.snapshot().index:
            due = min(due, max(self._lost, self._tried + 1))
        wanted = self._wanted()  # by a member that is being repaired
        return min(due, max(wanted, self._tried) + 1) if wanted else due

    @property
    def _can_discard(self) -> bool:
        """Whether the damaged entries may be deleted now; the last entry always stays."""
        store = self._store
        return store.first_index() <= self._lost <= min(store.snapshot().index, store.last_index() - 1)

    async def _take_snapshot(self) -> bool:
        """Whether there is a new one."""
        context, snapshot = self._context, self._applier.snapshot()
        try:
            await trio.to_thread.run_sync(write_snapshot, self._directory, snapshot, limiter=self._limiter)
        except StorageError as error:
            context.metrics.count_snapshot("failed")
            context.log.error("snapshot-failed", index=snapshot.index, cause=str(error))
            return False
        self._store.on_snapshot_written(snapshot.meta)
        context.metrics.count_snapshot("ok")
        context.log.info("snapshot", index=snapshot.index)
        return True

    async def _remove_unsound(self) -> None:
        newest = self._store.snapshot()
        kept = self._directory / f"{snapshot_name(newest.index, newest.term)}.snap"
        for path in self._unsound - {kept}:  # that one was replaced
            try:
                await trio.to_thread.run_sync(path.unlink, True, limiter=self._limiter)
            except OSError as error:
                self._context.log.error("snapshot-failed", index=newest.index, cause=str(error))
        self._unsound.clear()

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
        if self._can_discard:
            upto = max(upto, self._lost)
        if upto >= store.first_index():
            self._compact(upto)

    def _compact(self, upto: int) -> None:
        try:
            self._writer.compact(upto)
        except StorageDamaged:  # what the log would begin with; the newest snapshot says it, too
            newest = self._store.snapshot().index
            if newest < self._store.last_index():
                self._writer.compact(newest)
