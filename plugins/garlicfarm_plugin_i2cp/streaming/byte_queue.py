"""Bytes that wait to be sent: taken from the front, added at the end, and not moved meanwhile."""

from __future__ import annotations

from collections import deque

_SMALL_BYTES = 1024
"""A piece of so many bytes or more stays as it is; to a smaller one what follows is added, so that many small
pieces cost no more memory than one."""


class ByteQueue:
    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._taken = 0
        """Of the first piece."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, data: bytes) -> None:
        """Add ``data`` at the end."""
        if not data:
            return
        self._size += len(data)
        if self._pieces and len(self._pieces[-1]) < _SMALL_BYTES:
            self._pieces[-1] += data
        else:
            self._pieces.append(data)

    def take(self, size: int) -> bytes:
        """Take ``size`` bytes, or all if there are fewer."""
        parts = []
        while size and self._pieces:
            first = self._pieces[0]
            part = first[self._taken : self._taken + size]
            parts.append(part)
            size -= len(part)
            self._size -= len(part)
            self._taken += len(part)
            if self._taken == len(first):
                self._pieces.popleft()
                self._taken = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def clear(self) -> None:
        self._pieces.clear()
        self._taken = self._size = 0
