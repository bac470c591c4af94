"""SQLite files that say by their ids what they hold, and that are on disk when a transaction has ended."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from garlicfarm.durable_files import write_new_file
from garlicfarm.errors import StorageDamaged, StorageError, StorageInUse, StorageVersion
from garlicfarm.regular_files import check_regular


class FileKind(msgspec.Struct, frozen=True):
    """What a file ``holds`` for a program that is called ``user``, and the tables for it."""

    holds: str
    user: str
    application_id: int
    version: int
    tables: str


def connect(path: Path) -> sqlite3.Connection:
    """A connection without transactions of its own. Raises `sqlite3.Error`."""
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


def open_database(path: Path, kind: FileKind, *first: str) -> sqlite3.Connection:
    """Open a file, after the settings ``first``; it is made, private, if it is not there.

    Raises `StorageInUse`; `StorageVersion`; `StorageDamaged`: it holds something else; `StorageError`. A file
    of another program, or of another version, stays as it is.
    """
    with explained(path, kind):
        with suppress(FileExistsError):
            write_new_file(path, b"", 0o600)
        check_regular(path)
        database = connect(path)
        try:
            for setting in first:
                database.execute(f"PRAGMA {setting}")
            is_new = _check(database, path, kind)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            if is_new:
                with transaction(database):
                    for statement in filter(str.strip, kind.tables.split(";")):
                        database.execute(statement)
                    database.execute(f"PRAGMA application_id = {kind.application_id}")
                    database.execute(f"PRAGMA user_version = {kind.version}")
        except BaseException:
            database.close()
            raise
    return database


def _check(database: sqlite3.Connection, path: Path, kind: FileKind) -> bool:
    """Whether it is new."""
    asked = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_schema")
    application_id, version, tables = (database.execute(each).fetchone()[0] for each in asked)
    if (application_id, version, tables) == (0, 0, 0):
        return True
    if application_id != kind.application_id:
        raise StorageDamaged(f"{path} holds no {kind.holds}; name another file")
    if version != kind.version:
        known = f"this program knows {kind.version}; use the program that wrote it"
        raise StorageVersion(f"{path} has version {version}, and {known}")
    return False


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All of the block or, after an error, nothing of it."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


@contextmanager
def explained(path: Path, kind: FileKind) -> Iterator[None]:
    """Raise errors of SQLite and of the system as a `StorageError`."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StorageInUse(
                f"{path} is in use by another {kind.user}; stop that one, or name another file"
            ) from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise StorageDamaged(
                f"{path} holds no {kind.holds} ({error}); name another file, or restore it from a backup"
            ) from error
        raise StorageError(f"{path}: {error}") from error
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
