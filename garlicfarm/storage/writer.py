"""The one thread that writes a farm's store: all queued steps become one frame with one sync."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from queue import SimpleQueue
from time import perf_counter
from typing import NamedTuple, NoReturn

import trio

from garlicfarm.errors import LocalProtocolError, StorageError
from garlicfarm.raft.types import Persist, SnapshotMeta
from garlicfarm.storage.damage import storage_error
from garlicfarm.storage.jraft_snapshots import JRaftSnapshotReceiver
from garlicfarm.storage.log_index import Positions
from garlicfarm.storage.log_store import SNAPSHOTS, LogStore
from garlicfarm.storage.snapshot_receiver import SnapshotReceiver
from garlicfarm.wire.messages import SnapshotSyncRequest

_MAX_QUEUED_STEPS = 65_536
_MAX_QUEUED_BYTES = 256 * 1024 * 1024


class _Chunk(NamedTuple):
    token: int
    request: SnapshotSyncRequest
    source: int


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
        position = (store.path.parent / SNAPSHOTS, store.genesis)
        self._receiver = (
            JRaftSnapshotReceiver(*position, check_state) if store.is_jraft else SnapshotReceiver(*position)
        )
        self._problem = ""
        # Metadata: the log's new beginning. An int: delete all segments before it. None: the end.
        self._queue: SimpleQueue[Persist | _Chunk | SnapshotMeta | int | None] = SimpleQueue()
        self._token = -1
        self._next_index = store.last_index() + 1
        self._commit = store.initial_state()[0].commit
        self._queued_steps = 0
        self._queued_bytes = 0
        self._error: OSError | struct.error | None = None

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

    def submit_chunk(self, token: int, request: SnapshotSyncRequest, source: int = 0) -> None:
        """Queue a piece of a snapshot, which the member ``source`` sent (0: not told), behind all earlier
        pieces and steps, and return at once.

        Raises `StorageError` as `submit`.
        """
        self._charge(len(request.data))
        self._queue.put(_Chunk(token, request, source))

    def _charge(self, size: int) -> None:
        if self._queued_steps >= _MAX_QUEUED_STEPS or self._queued_bytes + size > _MAX_QUEUED_BYTES:
            queued = f"{self._queued_steps} steps, {self._queued_bytes} bytes are queued"
            raise StorageError(f"{self._store.path}: the disk hangs; {queued}")
        self._queued_steps += 1
        self._queued_bytes += size

    def compact(self, upto: int) -> None:
        """Hide all entries with index ≤ ``upto`` at once, and let the log begin after them; then the segments
        are deleted that only they are in. Returns at once. The next start finishes what `run` does not.

        Raises `LocalProtocolError`: ``upto`` is deleted already, no entry would remain, or the newest durable
        snapshot does not cover it; `StorageDamaged`, `StorageError`: the entry cannot be read. Nothing is
        changed then.
        """
        store = self._store
        if not store.first_index() <= upto < store.last_index() or upto > store.snapshot().index:
            held = f"a log up to {store.last_index()}, a snapshot of {store.snapshot().index}"
            raise LocalProtocolError(f"compaction up to {upto} of {held}")
        self._queue.put(store.on_compacting(upto))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Write until cancelled. Call it once.

        Any error of a write or an fsync ends it with `StorageError` (`StorageDamaged` if the contents are
        wrong). No step of that batch or a later one is reported, and nothing is retried.

        Cancelled: queued steps are still written and reported, and the log's files are closed. This takes as
        long as the disk does, regardless of deadlines. An error meanwhile is raised instead of the
        cancellation.
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
        except (OSError, struct.error) as error:
            self._error = error
            scope.cancel()

    def _work(self, loop: trio.lowlevel.TrioToken) -> None:
        """The thread. After an error nothing is written or synced."""
        with closing(self._store.appender) as appender:
            is_over = False
            while not is_over:
                batch, chunks, boundary, delete_before, is_over = self._take()
                if batch or boundary:
                    begun = perf_counter()
                    positions = appender.write(batch, boundary)
                    seconds = perf_counter() - begun
                    loop.run_sync_soon(self._report, batch, positions, boundary, appender.segment, seconds)
                for chunk in chunks:
                    result = self._receiver.take(chunk.request, chunk.source)
                    loop.run_sync_soon(self._report_chunk, chunk, *result, self._receiver.problem)
                if delete_before:
                    appender.delete_segments(delete_before)
            appender.sync_all()

    def _take(self) -> tuple[list[Persist], list[_Chunk], SnapshotMeta | None, int, bool]:
        """Wait for what is queued, and take all of it: steps, pieces (no step depends on an unreported one),
        where the log is to begin (None: as before), before which segment to delete (0: nothing), and whether
        this is the end."""
        steps: list[Persist] = []
        chunks: list[_Chunk] = []
        boundary, delete_before, is_over = None, 0, False
        while True:
            item = self._queue.get()
            if isinstance(item, Persist):
                steps.append(item)
            elif isinstance(item, _Chunk):
                chunks.append(item)
            elif isinstance(item, SnapshotMeta):
                boundary = item
            elif isinstance(item, int):
                delete_before = item
            else:
                is_over = True
            if is_over or self._queue.empty():
                return steps, chunks, boundary, delete_before, is_over

    def _report(
        self,
        batch: Sequence[Persist],
        positions: Sequence[Positions],
        boundary: SnapshotMeta | None,
        segment: int,
        seconds: float,
    ) -> None:
        store, entries = self._store, 0
        for persist, written in zip(batch, positions, strict=True):
            store.on_written(persist, written)
            entries += len(persist.entries)
            self._queued_bytes -= _size(persist)
            boundary = persist.snapshot or boundary
        self._queued_steps -= len(batch)
        if boundary is not None:  # what is hidden now may be deleted
            self._queue.put(store.index.oldest_segment() or segment)
        if batch:
            if self._on_batch is not None:
                self._on_batch(entries, seconds)
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
