"""Where the entries of a log lie in its segments: 12 bytes of memory per entry."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from threading import Lock

from garlicfarm.errors import Compacted
from garlicfarm.wire.messages import ValueType


class Positions:
    """Where entries with consecutive indexes lie: ``segment << 32 | offset`` of each one's record, and the
    size of its value; and the indexes of Configurations among them."""

    def __init__(self) -> None:
        self.at = array("Q")
        self.sizes = array("I")
        self.configurations: list[int] = []

    def add(self, index: int, position: int, size: int, value_type: int) -> None:
        """The entry of ``index`` is next."""
        self.at.append(position)
        self.sizes.append(size)
        if value_type == ValueType.CONFIGURATION:
            self.configurations.append(index)


class LogIndex:
    """The positions of the entries from ``first`` to ``last``. Changed by one thread, read from any."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._held = Positions()
        self._bytes = 0  # of all values
        self._lock = Lock()

    @property
    def last(self) -> int:
        """The index of the last entry; that before ``first`` if there is none."""
        with self._lock:
            return self.first + len(self._held.at) - 1

    def append(self, positions: Positions) -> None:
        """More entries follow the last one."""
        with self._lock:
            self._held.at.extend(positions.at)
            self._held.sizes.extend(positions.sizes)
            self._bytes += sum(positions.sizes)
            self._held.configurations += positions.configurations

    def truncate(self, index: int) -> None:
        """Forget the entries from ``index`` on; the next one has this index."""
        held = self._held
        with self._lock:
            keep = max(0, index - self.first)
            self._bytes -= sum(held.sizes[keep:])
            del held.at[keep:], held.sizes[keep:]
            del held.configurations[bisect_left(held.configurations, index) :]
            self.first = min(self.first, index)

    def drop(self, upto: int) -> None:
        """Forget the entries up to ``upto``; if it is beyond the last one, the next one follows it."""
        held = self._held
        with self._lock:
            count = upto + 1 - self.first
            if count <= 0:
                return
            if count >= len(held.at):
                self.first = upto + 1
            else:
                self.first += count
            self._bytes -= sum(held.sizes[:count])
            del held.at[:count], held.sizes[:count]
            del held.configurations[: bisect_right(held.configurations, upto)]

    def find(self, lo: int, hi: int, max_bytes: int, overhead: int = 0) -> Sequence[tuple[int, int]]:
        """Position and size of the entries lo ≤ index < hi: at least one, then as many as fit into
        ``max_bytes``, each with ``overhead`` beside its value; none beyond the last. Raises `Compacted`:
        lo < ``first``."""
        with self._lock:
            if lo < self.first:
                raise Compacted(self.first)
            start, end = lo - self.first, hi - self.first
            positions, sizes = self._held.at[start:end], self._held.sizes[start:end]
        count = 0
        for size in sizes:
            max_bytes -= size + overhead
            if max_bytes < 0 and count:
                break
            count += 1
        return list(zip(positions[:count], sizes, strict=False))

    def configuration(self, upto: int) -> int | None:
        """The index of the newest Configuration up to ``upto``."""
        with self._lock:
            found = self._held.configurations
            position = bisect_right(found, upto)
            return found[position - 1] if position else None

    def application_entries(self, after: int, upto: int) -> int:
        """How many of the entries with ``after`` < index ≤ ``upto`` are Application entries. Raises
        `Compacted`: ``after`` < ``first`` − 1."""
        with self._lock:
            if after < self.first - 1:
                raise Compacted(self.first)
            return upto - after - self._configurations(after, upto)

    def application_entry(self, after: int, number: int) -> int:
        """The index of the ``number``-th (≥ 1) Application entry behind ``after``, which has to be there.
        Raises as `application_entries`."""
        with self._lock:
            if after < self.first - 1:
                raise Compacted(self.first)
            index = after + number
            while (found := after + number + self._configurations(after, index)) > index:
                index = found
            return index

    def _configurations(self, after: int, upto: int) -> int:
        found = self._held.configurations
        return bisect_right(found, upto) - bisect_right(found, after)

    def last_within(self, segment: int) -> int:
        """The index of the last entry in this segment or an earlier one; 0 if there is none."""
        with self._lock:
            count = bisect_left(self._held.at, (segment + 1) << 32)
            return self.first + count - 1 if count else 0

    def oldest_segment(self) -> int | None:
        """The number of the segment with the first entry; None if there is no entry."""
        with self._lock:
            return self._held.at[0] >> 32 if self._held.at else None

    def surplus(self, upto: int, keep_entries: int, keep_bytes: int) -> int:
        """The last index that may be deleted if the newest ``keep_entries`` of the entries up to ``upto`` are
        kept, but no more than fit into ``keep_bytes`` of values. It costs what the deleted entries
        and those after ``upto`` cost, however many are kept."""
        oldest = max(0, upto - keep_entries)
        with self._lock:
            sizes = self._held.sizes
            start, end = max(0, oldest + 1 - self.first), max(0, upto + 1 - self.first)
            kept_bytes = self._bytes - sum(sizes[:start]) - sum(sizes[end:])
            if kept_bytes <= keep_bytes:
                return oldest
            while start < end and kept_bytes > keep_bytes:
                kept_bytes -= sizes[start]
                start += 1
            return self.first + start - 1
