"""A farm's store: made once, verified at every start, then the read side of the consensus core.

``log.db`` is SQLite in WAL mode (tables: `garlicfarm.storage.tables`). There are two connections: the core
reads over a read-only one on the event loop, `Writer`'s thread writes over the other.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from garlicfarm.durable_files import fsync_path, move_into_place
from garlicfarm.errors import (
    Compacted,
    LocalProtocolError,
    StorageDamaged,
    StorageError,
    StorageInUse,
    StorageMissing,
    StorageVersion,
)
from garlicfarm.raft.types import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.renamed import unknown_algorithm
from garlicfarm.storage import tables
from garlicfarm.storage.directory import LOST_STORE
from garlicfarm.storage.jraft_snapshots import JRaftSnapshotSender
from garlicfarm.storage.snapshot_sender import SnapshotSender
from garlicfarm.storage.snapshots import Snapshot, list_snapshots, read_snapshot, snapshot_name
from garlicfarm.storage.tables import Genesis
from garlicfarm.storage.wal import check_wal
from garlicfarm.wire.messages import Configuration, ValueType

__all__ = ["SNAPSHOTS", "LogStore", "create_store"]

FILE_NAME = "log.db"
SNAPSHOTS = "snapshots"
_TAIL_BYTES = 8 * 1024 * 1024
_ENTRY_OVERHEAD_BYTES = 160  # of an entry in memory, beside its value
_FOUNDING_TERM = 1
_HEADER = b"SQLite format 3\0\x10\0\2\2"  # page size 4096, WAL for readers and writers


def create_store(directory: Path, genesis: Genesis, first_entries: Sequence[bytes] = ()) -> None:
    """Make a farm's store, durably: an interrupted call leaves none, and can be repeated.

    ``directory`` is ``data/farms/<farm>`` (made if missing) of a data directory that is held.
    ``first_entries``: the Application entries that the log begins with, the same ones in the stores of all
    founding members. They are of term 1, in which no member leads, and not yet committed: the first leader,
    of a later term, commits them with its own first entry (Raft §5.4.2).

    Raises `StorageError` (a store exists, or the system refuses; nothing is overwritten),
    `LocalProtocolError` (an illegal Configuration).
    """
    meta = tables.encode_meta(genesis)
    path, part = directory / FILE_NAME, directory / f"{FILE_NAME}.part"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        if path.exists() or path.with_name(f"{FILE_NAME}-wal").exists():
            raise StorageError(f"{directory} holds a store already; a store is never overwritten")
        for suffix in ("", "-journal", "-wal", "-shm"):
            part.with_name(part.name + suffix).unlink(missing_ok=True)
        part.touch(0o600)  # SQLite gives the files beside it the same mode
        with closing(tables.connect(part, "rw")) as db:
            for pragma in (
                "page_size = 4096",
                "auto_vacuum = INCREMENTAL",
                f"application_id = {tables.APPLICATION_ID}",
                f"user_version = {tables.FORMAT_VERSION}",
                "journal_mode = WAL",
            ):
                db.execute(f"PRAGMA {pragma}").fetchall()
            for statement in tables.SCHEMA.values():
                db.execute(statement)
            db.execute("INSERT INTO meta VALUES (?, ?, ?, ?, ?, ?, ?)", meta)
            boundary = tables.encode_boundary(0, 0, meta[5])
            db.execute("INSERT INTO boundary VALUES (?, ?, ?, ?)", boundary)
            state = HardState(_FOUNDING_TERM if first_entries else 0)
            db.execute("INSERT INTO hard_state VALUES (?, ?, ?, ?)", tables.encode_hard_state(state))
            for index, value in enumerate(first_entries, 1):
                entry = Entry(index, _FOUNDING_TERM, ValueType.APPLICATION, value)
                db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", tables.encode_entry(entry))
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # closing swallows its errors
        move_into_place(part, path)
        fsync_path(directory.absolute().parent)
    except (sqlite3.Error, OSError) as error:
        raise tables.storage_error(error, path) from error


class _Contents(NamedTuple):
    genesis: Genesis
    hard_state: HardState
    boundary: SnapshotMeta
    last_index: int


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
    snapshot that it cannot start from.
    """

    def __init__(
        self,
        path: Path,
        contents: _Contents,
        snapshots: _Snapshots,
        reads: sqlite3.Connection,
        writes: sqlite3.Connection,
        is_jraft: bool,
    ) -> None:
        self.path = path
        self.is_jraft = is_jraft
        self.genesis, self._hard_state, self._boundary, self._last = contents
        self.restored, self.problems = snapshots
        self._newest = SnapshotMeta(0, 0, self.genesis.configuration or Configuration(0, 0))
        if self.restored is not None:
            self._newest = self.restored.meta
        self._sender = (JRaftSnapshotSender if is_jraft else SnapshotSender)(path.parent / SNAPSHOTS)
        if self.restored is not None and self.restored.index > self._hard_state.commit:
            # Only committed entries get into a snapshot; the commit index is written now and then.
            self._hard_state = msgspec.structs.replace(self._hard_state, commit=self.restored.index)
        self.writes = writes  # Writer's thread only, from now on
        self._reads = reads
        self._tail: list[Entry] = []  # ends at _last, unless empty
        self._tail_bytes = 0
        self._truncations: deque[int] = deque()  # submitted, not yet durable

    @classmethod
    def open(cls, directory: Path, *, farm: str, is_jraft: bool = False) -> Self:
        """Check and open the store in ``directory`` (``data/farms/<farm>``, its data directory held).

        Everything is verified: the WAL's transactions, SQLite's structure, and every row's checksum;
        100,000 entries of 200 bytes take some 0.2 s. Blocking. Then, and only then, what a crash left
        in the WAL is synced and moved into the file, so that what is read is durable even if the
        last process died between write and fsync. ``is_jraft``: its snapshots travel as JRaft's do.

        Raises `StorageMissing`, `StorageVersion`, `StorageDamaged`, `StorageInUse` (a foreign program
        reads the file), `StorageError` (another farm's store, or the system refuses). The store's
        contents are as before after each of them.
        """
        path = directory / FILE_NAME
        if sqlite3.sqlite_version_info < (3, 37):
            raise StorageError(f"SQLite {sqlite3.sqlite_version} is too old for {path}; 3.37 is needed")
        if not path.exists():
            raise StorageMissing(
                f"this node's store is missing: no store of farm {farm!r} in {directory}. {LOST_STORE}"
            )
        try:
            with path.open("rb") as file:
                if file.read(len(_HEADER)) != _HEADER:
                    raise tables.Corrupt("the file header is not a store's")
            check_wal(path)
            with ExitStack() as stack:
                reads = stack.enter_context(closing(tables.connect(path, "ro")))
                contents = _verify(reads, path)
                if contents.genesis.farm != farm:
                    raise StorageError(f"{path} is of farm {contents.genesis.farm!r}, not of {farm!r}")
                if unknown := unknown_algorithm(contents.genesis.algorithm):
                    raise StorageVersion(f"{path} is of {unknown}: use the program that wrote it")
                snapshots = _restorable(directory / SNAPSHOTS, reads, contents)
                writes = stack.enter_context(closing(tables.connect(path, "rw")))
                writes.execute("PRAGMA synchronous = FULL")
                writes.execute("PRAGMA wal_autocheckpoint = 0")  # Writer does it: SQLite swallows its errors
                if writes.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    raise StorageInUse(f"another program reads {path}; stop it first")
                for path_left in (directory / SNAPSHOTS).glob("*.tmp"):
                    path_left.unlink()
                stack.pop_all()
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # the last: SQLite quoting a bad schema
            raise tables.storage_error(error, path) from error
        return cls(path, contents, snapshots, reads, writes, is_jraft)

    def close(self) -> None:
        """Close both connections. `Writer.run` must have ended (it closes its own), or never begun."""
        self._sender.close()
        self._reads.close()
        self.writes.close()

    def size_bytes(self) -> int:
        """What the store's files take on disk."""
        files = [self.path, self.path.with_name(f"{FILE_NAME}-wal")]
        return sum(file.stat().st_size for file in files if file.exists())

    # The read side of the core.

    def initial_state(self) -> tuple[HardState, Configuration]:
        """The durable hard state, its commit index not below that of `restored`, and the Configuration in
        force there. Raises `StorageError` (the disk), `StorageDamaged`."""
        query = "SELECT * FROM entries WHERE type = 2 AND idx > ? AND idx <= ? ORDER BY idx DESC LIMIT 1"
        try:
            row = self._reads.execute(query, (self._boundary.index, self._hard_state.commit)).fetchone()
            if row is not None:
                return self._hard_state, tables.configuration_of(tables.decode_entry(row).value)
        except sqlite3.Error as error:
            raise tables.storage_error(error, self.path) from error
        return self._hard_state, self._boundary.configuration

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
        tail = self._tail[lo - held - 1 : hi - held - 1] if lo > held else None
        found: list[Entry] = []
        for entry in self._from_disk(lo, hi, max_bytes) if tail is None else tail:
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
        except OSError as error:
            raise tables.storage_error(error, self.path.parent / SNAPSHOTS) from error
        if piece is None:
            raise Compacted(self.first_index())
        return piece

    def read_state(self, meta: SnapshotMeta) -> Snapshot:
        """The snapshot that ``meta`` is of, with the application's state. Blocking, as long as the disk
        takes; from any thread. Raises `StorageDamaged`, `StorageVersion`, `StorageError`."""
        return read_snapshot(self.path.parent / SNAPSHOTS / f"{snapshot_name(meta.index, meta.term)}.snap")

    def _from_disk(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        """Entries from lo on; more than are wanted by at most one."""
        found: list[Entry] = []
        try:
            with closing(
                self._reads.execute("SELECT * FROM entries WHERE idx >= ? AND idx < ? ORDER BY idx", (lo, hi))
            ) as rows:
                for row in rows:
                    found.append(tables.decode_entry(row))
                    max_bytes -= len(found[-1].value)
                    if max_bytes < 0:
                        break
            if not found or found[0].index != lo or found[-1].index != lo + len(found) - 1:
                raise tables.Corrupt(f"entries from {lo} on are missing")
        except sqlite3.Error as error:
            raise tables.storage_error(error, self.path) from error
        return found

    # Events reported by `Writer`, in the Trio thread.

    def on_submitted(self, persist: Persist) -> None:
        """A step was queued: hide the entries that it replaces."""
        if persist.truncate_from is not None:
            self._truncations.append(persist.truncate_from)
            self._cut(persist.truncate_from)

    def on_compacting(self, upto: int) -> None:
        """The deletion of all entries up to ``upto`` was queued: hide them. The Configuration at the boundary
        is read only at a start."""
        self._boundary = SnapshotMeta(upto, self.term(upto), self._boundary.configuration)

    def on_snapshot_written(self, meta: SnapshotMeta) -> None:
        """A snapshot of this member's own state is durable (`write_snapshot`). In the Trio thread."""
        if meta.index > self._newest.index:
            self._newest = meta

    def on_written(self, persist: Persist) -> None:
        """A step is durable: show its entries, except those that a step queued later replaces."""
        if persist.truncate_from is not None:
            self._truncations.popleft()
        if persist.snapshot is not None:
            self._boundary = self._newest = persist.snapshot
            if self._last < persist.snapshot.index:
                self._tail.clear()
                self._tail_bytes = 0
                self._last = persist.snapshot.index
        if persist.hard_state is not None:
            self._hard_state = persist.hard_state
        entries = persist.entries
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
        drop = 0
        while self._tail_bytes > _TAIL_BYTES * 3 // 4:  # a quarter at a time: deleting moves the rest
            self._tail_bytes -= _weight(self._tail[drop : drop + 1])
            drop += 1
        del self._tail[:drop]


def _weight(entries: Sequence[Entry]) -> int:
    return sum([len(entry.value) for entry in entries]) + _ENTRY_OVERHEAD_BYTES * len(entries)


def _verify(db: sqlite3.Connection, path: Path) -> _Contents:
    """Check SQLite's own structure and every row. Raises `StorageVersion`, `sqlite3.Error`."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != tables.FORMAT_VERSION:
        try:
            tables.read_genesis(db)
        except sqlite3.Error:
            raise StorageVersion(
                f"{path} has format version {version}, this program knows {tables.FORMAT_VERSION}; "
                "use the program that wrote it"
            ) from None
        raise tables.Corrupt(f"the file header names format version {version}, meta {tables.FORMAT_VERSION}")
    if db.execute("PRAGMA application_id").fetchone()[0] != tables.APPLICATION_ID:
        raise tables.Corrupt("the file header is not a store's")
    if dict(db.execute("SELECT name, sql FROM sqlite_schema").fetchall()) != tables.SCHEMA:
        raise tables.Corrupt("the tables are not a store's")
    problem = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem != "ok":
        raise tables.Corrupt(problem)
    boundary = tables.read_boundary(db)
    last = boundary.index
    query = "SELECT * FROM entries WHERE idx > ? ORDER BY idx"  # rows before it are yet to be deleted
    with closing(db.execute(query, (boundary.index,))) as rows:
        for row in rows:
            last += 1
            if tables.decode_entry(row).index != last:
                raise tables.Corrupt(f"entry {last} is missing")
    contents = _Contents(tables.read_genesis(db), tables.read_hard_state(db), boundary, last)
    if contents.hard_state.commit > last:
        raise tables.Corrupt(f"the log ends at {last}, but is committed up to {contents.hard_state.commit}")
    return contents


def _restorable(directory: Path, db: sqlite3.Connection, contents: _Contents) -> _Snapshots:
    """The newest sound snapshot that the log continues, and the problems of newer ones.

    Raises `StorageDamaged`: there is none, and the log does not reach back to its beginning.
    """
    genesis, _, boundary, last = contents
    problems: list[str] = []
    for path in list_snapshots(directory):
        try:
            snapshot = read_snapshot(path)
        except StorageDamaged as damage:
            problems.append(str(damage))
            continue
        if (snapshot.farm_id, snapshot.application) != (genesis.farm_id, genesis.application):
            problems.append(f"{path} is of another farm or application")
        elif not boundary.index <= snapshot.index <= last:
            problems.append(f"{path} does not meet the log, which has {boundary.index + 1} to {last}")
        elif snapshot.term != _term(db, snapshot.index, boundary):
            problems.append(f"{path} is of another log: its term is not that of the entry")
        else:
            return _Snapshots(snapshot, problems)
    if boundary.index:
        told = "; ".join(problems) or f"{directory} holds none"
        raise tables.Corrupt(f"the log begins after {boundary.index}, without a snapshot of that. {told}")
    return _Snapshots(None, problems)


def _term(db: sqlite3.Connection, index: int, boundary: SnapshotMeta) -> int:
    if index == boundary.index:
        return boundary.term
    row = db.execute("SELECT * FROM entries WHERE idx = ?", (index,)).fetchone()
    return tables.decode_entry(row).term
