"""The files of a store: a directory with one SQLite database, which one process at a time has open.

::

    lock               held while the store runs
    records.sqlite     partition: topic, name, tail, next, bytes     what is saved: from tail up to next
                       batch: partition, first, last, saved_ms, check, contents

A batch is what was saved of a partition at once, up to 256 KiB: its contents as a MessagePack array, and a
CRC-32 of them, so that a record is stored for little more than its own bytes and damage does not go out. The
numbers of the batches are the order in which they were saved; retention deletes the oldest first.

`RecordFiles.save` returns once the records are on disk: SQLite writes ahead (WAL) and syncs that at each
commit. After a sync that failed, the kernel may show what it never wrote. So opening copies all that was
written ahead into the database, syncs it there, and syncs that nothing is ahead any more, before any of it
counts as saved.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from zlib import crc32

import msgspec

from garlicfarm.durable_files import fsync_path, locked, make_private_directory
from garlicfarm.errors import StorageDamaged, StorageError, StorageInUse
from garlicfarm_plugin_dafka.reading import Partition
from garlicfarm_plugin_dafka.sqlite_files import FileKind, connect, explained, open_database, transaction
from garlicfarm_plugin_dafka.store_core import SavedPartition, Unsaved

_DATABASE = "records.sqlite"
_LOCK = "lock"
_CHUNK_BYTES = 256 << 10
_CHUNK_RECORDS = 4096
_OVERHEAD_BYTES = 64
_EXPIRE_AT_ONCE = 1000
_KIND = FileKind(
    holds="records of Dafka",
    user="store",
    application_id=0x44_41_46_4B,  # "DAFK"
    version=1,
    tables="""
CREATE TABLE partition (
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, name TEXT NOT NULL,
    tail INTEGER NOT NULL, next INTEGER NOT NULL, bytes INTEGER NOT NULL, UNIQUE (topic, name)
);
CREATE TABLE batch (
    id INTEGER PRIMARY KEY AUTOINCREMENT, partition INTEGER NOT NULL,
    first INTEGER NOT NULL, last INTEGER NOT NULL, saved_ms INTEGER NOT NULL, bytes INTEGER NOT NULL,
    "check" INTEGER NOT NULL, contents BLOB NOT NULL
);
CREATE UNIQUE INDEX batch_place ON batch (partition, first);
""",
)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


class _Saved(msgspec.Struct):
    id: int
    tail: int
    next: int
    bytes: int


class RecordFiles:
    """Writes the records of a store. One thread at a time. After an error in a call, only `close` may follow.

    Raises `StorageInUse`: another process has it open; `StorageVersion`; `StorageDamaged`; `StorageError`:
    the disk is full or fails.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / _DATABASE
        self._saved: dict[Partition, _Saved] = {}
        self._saved_ms = 0
        with ExitStack() as stack:
            try:
                make_private_directory(directory)
                stack.enter_context(locked(directory / _LOCK))
            except BlockingIOError as error:
                raise StorageInUse(
                    f"{directory} is in use by another store; stop that one, or name another directory"
                ) from error
            except OSError as error:
                raise StorageError(f"{directory}: {error.strerror}") from error
            self._database = open_database(self.path, _KIND, "page_size = 16384")
            stack.enter_context(closing(self._database))
            with explained(self.path, _KIND):
                self._read(self._database)
            self._files = stack.pop_all()

    def _read(self, database: sqlite3.Connection) -> None:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        fsync_path(self.path.with_name(f"{_DATABASE}-wal"))  # or what was ahead could come back, less its end
        for topic, name, *numbers in database.execute(
            "SELECT topic, name, id, tail, next, bytes FROM partition ORDER BY id"
        ):
            self._saved[topic, name] = _Saved(*numbers)
        newest = "SELECT saved_ms FROM batch ORDER BY id DESC LIMIT 1"
        self._saved_ms = (database.execute(newest).fetchone() or (0,))[0]

    def close(self) -> None:
        """Close the files. Nothing is written that matters."""
        with suppress(sqlite3.Error):  # it copies what is written ahead; the next start does it again
            self._files.close()

    @property
    def size_bytes(self) -> int:
        """How much the records take, those of all partitions."""
        return sum(saved.bytes for saved in self._saved.values())

    def partitions(self) -> list[SavedPartition]:
        """What is saved."""
        return [SavedPartition(*key, saved.tail, saved.next) for key, saved in self._saved.items()]

    def save(self, batch: Iterable[Unsaved], now_ms: int) -> None:
        """Save records, each partition's behind what is saved of it: all or nothing, and durable on return.

        ``now_ms``: the time, which `expire` compares with.
        """
        saved_ms = self._saved_ms = max(now_ms, self._saved_ms)
        with self._transaction() as database:
            for unsaved in batch:
                saved = self._place(database, unsaved)
                sequence = saved.next
                for chunk in _chunks(unsaved.contents):
                    contents = _encode(chunk)
                    size = len(contents) + _OVERHEAD_BYTES
                    last = sequence + len(chunk) - 1
                    check = _check(saved.id, sequence, contents)
                    database.execute(
                        "INSERT INTO batch VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
                        (saved.id, sequence, last, saved_ms, size, check, contents),
                    )
                    saved.bytes += size
                    sequence = last + 1
                saved.next = sequence
                database.execute(
                    "UPDATE partition SET next = ?, bytes = ? WHERE id = ?", (sequence, saved.bytes, saved.id)
                )

    def expire(
        self, before_ms: int, max_bytes: int | None, is_live: Callable[[str, str], bool], after: int = 0
    ) -> tuple[list[tuple[str, str, int]], int | None]:
        """Delete some of the oldest records: those saved before ``before_ms``, and more until all take
        ``max_bytes`` at most (None: any number). The newest batch of a partition that ``is_live`` stays.

        Returns topic, partition and the new tail of each one that lost records; one that lost all is
        forgotten. And where to go on, in another call with that as ``after``; None: nothing is left to
        delete.
        """
        with self._transaction() as database:
            oldest = database.execute(
                "SELECT id, partition, last, saved_ms, bytes FROM batch WHERE id > ? ORDER BY id LIMIT ?",
                (after, _EXPIRE_AT_ONCE),
            ).fetchall()
            keys = {saved.id: key for key, saved in self._saved.items()}
            excess = 0 if max_bytes is None else self.size_bytes - max_bytes
            following = oldest[-1][0] if len(oldest) == _EXPIRE_AT_ONCE else None
            expired: dict[Partition, _Saved] = {}
            for id, partition, last, saved_ms, size in oldest:
                if saved_ms >= before_ms and excess <= 0:
                    following = None
                    break
                key = keys[partition]
                saved = self._saved[key]
                if last + 1 < saved.next or not is_live(*key):
                    database.execute("DELETE FROM batch WHERE id = ?", (id,))
                    saved.tail = last + 1
                    saved.bytes -= size
                    excess -= size
                    expired[key] = saved
            for key, saved in expired.items():
                if saved.tail == saved.next:
                    database.execute("DELETE FROM partition WHERE id = ?", (saved.id,))
                    del self._saved[key]
                else:
                    database.execute(
                        "UPDATE partition SET tail = ?, bytes = ? WHERE id = ?",
                        (saved.tail, saved.bytes, saved.id),
                    )
        return [(*key, saved.tail) for key, saved in expired.items()], following

    def _place(self, database: sqlite3.Connection, unsaved: Unsaved) -> _Saved:
        key = unsaved.topic, unsaved.partition
        saved = self._saved.get(key)
        if saved is None:
            row = database.execute(
                "INSERT INTO partition VALUES (NULL, ?, ?, ?, ?, 0)", (*key, *[unsaved.first] * 2)
            )
            assert row.lastrowid is not None
            saved = self._saved[key] = _Saved(row.lastrowid, unsaved.first, unsaved.first, 0)
        if saved.next != unsaved.first:
            raise StorageError(f"{self.path}: record {unsaved.first} of {key} to save, {saved.next} is next")
        return saved

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with explained(self.path, _KIND), transaction(self._database):
            yield self._database


class RecordReader:
    """Reads records while `RecordFiles` writes. One thread at a time. Raises `StorageError`."""

    def __init__(self, files: RecordFiles) -> None:
        self._path = files.path
        with explained(self._path, _KIND):
            self._database = connect(files.path)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def read(self, topic: str, partition: str, first: int, end: int, *, max_bytes: int) -> Sequence[bytes]:
        """The records from ``first`` up to ``end``, excluding it: as far as they are there, and no more than
        ``max_bytes`` but for one. Raises `StorageDamaged`: they fail their check."""
        found: list[bytes] = []
        size = 0
        with explained(self._path, _KIND):
            for at, last, check, contents, id in self._batches(topic, partition, first, end):
                if at > first + len(found):  # what was before it is deleted meanwhile
                    break
                if check != _check(id, at, contents):
                    place = f"topic {topic}, partition {partition}"
                    raise StorageDamaged(f"{self._path}: records {at} to {last} of {place} fail their check")
                for content in _decode(contents)[first + len(found) - at : end - at]:
                    size += len(content)
                    if found and size > max_bytes:
                        return found
                    found.append(content)
        return found

    def _batches(
        self, topic: str, partition: str, first: int, end: int
    ) -> Iterator[tuple[int, int, int, bytes, int]]:
        place = self._database.execute(
            "SELECT id FROM partition WHERE topic = ? AND name = ?", (topic, partition)
        ).fetchone()
        if place is None:
            return
        (id,) = place
        begin = self._database.execute(
            "SELECT max(first) FROM batch WHERE partition = ? AND first <= ?", (id, first)
        ).fetchone()[0]
        if begin is None:  # deleted meanwhile
            return
        rows = self._database.execute(
            'SELECT first, last, "check", contents FROM batch'
            " WHERE partition = ? AND first >= ? AND first < ? ORDER BY first",
            (id, begin, end),
        )
        try:
            for row in rows:
                yield (*row, id)
        finally:
            rows.close()


def _chunks(contents: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    start = size = 0
    for number, content in enumerate(contents):
        if number > start and (size + len(content) > _CHUNK_BYTES or number - start == _CHUNK_RECORDS):
            yield contents[start:number]
            start, size = number, 0
        size += len(content)
    yield contents[start:]


def _check(id: int, first: int, contents: bytes) -> int:
    return crc32(contents, crc32(b"%d %d" % (id, first)))
