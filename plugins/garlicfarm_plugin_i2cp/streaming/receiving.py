"""The receiving half of a stream: packets in any order to bytes in order.

A peer that should send nothing new is choked, or held. Streams of i2pd 2.55 and 2.56 stand still for ever
once a choke has acknowledged all that they have sent: then they send anew only when something is
acknowledged (``Stream::ProcessAck``, ``ResendPacket``). Earlier ones know no choke. So a peer is held at
first: nothing new is acknowledged, which stops it when its window is full. It gives up after some 10
repetitions, and so is told of one more packet now and then. Packets of data that ask for an acknowledgement
come from Java I2P, and from i2pd 2.59; these peers are choked.

Source: I2P's streaming specification, "Packet Format"; streaming documentation, "Other Parameters".
"""

from __future__ import annotations

from garlicfarm_plugin_i2cp.streaming.limits import BufferPool
from garlicfarm_plugin_i2cp.streaming.packet import MAX_NACKS

_MAX_AHEAD = 512
"""How far a packet may be ahead of the next one: the largest window in use (i2pd)."""
_PATIENCE = 6
"""So many packets a peer that is held repeats until one is acknowledged."""


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
        self.is_full = False
        """Whether the peer should send nothing new, by the last `acknowledgement` or `look`."""
        self.can_be_choked = False
        """It asks for acknowledgements."""
        self._told = 0
        """All up to this packet is acknowledged."""
        self._repetitions = 0

    def receive_first(self, data: bytes, *, is_close: bool) -> None:
        """What SYN brings."""
        self._data += data
        self._pool.used += len(data)
        self.is_closed = is_close

    def receive(self, sequence: int, data: bytes, *, is_close: bool) -> bool:
        """Take packet ``sequence``. Returns whether there are new bytes to read, or their end."""
        if self.is_closed:
            return False
        if self.is_full and self._told < sequence <= self.through:
            self._repetitions += 1
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

    def look(self) -> bool:
        """Whether the peer should send nothing new: from half of the buffer on, until a quarter. What is
        ahead counts for one that can be choked; another has to be told what is missing."""
        limit = self._pool.limit(self._limit)
        used = self.buffered if self.can_be_choked else len(self._data)
        self.is_full = not self.is_closed and used > limit // (4 if self.is_full else 2)
        return self.is_full

    def acknowledgement(self) -> tuple[int, list[int]]:
        """``ack_through`` and the NACKs below it, at most `MAX_NACKS`."""
        missing: list[int] = []
        if self.look() and not self.can_be_choked:
            if self._repetitions >= _PATIENCE:
                self._repetitions = 0
                self._told += 1
            return self._told, missing
        self._told, self._repetitions = self.through, 0
        through = self.through
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
