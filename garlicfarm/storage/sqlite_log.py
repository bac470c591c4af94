"""The log as version 0.1 stored it: ``log.db``, an SQLite file in WAL mode. It is read once, to make the
segments of it (`garlicfarm.storage.segments`).

Every row carries the crc32 of all its other columns, since SQLite has no page checksums.
"""

from __future__ import annotations

import errno
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from garlicfarm.raft.types import Entry, HardState, SnapshotMeta
from garlicfarm.regular_files import reading
from garlicfarm.renamed import ALGORITHM_VERSIONS, APPLICATIONS
from garlicfarm.storage.damage import Corrupt, configuration_of, other_version
from garlicfarm.storage.genesis import Genesis
from garlicfarm.storage.wal import check_wal
from garlicfarm.wire.messages import Configuration, ValueType

__all__ = ["APPLICATION_ID", "SCHEMA", "SqliteLog", "open_sqlite_log", "read_sqlite_genesis"]

_FORMAT_VERSION = 2
APPLICATION_ID = 0x4746_4C47
_HEADER = b"SQLite format 3\0\x10\0\2\2"  # page size 4096, WAL for readers and writers
SCHEMA = {
    "meta": "CREATE TABLE meta(version INTEGER NOT NULL, farm TEXT NOT NULL, farm_id BLOB NOT NULL,"
    " application TEXT NOT NULL, algorithm INTEGER NOT NULL, configuration BLOB,"
    " crc32 INTEGER NOT NULL) STRICT",
    "hard_state": "CREATE TABLE hard_state(term INTEGER NOT NULL, vote INTEGER NOT NULL,"
    " commit_index INTEGER NOT NULL, crc32 INTEGER NOT NULL) STRICT",
    "boundary": "CREATE TABLE boundary(idx INTEGER NOT NULL, term INTEGER NOT NULL, configuration BLOB,"
    " crc32 INTEGER NOT NULL) STRICT",
    "entries": "CREATE TABLE entries(idx INTEGER PRIMARY KEY, term INTEGER NOT NULL, type INTEGER NOT NULL,"
    " value BLOB NOT NULL, crc32 INTEGER NOT NULL) STRICT",
    "configurations": "CREATE INDEX configurations ON entries(idx) WHERE type = 2",
}
"""The exact contents of sqlite_schema in a sound store, by name."""

_ENVIRONMENT = {  # codes for failures of the disk or the system, not of the file's contents
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_AUTH,
}
_ENTRY_HEAD = struct.Struct(">QQB").pack
_VALUE_TYPES = {kind.value: kind for kind in ValueType}


class SqliteLog(NamedTuple):
    """What ``log.db`` holds; ``entries`` are read, and checked, one after another."""

    genesis: Genesis
    hard_state: HardState
    boundary: SnapshotMeta
    entries: Iterator[Entry]


@contextmanager
def open_sqlite_log(path: Path) -> Iterator[SqliteLog]:
    """Check the file and its WAL, except the rows of ``entries``, and read it. Nothing is changed.

    Raises `StorageVersion`, `OSError`, `Corrupt`; the latter two also where an entry is read.
    """
    with reading(path) as file:
        if file.read(len(_HEADER)) != _HEADER:
            raise Corrupt("the file header is not a store's")
    check_wal(path)
    with _connected(path) as db:
        _check(db, path)
        boundary = _read_boundary(db)
        state = HardState(*_only_row(db, "hard_state"))
        query = "SELECT * FROM entries WHERE idx > ? ORDER BY idx"  # rows before it are yet to be deleted
        with closing(db.execute(query, (boundary.index,))) as rows:
            yield SqliteLog(_genesis(db), state, boundary, _entries(rows, boundary.index, state.commit))


def read_sqlite_genesis(path: Path) -> Genesis:
    """The genesis alone. Raises `OSError`, `Corrupt`."""
    with _connected(path) as db:
        return _genesis(db)


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=1.0, isolation_level=None)) as db:
            yield db
    except sqlite3.Error as error:
        cause = " ".join(str(error).split())  # it may have several lines
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _ENVIRONMENT:
            raise OSError(errno.EIO, cause) from error
        raise Corrupt(cause) from error
    except UnicodeDecodeError as error:  # SQLite quotes a bad schema
        raise Corrupt(str(error)) from error


def _check(db: sqlite3.Connection, path: Path) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != _FORMAT_VERSION:
        try:
            _genesis(db)
        except (sqlite3.Error, Corrupt):
            raise other_version(path, version, _FORMAT_VERSION) from None
        raise Corrupt(f"the file header names format version {version}, meta {_FORMAT_VERSION}")
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise Corrupt("the file header is not a store's")
    if dict(db.execute("SELECT name, sql FROM sqlite_schema").fetchall()) != SCHEMA:
        raise Corrupt("the tables are not a store's")
    problem = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem != "ok":
        raise Corrupt(problem)


def _genesis(db: sqlite3.Connection) -> Genesis:
    version, farm, farm_id, application, algorithm, configuration = _only_row(db, "meta")
    if version != _FORMAT_VERSION:
        raise Corrupt(f"meta names format version {version}, the file header {_FORMAT_VERSION}")
    decoded = None if configuration is None else configuration_of(configuration)
    application = APPLICATIONS.get(application, application)
    algorithm = ALGORITHM_VERSIONS.get(algorithm, algorithm)
    return Genesis(farm, farm_id, application, algorithm, decoded)


def _read_boundary(db: sqlite3.Connection) -> SnapshotMeta:
    index, term, configuration = _only_row(db, "boundary")
    decoded = Configuration(0, 0) if configuration is None else configuration_of(configuration)
    return SnapshotMeta(index, term, decoded)


def _entries(rows: sqlite3.Cursor, last: int, commit: int) -> Iterator[Entry]:
    for row in rows:
        last += 1
        entry = _decode_entry(row)
        if entry.index != last:
            raise Corrupt(f"entry {last} is missing")
        yield entry
    if commit > last:
        raise Corrupt(f"the log ends at {last}, but is committed up to {commit}")


def _decode_entry(row: tuple[Any, ...]) -> Entry:
    index, term, kind, value, checksum = row
    try:
        if crc32(value, crc32(_ENTRY_HEAD(index, term, kind))) == checksum:
            return Entry(index, term, _VALUE_TYPES[kind], value)
    except (KeyError, TypeError, struct.error):
        pass  # a column has another type
    raise Corrupt(f"entry {index} fails its checksum")


def _only_row(db: sqlite3.Connection, table: str) -> tuple[Any, ...]:
    rows = db.execute(f"SELECT * FROM {table}").fetchall()
    if len(rows) != 1 or crc32(msgspec.msgpack.encode(rows[0][:-1])) != rows[0][-1]:
        raise Corrupt(f"{table} fails its checksum")
    return tuple(rows[0][:-1])
