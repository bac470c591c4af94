"""The receiving half of a stream: packets in any order to bytes in order.

Source: I2P's streaming specification, "Packet Format"; streaming documentation, "Other Parameters".
"""

from __future__ import annotations

from garlicfarm_plugin_i2cp.streaming.limits import BufferPool
from garlicfarm_plugin_i2cp.streaming.packet import MAX_NACKS

_MAX_AHEAD = 512
"""How far a packet may be ahead of the next one: the largest window in use (i2pd)."""


class ReceiveHalf:
    """``through``: the last packet up to which none is missing. It begins with SYN."""

    def __init__(self, limit: int, pool: BufferPool) -> None:
        self.through = 0
        self.is_closed = False
        """CLOSE has arrived, and all before it."""
        self._limit = limit
        self._pool = pool
        self._data = bytearray()
        self._ahead: dict[int, tuple[bytes, bool]] = {}
        self._ahead_bytes = 0
        self._choked = False

    def receive_first(self, data: bytes, *, is_close: bool) -> None:
        """What SYN brings."""
        self._data += data
        self._pool.used += len(data)
        self.is_closed = is_close

    def receive(self, sequence: int, data: bytes, *, is_close: bool) -> bool:
        """Take packet ``sequence``. Returns whether there are new bytes to read, or their end."""
        if self.is_closed:
            return False
        if sequence == self.through + 1:
            if self._pool.room(len(self._data), self._limit) == 0:
                return False
            before = len(self._data)
            self._append(data, is_close)
            while not self.is_closed and (found := self._ahead.pop(self.through + 1, None)) is not None:
                self._ahead_bytes -= len(found[0])
                self._pool.used -= len(found[0])
                self._append(*found)
            if self.is_closed:
                self._drop_ahead()
            return self.is_closed or len(self._data) > before
        if self.is_new(sequence) and self._pool.room(self.buffered, self._limit):
            self._ahead[sequence] = (data, is_close)
            self._ahead_bytes += len(data)
            self._pool.used += len(data)
        return False

    def is_new(self, sequence: int) -> bool:
        """Whether ``sequence`` is none that has come already, nor far ahead of what may come."""
        return (
            self.through < sequence <= self.through + _MAX_AHEAD
            and sequence not in self._ahead
            and not self.is_closed
        )

    def read(self, size: int) -> bytes:
        data = bytes(memoryview(self._data)[:size])
        del self._data[: len(data)]
        self._pool.used -= len(data)
        return data

    def clear(self) -> None:
        """Forget all bytes."""
        self.read(len(self._data))
        self._drop_ahead()

    @property
    def buffered(self) -> int:
        """Bytes unread, or ahead of what is missing."""
        return len(self._data) + self._ahead_bytes

    @property
    def is_empty(self) -> bool:
        return not self._data

    @property
    def has_gap(self) -> bool:
        return bool(self._ahead)

    @property
    def is_choked(self) -> bool:
        """Whether the peer should send nothing new: from half of the buffer on, until a quarter."""
        limit = self._pool.limit(self._limit)
        self._choked = self.buffered > limit // (4 if self._choked else 2)
        return self._choked

    def acknowledgement(self) -> tuple[int, list[int]]:
        """``ack_through`` and the NACKs below it, at most `MAX_NACKS`."""
        through = self.through
        missing: list[int] = []
        if self._ahead:
            for sequence in sorted(self._ahead):
                gap = range(through + 1, sequence)
                if len(missing) + len(gap) > MAX_NACKS:
                    break
                missing += gap
                through = sequence
        return through, missing

    def _append(self, data: bytes, is_close: bool) -> None:
        self.through += 1
        self._data += data
        self._pool.used += len(data)
        self.is_closed = is_close

    def _drop_ahead(self) -> None:
        self._pool.used -= self._ahead_bytes
        self._ahead_bytes = 0
        self._ahead.clear()
