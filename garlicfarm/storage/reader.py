"""Reading the log for feeds, in worker threads over a connection of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from garlicfarm.errors import Compacted, LocalProtocolError
from garlicfarm.raft.types import Entry
from garlicfarm.storage.log_store import FILE_NAME
from garlicfarm.storage.tables import Corrupt, connect, decode_entry, storage_error

__all__ = ["LogReader"]

_ENTRY_BYTES = 21  # of an entry in a feed's records, beside its value


class LogReader:
    """A read-only connection to the store in ``directory``, which a `LogStore` has opened, and so verified,
    in this process. One call at a time, from any thread.

    Raises `StorageError`, `StorageDamaged`.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        try:
            self._db = connect(self._path, "ro")
        except sqlite3.Error as error:
            raise storage_error(error, self._path) from error

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def entries(self, after: int, upto: int, max_bytes: int) -> Sequence[Entry]:
        """Entries with ``after`` < index ≤ ``upto``, of all types: at least one, then as many as fit
        into ``max_bytes``, each with 21 bytes beside its value. Blocking and short, one transaction.

        ``upto`` > ``after`` must be committed, and not above `LogStore.last_index`: beyond it the disk
        may still hold entries that are about to be replaced.

        Raises `Compacted` (``after`` < first index − 1), `LocalProtocolError` (an empty range),
        `StorageError`, `StorageDamaged`.
        """
        if upto <= after:
            raise LocalProtocolError(f"entries after {after} up to {upto}")
        found: list[Entry] = []
        query = "SELECT * FROM entries WHERE idx > ? ORDER BY idx"
        try:
            self._db.execute("BEGIN")  # the queries see one state of the log
            try:
                boundary = self._db.execute("SELECT idx FROM boundary").fetchone()[0]
                if after < boundary:  # rows before it may remain; they are not the log's
                    raise Compacted(boundary + 1)
                with closing(self._db.execute(query, (after,))) as rows:
                    for row in rows:
                        entry = decode_entry(row)
                        if entry.index != after + 1 + len(found):
                            raise Corrupt("a gap in the log")
                        max_bytes -= len(entry.value) + _ENTRY_BYTES
                        if found and max_bytes < 0:
                            break
                        found.append(entry)
                        if entry.index == upto:
                            break
            finally:
                self._db.execute("COMMIT")
            if not found:
                raise Corrupt(f"the log ends before {upto}")
        except sqlite3.Error as error:
            raise storage_error(error, self._path) from error
        return found

    def surplus(self, upto: int, keep_entries: int, keep_bytes: int) -> int:
        """The last index that may be deleted if the newest ``keep_entries`` of the entries up to ``upto`` are
        kept, but no more than fit into ``keep_bytes`` of values. Blocking: some 30 ms for 100,000 entries.
        Raises `StorageError`."""
        query = (
            "SELECT idx FROM (SELECT idx, sum(length(value)) OVER (ORDER BY idx DESC) AS size FROM entries"
            " WHERE idx <= ? AND idx > ?) WHERE size > ? ORDER BY idx DESC LIMIT 1"
        )
        oldest = upto - keep_entries
        try:
            row = self._db.execute(query, (upto, oldest, keep_bytes)).fetchone()
        except sqlite3.Error as error:
            raise storage_error(error, self._path) from error
        return row[0] if row else max(0, oldest)
