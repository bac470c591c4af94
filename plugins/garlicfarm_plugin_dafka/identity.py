"""A producer's partition in a file: a new process goes on in it, with what no store had acknowledged."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from garlicfarm.errors import StorageDamaged
from garlicfarm_plugin_dafka.sqlite_files import FileKind, explained, open_database, transaction

_KIND = FileKind(
    holds="identity of a producer",
    user="producer",
    application_id=0x47466470,
    version=1,
    tables="""
CREATE TABLE producer (topic TEXT NOT NULL, partition TEXT NOT NULL, next INTEGER NOT NULL) STRICT;
CREATE TABLE record (sequence INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT;
""",
)


class ProducerIdentity:
    """The partition of a producer of ``topic``, and its records that are not acknowledged, in an SQLite file.
    One process at a time has it open. A file that is not there is made, with a new partition.

    :raises StorageInUse: another producer has it open. :raises StorageVersion: a later version made it.
    :raises StorageDamaged: it is something else, or that of another topic. :raises StorageError: it cannot be
    read or written.
    """

    def __init__(self, path: Path, topic: str) -> None:
        self.path = path
        self.partition: str
        self.next: int
        self.contents: list[bytes]
        # The lock of the first transaction stays.
        self._database = database = open_database(path, _KIND, "locking_mode = EXCLUSIVE")
        try:
            with explained(path, _KIND), transaction(database):
                row = database.execute("SELECT topic, partition, next FROM producer").fetchone()
                if row is None:
                    row = topic, uuid.uuid4().hex.upper(), 0
                    database.execute("INSERT INTO producer VALUES (?, ?, ?)", row)
                rows = database.execute("SELECT content FROM record ORDER BY sequence").fetchall()
            kept, self.partition, self.next = row
            self.contents = [content for (content,) in rows]
            if kept != topic:
                raise StorageDamaged(f"{path} is the identity of a producer of {kept!r}; name another file")
        except BaseException:
            database.close()
            raise

    @property
    def first(self) -> int:
        """The first record that was not acknowledged when the file was opened: that of `contents`."""
        return self.next - len(self.contents)

    def append(self, first: int, contents: Sequence[bytes], acked: int) -> None:
        """Add records from sequence ``first`` on, and delete those before ``acked``: durable on return.

        :raises StorageError: it cannot be written.
        """
        with explained(self.path, _KIND), transaction(self._database):
            self._database.executemany("INSERT INTO record VALUES (?, ?)", enumerate(contents, first))
            self._database.execute("UPDATE producer SET next = ?", [first + len(contents)])
            self._database.execute("DELETE FROM record WHERE sequence < ?", [acked])

    def close(self, acked: int) -> None:
        """Delete the records before ``acked``, and let another process open it."""
        try:
            with explained(self.path, _KIND):
                self._database.execute("DELETE FROM record WHERE sequence < ?", [acked])
        finally:
            self._database.close()
