"""A farm's store: made once, verified at every start, then the read side of the consensus core.

The log is in segments (`garlicfarm.storage.segments`), the states of the application beside it
(`garlicfarm.storage.snapshots`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from garlicfarm.descriptors import patiently
from garlicfarm.durable_files import fsync_path
from garlicfarm.errors import (
    Compacted,
    LocalProtocolError,
    StorageDamaged,
    StorageError,
    StorageMissing,
    StorageVersion,
)
from garlicfarm.levels import unknown_algorithm
from garlicfarm.raft.types import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.storage.appender import LOG, PART, Appender, make_log
from garlicfarm.storage.damage import Corrupt, configuration_of, storage_error, unknown_files
from garlicfarm.storage.directory import LOST_STORE
from garlicfarm.storage.jraft_snapshots import JRaftSnapshotSender
from garlicfarm.storage.log_index import Positions
from garlicfarm.storage.migration import KEPT, NEW, finish_migration, log_directory, migrated
from garlicfarm.storage.segments import Genesis, Log, genesis_of_log, read_entries, read_log
from garlicfarm.storage.snapshot_sender import SnapshotSender
from garlicfarm.storage.snapshots import (
    Snapshot,
    list_snapshots,
    read_snapshot,
    snapshot_name,
    write_snapshot,
)
from garlicfarm.storage.state_origin import ORIGIN, read_origin
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import Configuration, ValueType

SNAPSHOTS = "snapshots"
RANKINGS = "rankings"
_TAIL_BYTES = 8 * 1024 * 1024
_ENTRY_OVERHEAD_BYTES = 160  # of an entry in memory, beside its value
_PAGE_BYTES = 1 << 20
_FOUNDING_TERM = 1


def create_store(
    directory: Path,
    genesis: Genesis,
    first_entries: Sequence[bytes | Configuration] = (),
    begins: Snapshot | None = None,
) -> None:
    """Make a farm's store, durably: an interrupted call leaves none, and can be repeated.

    ``directory`` is ``data/farms/<farm>`` (made if missing) of a data directory that is held.
    ``first_entries``: the Application entries and Configurations that the log begins with, the same ones in
    the stores of all founding members. They are of term 1, in which no member leads, and not yet committed:
    the first leader, of a later term, commits them with its own first entry (Raft §5.4.2).
    ``begins``, instead of them: the committed state that the log continues, the same one in all these stores.

    Raises `StorageError` (a store exists, or the system refuses; nothing is overwritten),
    `LocalProtocolError` (an illegal Configuration).
    """
    state = HardState(_FOUNDING_TERM if first_entries else 0)
    boundary = SnapshotMeta(0, 0, genesis.configuration or Configuration(0, 0))
    if begins is not None:
        state, boundary = HardState(begins.term, 0, begins.index), begins.meta
    entries = (
        Entry(index, _FOUNDING_TERM, ValueType.CONFIGURATION, encode_configuration(value))
        if isinstance(value, Configuration)
        else Entry(index, _FOUNDING_TERM, ValueType.APPLICATION, value)
        for index, value in enumerate(first_entries, 1)
    )
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        if any((directory / name).exists() for name in (LOG, NEW, KEPT)):
            raise StorageError(f"{directory} holds a store already; a store is never overwritten")
        if unknown := unknown_files(directory, {PART} if begins is None else {PART, SNAPSHOTS}):
            raise unknown
        if begins is not None:
            write_snapshot(directory / SNAPSHOTS, begins)
        make_log(directory, genesis, state, boundary, entries)
        fsync_path(directory.absolute().parent)
    except OSError as error:
        raise storage_error(error, directory / LOG) from error


def read_genesis(directory: Path) -> Genesis:
    """What the store in ``directory`` was created with; a node may be running on it.

    Raises `StorageMissing`, `StorageVersion`, `StorageDamaged`, `StorageError`.
    """
    with suppress(StorageError):
        return _read_genesis(directory)
    with suppress(StorageError):  # as a node's start may have renamed the log: once,
        return _read_genesis(directory)
    return _read_genesis(directory)  # or twice


def _read_genesis(directory: Path) -> Genesis:
    path = directory / LOG
    try:
        path = log_directory(directory)
        if path.exists():
            return genesis_of_log(path)
    except (OSError, Corrupt) as error:
        raise storage_error(error, path) from error
    refuse_unknown(directory)
    raise StorageMissing(f"there is no store in {directory}")


class _Snapshots(NamedTuple):
    restored: Snapshot | None
    problems: list[str]


class LogStore:
    """The read side of a store, as `garlicfarm.raft.types.Storage`: synchronous, for the event loop.

    It shows the entries that `Writer` reported durable, except those about to be replaced: a truncation hides
    entries as soon as it is submitted. So everything up to ``last_index()`` is on disk and stays there. The
    newest entries (8 MiB) are kept in memory; older ones are read from disk and checked.

    Made by `open`. ``genesis`` is what the store was created with, ``restored`` the snapshot that the
    application starts from (None: from the log's beginning), ``problems`` has a sentence about each newer
    snapshot that it cannot start from. ``not_migrated`` says why the log stays in an older format than that
    of its level; mostly it is "".
    """

    def __init__(
        self,
        path: Path,
        log: Log,
        snapshots: _Snapshots,
        appender: Appender,
        is_jraft: bool,
        not_migrated: str,
    ) -> None:
        self.path = path
        self.is_jraft = is_jraft
        self.not_migrated = not_migrated
        self.genesis, self.index = log.genesis, log.index
        self._hard_state, self._boundary, self._last = log.hard_state, log.boundary, log.index.last
        self.restored, self.problems = snapshots
        self._newest = SnapshotMeta(0, 0, self.genesis.configuration or Configuration(0, 0), 0)
        if self.restored is not None:
            self._newest = self.restored.meta
        self._sender = (JRaftSnapshotSender if is_jraft else SnapshotSender)(path.parent / SNAPSHOTS)
        if self.restored is not None and self.restored.index > self._hard_state.commit:
            # Only committed entries get into a snapshot; the commit index is written now and then.
            self._hard_state = msgspec.structs.replace(self._hard_state, commit=self.restored.index)
        self.appender = appender  # Writer's thread only, from now on
        self._tail: list[Entry] = []  # ends at _last, unless empty
        self._tail_bytes = 0
        self._truncations: deque[int] = deque()  # submitted, not yet durable

    @classmethod
    def open(cls, directory: Path, *, farm: str, is_jraft: bool = False) -> Self:
        """Check and open the store in ``directory`` (``data/farms/<farm>``, its data directory held).

        Everything is verified; 100,000 entries of 200 bytes take some 0.2 s. Blocking. Then, and only then,
        the frame that a crash tore is cut off, and the last one synced again, so that what is read is durable
        even if the last process died between write and sync. And a log with segments older than the format of
        its level is rewritten (`garlicfarm.storage.migration`). ``is_jraft``: its snapshots travel as
        JRaft's do.

        Raises `StorageMissing`, `StorageVersion`, `StorageDamaged`, `StorageError` (another farm's store, or
        the system refuses). The store's contents are as before after each of them.
        """
        path = directory / LOG
        try:
            finish_migration(directory)
            if not path.exists():
                refuse_unknown(directory)
                raise StorageMissing(
                    f"this node's store is missing: no store of farm {farm!r} in {directory}. {LOST_STORE}"
                )
            log = read_log(path)
            if log.genesis.farm != farm:
                raise StorageError(f"{path} is of farm {log.genesis.farm!r}, not of {farm!r}")
            if unknown := unknown_algorithm(log.genesis.algorithm):
                raise StorageVersion(
                    f"{path} is of {unknown}. Nothing was changed; use the program that wrote it"
                )
            snapshots = _restorable(directory / SNAPSHOTS, path, log)
            log, not_migrated = migrated(directory, log)
            appender = Appender(path, log)
            try:
                appender.delete_segments(log.index.oldest_segment() or log.end.number)
                for path_left in (directory / SNAPSHOTS).glob("*.tmp"):
                    path_left.unlink(missing_ok=True)
            except BaseException:
                appender.close()
                raise
        except (OSError, Corrupt) as error:
            raise storage_error(error, path) from error
        return cls(path, log, snapshots, appender, is_jraft, not_migrated)

    def close(self) -> None:
        """Close the files. `Writer.run` must have ended (it closes the log's), or never begun."""
        self._sender.close()
        self.appender.close()

    def size_bytes(self) -> int:
        """What the log's files take on disk, with those of the log before its migration."""
        size, kept = 0, self.path.with_name(KEPT)
        for file in patiently(lambda: [*self.path.iterdir(), *kept.glob("*")]):
            with suppress(FileNotFoundError):  # the writer's thread deleted it, or gave it its name
                size += file.stat().st_size
        return size

    def copy_to(self, directory: Path, farm_id: bytes, state: HardState, last: Entry) -> Genesis:
        """Make a log in another farm's ``directory``: this one, with that ``farm_id`` and ``state``, and
        ``last`` as one more entry. Durable on return. Returns its genesis.

        Raises `OSError`, `StorageError`: discard ``directory``.
        """
        genesis = msgspec.structs.replace(self.genesis, farm_id=farm_id)
        make_log(directory, genesis, state, self._boundary, chain(self._pages(), [last]), self.appender.level)
        return genesis

    # The read side of the core.

    def initial_state(self) -> tuple[HardState, Configuration]:
        """The durable hard state, its commit index not below that of `restored`, and the Configuration in
        force there. Raises `StorageError` (the disk), `StorageDamaged`."""
        return self._hard_state, self._configuration(self._hard_state.commit)

    def entries(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry]:
        """Entries lo ≤ index < hi, at least one, then as many as fit into ``max_bytes`` of values.

        Raises `Compacted` (lo < first_index), `LocalProtocolError` (an empty range, or beyond
        last_index + 1), `StorageError` (the disk), `StorageDamaged`.
        """
        if lo < self.first_index():
            raise Compacted(self.first_index())
        if not lo < hi <= self._last + 1:
            raise LocalProtocolError(f"entries {lo} to {hi} of a log that ends at {self._last}")
        held = self._last - len(self._tail)  # the tail begins after this index
        if lo <= held:
            return self._from_disk(lo, hi, max_bytes)
        found: list[Entry] = []
        for entry in self._tail[lo - held - 1 : hi - held - 1]:
            max_bytes -= len(entry.value)
            if max_bytes < 0 and found:
                break
            found.append(entry)
        return found

    def term(self, index: int) -> int:
        """The term of an entry, or of the one before `first_index` (0 for index 0). Raises as `entries`."""
        if index == self._boundary.index:
            return self._boundary.term
        return self.entries(index, index + 1, 0)[0].term

    def first_index(self) -> int:
        """Index of the first entry held, or to be held."""
        return self._boundary.index + 1

    def last_index(self) -> int:
        """The last index that is durable and that nothing submitted replaces, 0 in a new store."""
        return self._last

    def snapshot(self) -> SnapshotMeta:
        """The newest one that is durable: after `open` that of `restored`, then what was received and made
        the log's by a step, or `on_snapshot_written`."""
        return self._newest

    def snapshot_chunk(self, index: int, offset: int, max_bytes: int) -> tuple[bytes, bool]:
        """At most ``max_bytes`` of the snapshot of ``index`` from byte ``offset`` on, and whether they are
        its last. One that was begun is served to its end, though newer ones replaced it meanwhile.

        Raises `Compacted` (it is gone, or not yet in use), `StorageError`.
        """
        try:
            piece = self._sender.piece(index, offset, max_bytes) if index <= self._newest.index else None
        except (OSError, Corrupt) as error:
            raise storage_error(error, self.path.parent / SNAPSHOTS) from error
        if piece is None:
            raise Compacted(self.first_index())
        return piece

    def read_state(self, meta: SnapshotMeta) -> Snapshot:
        """The snapshot that ``meta`` is of, with the application's state. Blocking, as long as the disk
        takes; from any thread. Raises `StorageDamaged`, `StorageVersion`, `StorageError`."""
        return read_snapshot(self.path.parent / SNAPSHOTS / f"{snapshot_name(meta.index, meta.term)}.snap")

    def origin(self) -> int:
        """Whose snapshot was restored last (`garlicfarm.storage.state_origin`). Blocking; from any thread.
        Raises `StorageError`, `StorageDamaged`."""
        return read_origin(self.path.parent)

    def oldest_state(self) -> Snapshot | None:
        """The oldest sound snapshot whose next entry the log still has; None: there is none. Blocking, as
        long as the disk takes; from any thread. Raises `StorageError`."""
        directory = self.path.parent / SNAPSHOTS
        try:
            paths = list_snapshots(directory)
        except OSError as error:
            raise storage_error(error, directory) from error
        for path in reversed(paths):
            try:
                found = read_snapshot(path)
            except (StorageDamaged, StorageVersion):
                continue
            except StorageError:
                if path.exists():
                    raise
                continue  # it was deleted meanwhile, as there is a newer one
            if self.first_index() - 1 <= found.index <= self._newest.index:
                return found
        return None

    def _from_disk(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry]:
        try:
            return read_entries(self.path, lo, self.index.find(lo, hi, max_bytes))
        except (OSError, Corrupt) as error:
            raise storage_error(error, self.path) from error

    def _pages(self) -> Iterator[Entry]:
        index = self.first_index()
        while index <= self._last:
            found = self._from_disk(index, self._last + 1, _PAGE_BYTES)
            yield from found
            index += len(found)

    def _configuration(self, index: int) -> Configuration:
        """The Configuration in force at an index, not below the log's beginning."""
        newest = self.index.configuration(index)
        if newest is None:
            return self._boundary.configuration
        try:
            return configuration_of(self._from_disk(newest, newest + 1, 0)[0].value)
        except Corrupt as error:
            raise storage_error(error, self.path) from error

    # Events reported by `Writer`, in the Trio thread.

    def on_submitted(self, persist: Persist) -> None:
        """A step was queued: hide the entries that it replaces."""
        if persist.truncate_from is not None:
            self._truncations.append(persist.truncate_from)
            self._cut(persist.truncate_from)

    def on_compacting(self, upto: int) -> SnapshotMeta:
        """The deletion of all entries up to ``upto`` is about to be queued: hide them. Returns the log's new
        beginning. Raises `StorageDamaged`, `StorageError`: what the log would begin with cannot be read."""
        is_known = upto == self._newest.index  # whatever the disk has made of the entry
        self._boundary = (
            self._newest if is_known else SnapshotMeta(upto, self.term(upto), self._configuration(upto))
        )
        self.index.drop(upto)
        return self._boundary

    def on_snapshot_written(self, meta: SnapshotMeta) -> None:
        """A snapshot of this member's own state is durable (`write_snapshot`). In the Trio thread."""
        if meta.index > self._newest.index:
            self._newest = meta

    def on_written(self, persist: Persist, positions: Positions) -> None:
        """A step is durable, its entries at ``positions``: show them, except those that a step queued later
        replaces."""
        if persist.snapshot is not None:
            self.index.drop(persist.snapshot.index)
            self._boundary = self._newest = persist.snapshot
            if self._last < persist.snapshot.index:
                self._tail.clear()
                self._tail_bytes = 0
                self._last = persist.snapshot.index
        if persist.truncate_from is not None:
            self._truncations.popleft()
            self.index.truncate(persist.truncate_from)
        if persist.hard_state is not None:
            self._hard_state = persist.hard_state
        entries = persist.entries
        if entries:
            self.index.append(positions)
        if self._truncations and entries:
            entries = entries[: max(0, min(self._truncations) - entries[0].index)]
        if entries:
            self._last = entries[-1].index
            self._tail.extend(entries)
            self._tail_bytes += _weight(entries)
            if self._tail_bytes > _TAIL_BYTES:
                self._trim()

    def _cut(self, index: int) -> None:
        keep = max(0, len(self._tail) - max(0, self._last - index + 1))
        self._tail_bytes -= _weight(self._tail[keep:])
        del self._tail[keep:]
        self._last = min(self._last, index - 1)

    def _trim(self) -> None:
        target = _TAIL_BYTES * 3 // 4  # a quarter at a time: deleting moves the rest
        drop, surplus = 0, self._tail_bytes - target
        while surplus > 0:
            surplus -= len(self._tail[drop].value) + _ENTRY_OVERHEAD_BYTES
            drop += 1
        del self._tail[:drop]
        self._tail_bytes = target + surplus


def _weight(entries: Sequence[Entry]) -> int:
    return sum([len(entry.value) for entry in entries]) + _ENTRY_OVERHEAD_BYTES * len(entries)


def refuse_unknown(directory: Path) -> None:
    """Raises `StorageVersion`: what is there instead of a log is not ours."""
    if unknown := unknown_files(directory, {ORIGIN, PART, SNAPSHOTS, RANKINGS}):
        raise unknown


def _restorable(directory: Path, log_directory: Path, log: Log) -> _Snapshots:
    """The newest sound snapshot that the log continues, and the problems of newer ones.

    Raises `Corrupt`: there is none, and the log does not reach back to its beginning.
    """
    problems: list[str] = []
    for found in snapshots_of_log(directory, log_directory, log):
        if isinstance(found, str):
            problems.append(found)
            continue
        snapshot = found
        if snapshot.application_entries is None and not log.boundary.index:  # JRaft does not count them
            count = log.index.application_entries(0, snapshot.index)
            snapshot = msgspec.structs.replace(snapshot, application_entries=count)
        return _Snapshots(snapshot, problems)
    if log.boundary.index:
        if not problems and (unknown := unknown_files(directory, ())):
            raise unknown
        told = "; ".join(problems) or f"{directory} holds none"
        raise Corrupt(f"the log begins after {log.boundary.index}, without a snapshot of that. {told}")
    return _Snapshots(None, problems)


def snapshots_of_log(directory: Path, log_directory: Path, log: Log) -> Iterator[Snapshot | str]:
    """From the newest to the oldest: each sound snapshot that the log continues, or what is wrong with it."""
    genesis, boundary, last = log.genesis, log.boundary, log.index.last
    for path in list_snapshots(directory):
        try:
            snapshot = read_snapshot(path)
        except StorageDamaged as damage:
            yield str(damage)
            continue
        if (snapshot.farm_id, snapshot.application) != (genesis.farm_id, genesis.application):
            yield f"{path} is of another farm or application"
        elif not boundary.index <= snapshot.index <= last:
            yield f"{path} does not meet the log, which has {boundary.index + 1} to {last}"
        elif snapshot.term != _term(log_directory, snapshot.index, log):
            yield f"{path} is of another log: its term is not that of the entry"
        else:
            yield snapshot


def _term(directory: Path, index: int, log: Log) -> int:
    if index == log.boundary.index:
        return log.boundary.term
    return read_entries(directory, index, log.index.find(index, index + 1, 0))[0].term
