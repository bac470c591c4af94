"""The one thread that writes a farm's store: all queued steps become one transaction with one fsync."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from queue import SimpleQueue
from time import perf_counter
from typing import NamedTuple, NoReturn

import trio

from garlicfarm.errors import LocalProtocolError, StorageError
from garlicfarm.raft.types import Persist, SnapshotMeta
from garlicfarm.storage.compaction import delete_entries, install
from garlicfarm.storage.jraft_snapshots import JRaftSnapshotReceiver
from garlicfarm.storage.log_store import SNAPSHOTS, LogStore
from garlicfarm.storage.snapshot_receiver import SnapshotReceiver
from garlicfarm.storage.tables import encode_entry, encode_hard_state, storage_error
from garlicfarm.wire.messages import SnapshotSyncRequest

__all__ = ["Writer"]

_MAX_QUEUED_STEPS = 65_536
_MAX_QUEUED_BYTES = 256 * 1024 * 1024
_CHECKPOINT_BYTES = 4 * 1024 * 1024
_MAX_WAL_FRAMES = 4096  # of 4 KiB
_BATCH_OVERHEAD_BYTES = 8 * 1024  # even a small transaction rewrites two pages
_DELETION_BYTES = 512 * 1024  # the most that one rewrites; usually far less


class _Chunk(NamedTuple):
    token: int
    request: SnapshotSyncRequest


class Writer:
    """Writes the core's durable steps and reports them once they are durable.

    Callbacks run in the Trio thread and must not raise. ``on_durable(token)``, once per batch: all steps up
    to ``token`` are on disk, and ``store`` shows them. ``on_batch(entries, seconds)``, likewise, for metrics.
    ``on_chunk(token, held, meta)``, once per piece of a snapshot (`SnapshotReceiver.take`); before it,
    ``on_problem(sentence)`` if a piece was not taken for a new reason.

    ``check_state(state)`` runs in the writer's thread and raises if the application cannot take up a state
    that came without a checksum.
    """

    def __init__(
        self,
        store: LogStore,
        on_durable: Callable[[int], None],
        on_batch: Callable[[int, float], None] | None = None,
        on_chunk: Callable[[int, int, SnapshotMeta | None], None] | None = None,
        on_problem: Callable[[str], None] | None = None,
        *,
        check_state: Callable[[bytes], None] = lambda state: None,
    ) -> None:
        self._store = store
        self._on_durable = on_durable
        self._on_batch = on_batch
        self._on_chunk = on_chunk
        self._on_problem = on_problem
        place = (store.path.parent / SNAPSHOTS, store.genesis)
        self._receiver = (
            JRaftSnapshotReceiver(*place, check_state) if store.is_jraft else SnapshotReceiver(*place)
        )
        self._problem = ""
        # An int: delete all entries up to it. None: the end.
        self._queue: SimpleQueue[Persist | _Chunk | int | None] = SimpleQueue()
        self._token = -1
        self._next_index = store.last_index() + 1
        self._commit = store.initial_state()[0].commit
        self._queued_steps = 0
        self._queued_bytes = 0
        self._error: sqlite3.Error | OSError | OverflowError | None = None

    def submit(self, persist: Persist) -> None:
        """Queue one step and return at once. After the end of `run` it is neither written nor reported.

        Raises `LocalProtocolError`: tokens or a commit index that do not rise, entries that leave a
        gap, a truncation of what is committed or in the snapshot, a snapshot of what is committed, or a
        commit index beyond the log or before the snapshot; `StorageError`: 65,536 steps or 256 MiB are
        queued: the disk hangs.
        """
        first, entries, snapshot = persist.truncate_from, persist.entries, persist.snapshot
        next_index, held = self._next_index, self._commit
        if snapshot is not None:
            if snapshot.index <= held:
                raise LocalProtocolError(f"a snapshot of {snapshot.index}: {held} are committed")
            held, next_index = snapshot.index, max(next_index, snapshot.index + 1)
        if first is None:
            first = next_index
        elif not held < first <= next_index:
            raise LocalProtocolError(f"entries from {first} on: {held} are committed")
        end = first + len(entries)
        commit = self._commit if persist.hard_state is None else persist.hard_state.commit
        size = _size(persist)
        if persist.token <= self._token:
            raise LocalProtocolError(f"token {persist.token} after {self._token}")
        if entries and (entries[0].index != first or entries[-1].index != end - 1):
            raise LocalProtocolError(f"entries {entries[0].index} to {entries[-1].index}, {first} is next")
        if not held <= commit < end:
            raise LocalProtocolError(f"commit index {commit} after {held}, in a log up to {end - 1}")
        self._charge(size)
        self._token, self._next_index, self._commit = persist.token, end, commit
        self._store.on_submitted(persist)
        self._queue.put(persist)

    def submit_chunk(self, token: int, request: SnapshotSyncRequest) -> None:
        """Queue a piece of a snapshot behind all earlier pieces and steps, and return at once.

        Raises `StorageError` as `submit`.
        """
        self._charge(len(request.data))
        self._queue.put(_Chunk(token, request))

    def _charge(self, size: int) -> None:
        if self._queued_steps >= _MAX_QUEUED_STEPS or self._queued_bytes + size > _MAX_QUEUED_BYTES:
            queued = f"{self._queued_steps} steps, {self._queued_bytes} bytes are queued"
            raise StorageError(f"{self._store.path}: the disk hangs; {queued}")
        self._queued_steps += 1
        self._queued_bytes += size

    def compact(self, upto: int) -> None:
        """Hide all entries with index ≤ ``upto`` at once, and delete them in small steps; returns at once.
        What `run` does not finish, the next one does.

        Raises `LocalProtocolError`: ``upto`` is deleted already, no entry would remain, or the newest durable
        snapshot does not cover it.
        """
        store = self._store
        if not store.first_index() <= upto < store.last_index() or upto > store.snapshot().index:
            held = f"a log up to {store.last_index()}, a snapshot of {store.snapshot().index}"
            raise LocalProtocolError(f"compaction up to {upto} of {held}")
        self._store.on_compacting(upto)
        self._queue.put(upto)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Write until cancelled. Call it once.

        Any error of a write or an fsync ends it with `StorageError` (`StorageDamaged` if the contents are
        wrong). No step of that batch or a later one is reported, and nothing is retried.

        Cancelled: queued steps are still written and reported, the WAL is checkpointed, and the writer's
        connection is closed. This takes as long as the disk does, regardless of deadlines. An error meanwhile
        is raised instead of the cancellation.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._own_thread, trio.lowlevel.current_trio_token(), nursery.cancel_scope)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._queue.put(None)
        finally:
            if self._error is not None:
                raise storage_error(self._error, self._store.path) from self._error
        raise AssertionError("the thread ends only when told to, or with an error")

    async def _own_thread(self, loop: trio.lowlevel.TrioToken, scope: trio.CancelScope) -> None:
        limiter = trio.CapacityLimiter(1)  # its own: this thread runs as long as the node
        try:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._work, loop, limiter=limiter, thread_name="storage writer")
        except (sqlite3.Error, OSError, OverflowError) as error:
            self._error = error
            scope.cancel()

    def _work(self, loop: trio.lowlevel.TrioToken) -> None:
        """The thread. After an error the connection is closed without another write or sync: SQLite does not
        checkpoint, since the store's read-only connection is still open."""
        unmoved_bytes = delete_upto = 0
        deleting = True  # what the last process left undone
        with closing(self._store.writes) as db:
            while True:
                batch, chunks, upto, over = self._take(wait=not deleting)
                if batch:
                    begun = perf_counter()
                    _write(db, batch)
                    loop.run_sync_soon(self._report, batch, perf_counter() - begun)
                    unmoved_bytes += _BATCH_OVERHEAD_BYTES + sum(map(_size, batch))
                for chunk in chunks:
                    result = self._receiver.take(chunk.request)
                    loop.run_sync_soon(self._report_chunk, chunk, *result, self._receiver.problem)
                if upto or any(persist.snapshot is not None for persist in batch):
                    deleting, delete_upto = True, max(upto, delete_upto)
                if over:
                    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                    return
                if deleting:
                    unmoved_bytes += _DELETION_BYTES
                    deleting = not delete_entries(db, delete_upto)
                if unmoved_bytes >= _CHECKPOINT_BYTES:
                    _, frames, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                    if frames > _MAX_WAL_FRAMES:
                        # The WAL restarts only when no reader uses it, and readers may never pause.
                        db.execute(
                            "PRAGMA wal_checkpoint(RESTART)"
                        ).fetchall()  # waits for readers, at most a second
                    unmoved_bytes = 0

    def _take(self, *, wait: bool) -> tuple[list[Persist], list[_Chunk], int, bool]:
        """Everything queued: steps, pieces (no step depends on an unreported one), up to which index to
        delete (0: nothing new), and whether this is the end."""
        steps: list[Persist] = []
        chunks: list[_Chunk] = []
        upto = 0
        while wait or not self._queue.empty():
            wait = False
            item = self._queue.get()
            if item is None:
                return steps, chunks, upto, True
            if isinstance(item, int):
                upto = item
            elif isinstance(item, _Chunk):
                chunks.append(item)
            else:
                steps.append(item)
        return steps, chunks, upto, False

    def _report(self, batch: Sequence[Persist], seconds: float) -> None:
        for persist in batch:
            self._store.on_written(persist)
            self._queued_bytes -= _size(persist)
        self._queued_steps -= len(batch)
        if self._on_batch is not None:
            self._on_batch(sum([len(persist.entries) for persist in batch]), seconds)
        self._on_durable(batch[-1].token)

    def _report_chunk(self, chunk: _Chunk, held: int, meta: SnapshotMeta | None, problem: str) -> None:
        self._queued_steps -= 1
        self._queued_bytes -= len(chunk.request.data)
        if problem and problem != self._problem and self._on_problem is not None:
            self._on_problem(problem)
        if problem or meta is not None:  # pieces of what is refused at its end are taken each time
            self._problem = problem
        if self._on_chunk is not None:
            self._on_chunk(chunk.token, held, meta)


def _size(persist: Persist) -> int:
    return sum([len(entry.value) for entry in persist.entries])


def _write(db: sqlite3.Connection, batch: Sequence[Persist]) -> None:
    """One transaction; durable when this returns (`synchronous = FULL`)."""
    hard_state = None
    db.execute("BEGIN IMMEDIATE")
    for persist in batch:
        if persist.snapshot is not None:
            install(db, persist.snapshot)
        if persist.truncate_from is not None:
            db.execute("DELETE FROM entries WHERE idx >= ?", (persist.truncate_from,))
        if persist.entries:
            db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", map(encode_entry, persist.entries))
        hard_state = persist.hard_state or hard_state
    if hard_state is not None:
        row = encode_hard_state(hard_state)
        db.execute("UPDATE hard_state SET term = ?, vote = ?, commit_index = ?, crc32 = ?", row)
    db.execute("COMMIT")
