"""A producer's partition in a file: a new process goes on in it, with what no store had acknowledged."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from garlicfarm.durable_files import give_to_owner, make_private_directory
from garlicfarm.errors import StorageDamaged, StorageError, StorageInUse, StorageVersion
from garlicfarm.regular_files import check_regular

__all__ = ["ProducerIdentity"]

_APPLICATION_ID = 0x47466470
_VERSION = 1
_TABLES = f"""
CREATE TABLE producer (topic TEXT NOT NULL, partition TEXT NOT NULL, next INTEGER NOT NULL) STRICT;
CREATE TABLE record (sequence INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
"""


class ProducerIdentity:
    """The partition of a producer of ``topic``, and its records that are not acknowledged, in an SQLite file.
    One process at a time has it open. A file that is not there is made, with a new partition.

    :raises StorageInUse: another producer has it open. :raises StorageVersion: a later version made it.
    :raises StorageDamaged: it is something else, or that of another topic. :raises StorageError: it cannot be
    read or written.
    """

    def __init__(self, path: Path, topic: str) -> None:
        self.path = path
        self.topic = topic
        try:
            _make(path)
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}") from error
        with self._explained():
            self._database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            with self._explained():
                self._open()
                self.partition, self.next = self._read()
                self.contents = [
                    content
                    for (content,) in self._database.execute("SELECT content FROM record ORDER BY sequence")
                ]
        except BaseException:
            self._database.close()
            raise

    @property
    def first(self) -> int:
        """The first record that was not acknowledged when the file was opened: that of `contents`."""
        return self.next - len(self.contents)

    def append(self, first: int, contents: Sequence[bytes], acked: int) -> None:
        """Add records from sequence ``first`` on, and delete those before ``acked``: durable on return.

        :raises StorageError: it cannot be written.
        """
        with self._explained(), self._transaction():
            self._database.executemany("INSERT INTO record VALUES (?, ?)", enumerate(contents, first))
            self._database.execute("UPDATE producer SET next = ?", [first + len(contents)])
            self._database.execute("DELETE FROM record WHERE sequence < ?", [acked])

    def close(self, acked: int) -> None:
        """Delete the records before ``acked``, and let another process open it."""
        try:
            with self._explained():
                self._database.execute("DELETE FROM record WHERE sequence < ?", [acked])
        finally:
            self._database.close()

    def _open(self) -> None:
        database = self._database
        for setting in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            database.execute(f"PRAGMA {setting}")
        database.execute("BEGIN EXCLUSIVE")
        database.execute("COMMIT")  # the lock stays

    def _read(self) -> tuple[str, int]:
        ids = self._database.execute("PRAGMA application_id"), self._database.execute("PRAGMA user_version")
        application_id, version = (cursor.fetchone()[0] for cursor in ids)
        if (application_id, version) == (0, 0) and not self._database.execute(
            "SELECT 1 FROM sqlite_schema"
        ).fetchone():
            partition = uuid.uuid4().hex.upper()
            with self._transaction():
                for statement in filter(str.strip, _TABLES.split(";")):
                    self._database.execute(statement)
                self._database.execute("INSERT INTO producer VALUES (?, ?, 0)", [self.topic, partition])
            return partition, 0
        if application_id != _APPLICATION_ID:
            raise StorageDamaged(f"{self.path} holds no identity of a producer; name another file")
        if version != _VERSION:
            raise StorageVersion(f"{self.path} has version {version}, and this program knows {_VERSION}")
        topic, partition, following = self._database.execute("SELECT * FROM producer").fetchone()
        if topic != self.topic:
            raise StorageDamaged(f"{self.path} is the identity of a producer of {topic!r}; name another file")
        return str(partition), int(following)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StorageInUse(
                    f"{self.path} is in use by another producer; stop that one, or name another file"
                ) from error
            raise StorageError(f"{self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            wrong = f"{self.path} holds no identity of a producer ({error}); name another file"
            raise StorageDamaged(wrong) from error


def _make(path: Path) -> None:
    """SQLite gives its other files the mode of this one."""
    make_private_directory(path.parent)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        give_to_owner(path, path.parent)
    check_regular(path)
