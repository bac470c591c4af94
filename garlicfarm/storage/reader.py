"""Pages of the log for feeds, read in worker threads over a connection of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from garlicfarm.errors import Compacted, LocalProtocolError
from garlicfarm.raft.types import Entry
from garlicfarm.storage.log_store import FILE_NAME
from garlicfarm.storage.schema import Corrupt, connect, decode_entry, storage_error
from garlicfarm.wire.messages import ValueType

__all__ = ["LogReader"]


class LogReader:
    """A read-only connection to the store in ``directory``, which a `LogStore` has opened (and so
    verified) in this process. One call at a time, from any thread.

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

    def page(
        self, after: int, limit: int, max_bytes: int, upto_index: int, all_types: bool
    ) -> tuple[Sequence[Entry], int]:
        """Entries with after < index ≤ upto_index: at most ``limit`` ≥ 1, and no more than fit into
        ``max_bytes`` of values, but at least one; without ``all_types`` those of applications only.

        Returns them and what to ask for next, which passes over entries of other types: a page may
        be empty and yet move on. It is ``after`` if there is nothing. Blocking and short: at most
        ``limit`` rows are looked at, in one read transaction.

        ``upto_index`` must be committed, and not above `LogStore.last_index`: beyond it the disk may
        still hold entries that are about to be replaced.

        Raises `Compacted` (``after`` < first index − 1), `StorageError`, `StorageDamaged`.
        """
        if limit < 1:
            raise LocalProtocolError(f"a page of {limit} entries")
        query = "SELECT * FROM entries WHERE idx > ? AND idx <= ? ORDER BY idx LIMIT ?"
        found: list[Entry] = []
        index = after
        try:
            with closing(self._db.execute(query, (after, upto_index, limit))) as rows:
                for row in rows:
                    entry = decode_entry(row)
                    if entry.index != index + 1:
                        raise Compacted(entry.index) if index == after else Corrupt("a gap in the log")
                    if all_types or entry.value_type is ValueType.APPLICATION:
                        max_bytes -= len(entry.value)
                        if max_bytes < 0 and found:
                            break
                        found.append(entry)
                    index = entry.index
        except sqlite3.Error as error:
            raise storage_error(error, self._path) from error
        return found, index
