"""The store's file format: tables, checksums, and the mapping of SQLite's errors.

Every row carries the crc32 of all its other columns, since SQLite has no page checksums. Terms and
indexes are SQLite integers, that is below 2**63.
"""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from garlicfarm.errors import RemoteProtocolError, StorageDamaged, StorageError
from garlicfarm.raft.types import Entry, HardState, SnapshotMeta
from garlicfarm.renamed import ALGORITHM_VERSIONS, APPLICATIONS
from garlicfarm.wire import decode_configuration, encode_configuration
from garlicfarm.wire.messages import Configuration, ValueType

__all__ = [
    "APPLICATION_ID",
    "FORMAT_VERSION",
    "SCHEMA",
    "Corrupt",
    "Genesis",
    "configuration_of",
    "connect",
    "decode_entry",
    "encode_boundary",
    "encode_entry",
    "encode_hard_state",
    "encode_meta",
    "read_boundary",
    "read_genesis",
    "read_hard_state",
    "storage_error",
]

FORMAT_VERSION = 2
APPLICATION_ID = 0x4746_4C47
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

_ENTRY_HEAD = struct.Struct(">QQB").pack
_VALUE_TYPES = {kind.value: kind for kind in ValueType}
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


class Corrupt(sqlite3.DatabaseError):
    """One of our checks failed. It is an error of SQLite's kind, so that one place maps both."""


class Genesis(msgspec.Struct, frozen=True):
    """What a store is created with; it is not a log entry. The farm, its id (16 bytes),
    the application (by its name, D14), the algorithm's version, and the Configuration in force
    at index 0. The latter is None on a node that joins: its leader sends it (``node join``)."""

    farm: str
    farm_id: bytes
    application: str
    algorithm: int
    configuration: Configuration | None


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a store's file; ``mode`` is ``ro`` or ``rw``. No implicit transactions. The owner of the
    connection decides which thread uses it. Raises `sqlite3.Error`."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=1.0, isolation_level=None, check_same_thread=False)


def storage_error(error: Exception, path: Path) -> StorageError:
    """Map an error of SQLite or the system: `StorageError` if the disk or the system failed, `StorageDamaged`
    if the contents are wrong."""
    code = getattr(error, "sqlite_errorcode", None)
    cause = getattr(error, "strerror", None) or " ".join(
        str(error).split()
    )  # SQLite's text has several lines
    if isinstance(error, OSError | OverflowError) or (code is not None and code & 0xFF in _ENVIRONMENT):
        return StorageError(
            f"{path}: {cause}; the disk or the system failed, and nothing is tried again: mend that, then "
            "start the node"
        )
    return StorageDamaged(
        f"{path} is damaged: {cause}. Nothing was changed; remove the member from the farm and enrol it "
        "under a new id, since one that forgot something can undo what was acknowledged"
    )


def encode_meta(genesis: Genesis) -> tuple[Any, ...]:
    """The row of ``meta``. Raises `LocalProtocolError` (a Configuration with illegal servers)."""
    first = None if genesis.configuration is None else encode_configuration(genesis.configuration)
    row = (FORMAT_VERSION, genesis.farm, genesis.farm_id, genesis.application, genesis.algorithm, first)
    return (*row, _row_crc(row))


def read_genesis(db: sqlite3.Connection) -> Genesis:
    """Raises `sqlite3.Error`."""
    version, farm, farm_id, application, algorithm, configuration = _only_row(db, "meta")
    if version != FORMAT_VERSION:
        raise Corrupt(f"meta names format version {version}, the file header {FORMAT_VERSION}")
    decoded = None if configuration is None else configuration_of(configuration)
    application = APPLICATIONS.get(application, application)
    algorithm = ALGORITHM_VERSIONS.get(algorithm, algorithm)
    return Genesis(farm, farm_id, application, algorithm, decoded)


def encode_hard_state(state: HardState) -> tuple[int, int, int, int]:
    """The row of ``hard_state``."""
    row = (state.term, state.vote, state.commit)
    return (*row, _row_crc(row))


def read_hard_state(db: sqlite3.Connection) -> HardState:
    """Raises `sqlite3.Error`."""
    return HardState(*_only_row(db, "hard_state"))


def encode_boundary(index: int, term: int, configuration: bytes | None) -> tuple[Any, ...]:
    """The row of ``boundary``: the last entry that was deleted, (0, 0) at first, and the Configuration
    in force there."""
    row = (index, term, configuration)
    return (*row, _row_crc(row))


def read_boundary(db: sqlite3.Connection) -> SnapshotMeta:
    """Raises `sqlite3.Error`."""
    index, term, configuration = _only_row(db, "boundary")
    decoded = Configuration(0, 0) if configuration is None else configuration_of(configuration)
    return SnapshotMeta(index, term, decoded)


def encode_entry(entry: Entry) -> tuple[int, int, int, bytes, int]:
    """The row of ``entries``."""
    index, term, kind, value = entry.index, entry.term, int(entry.value_type), entry.value
    return index, term, kind, value, crc32(value, crc32(_ENTRY_HEAD(index, term, kind)))


def decode_entry(row: tuple[Any, ...]) -> Entry:
    """The entry of a row (idx, term, type, value, crc32). Raises `Corrupt`."""
    index, term, kind, value, checksum = row
    try:
        if crc32(value, crc32(_ENTRY_HEAD(index, term, kind))) == checksum:
            return Entry(index, term, _VALUE_TYPES[kind], value)
    except (KeyError, TypeError, struct.error):
        pass  # a column has another type
    raise Corrupt(f"entry {index} fails its checksum")


def configuration_of(value: bytes) -> Configuration:
    """The Configuration in a stored value. Raises `Corrupt`."""
    try:
        return decode_configuration(value)
    except RemoteProtocolError as error:
        raise Corrupt(f"a stored Configuration cannot be decoded: {error}") from error


def _row_crc(row: tuple[Any, ...]) -> int:
    return crc32(msgspec.msgpack.encode(row))


def _only_row(db: sqlite3.Connection, table: str) -> tuple[Any, ...]:
    rows = db.execute(f"SELECT * FROM {table}").fetchall()
    if len(rows) != 1 or _row_crc(rows[0][:-1]) != rows[0][-1]:
        raise Corrupt(f"{table} fails its checksum")
    return tuple(rows[0][:-1])
