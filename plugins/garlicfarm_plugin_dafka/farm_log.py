"""Reading a farm's topic as the one log that it is.

The records of an epoch come in their order, but a reader that has not finished an epoch when the next one
begins gets records of both. `FarmLog` puts the entries in the order of the log. What it needs for that is in
the records: their entries have consecutive indexes.
"""

from __future__ import annotations

from garlicfarm.errors import FellBehind, RemoteProtocolError
from garlicfarm.feed import Entry, decode_lines


class FarmLog:
    """Hands out the entries behind ``index``, in order and without a gap; ``index`` is that of the last one.
    No more than ``limit_bytes`` of records that came early are kept."""

    def __init__(self, index: int = 0, *, limit_bytes: int = 256 << 20) -> None:
        self.index = index
        self._limit_bytes = limit_bytes
        self._early: dict[int, tuple[list[Entry], int]] = {}  # by the first index: entries, and their size
        self._early_bytes = 0

    @property
    def has_early(self) -> bool:
        """Whether records wait for others. Offsets of a consumer that are saved meanwhile are behind records
        that were not handed out."""
        return bool(self._early)

    def add(self, content: bytes) -> list[Entry]:
        """Take the content of a record; returns the entries that are next by now.

        :raises RemoteProtocolError: it is none of a farm.
        :raises FellBehind: what comes next does not come, and too much waits for it: no node has it any more.
            Go on with another `FarmLog`, from a state of the farm or from a later index.
        """
        entries = decode_lines(content)
        if not entries or any(entry.index != entries[0].index + at for at, entry in enumerate(entries)):
            raise RemoteProtocolError("not consecutive entries", "record of a farm")
        if entries[0].index > self.index + 1:
            self._keep(entries, len(content))
            return []
        found: list[Entry] = []
        self._take(entries, found)
        while self.index + 1 in self._early:
            entries, size = self._early.pop(self.index + 1)
            self._early_bytes -= size
            self._take(entries, found)
        return found

    def _take(self, entries: list[Entry], found: list[Entry]) -> None:
        found += [entry for entry in entries if entry.index > self.index]
        self.index = max(self.index, entries[-1].index)

    def _keep(self, entries: list[Entry], size: int) -> None:
        if entries[0].index in self._early:
            return
        if self._early_bytes + size > self._limit_bytes:
            raise FellBehind(
                f"the entries after {self.index} do not come, and those from {min(self._early)} on wait"
            )
        self._early[entries[0].index] = entries, size
        self._early_bytes += size
