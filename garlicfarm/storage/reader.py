"""Reading the log for feeds, in worker threads."""

from __future__ import annotations

from collections.abc import Sequence

from garlicfarm.errors import LocalProtocolError
from garlicfarm.raft.types import Entry
from garlicfarm.storage.damage import Corrupt, storage_error
from garlicfarm.storage.log_store import LogStore
from garlicfarm.storage.segments import read_entries

_ENTRY_BYTES = 21  # of an entry in a feed's records, beside its value


class LogReader:
    """Reads the log of an open ``store``, from any thread."""

    def __init__(self, store: LogStore) -> None:
        self._path = store.path
        self._index = store.index

    def entries(self, after: int, upto: int, max_bytes: int) -> Sequence[Entry]:
        """Entries with ``after`` < index ≤ ``upto``, of all types: at least one, then as many as fit
        into ``max_bytes``, each with 21 bytes beside its value. Blocking and short.

        ``upto`` > ``after`` must be committed, and not above `LogStore.last_index`: beyond it the disk
        may still hold entries that are about to be replaced.

        Raises `Compacted` (``after`` < first index − 1), `LocalProtocolError` (an empty range),
        `StorageError`, `StorageDamaged`.
        """
        if upto <= after:
            raise LocalProtocolError(f"entries after {after} up to {upto}")
        places = self._index.find(after + 1, upto + 1, max_bytes, _ENTRY_BYTES)
        try:
            if not places:
                raise Corrupt(f"the log ends before {upto}")
            return read_entries(self._path, after + 1, places)
        except FileNotFoundError as error:
            self._index.find(after + 1, upto + 1, 0)  # the segment was deleted meanwhile: Compacted
            raise storage_error(error, self._path) from error
        except (OSError, Corrupt) as error:
            raise storage_error(error, self._path) from error

    def surplus(self, upto: int, keep_entries: int, keep_bytes: int) -> int:
        """The last index that may be deleted if the newest ``keep_entries`` of the entries up to ``upto`` are
        kept, but no more than fit into ``keep_bytes`` of values. From memory."""
        return self._index.surplus(upto, keep_entries, keep_bytes)
