"""How many bytes a second pass through a session."""

from __future__ import annotations

from collections import deque

WINDOW_S = 15
"""As the routers' own figures."""


class ByteRate:
    """Bytes a second in the last `WINDOW_S` whole seconds. Times in s of one monotonic clock."""

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()
        """[second, bytes], ascending"""

    def add(self, size: int, now_s: float) -> None:
        """``size`` bytes pass now."""
        second = int(now_s)
        if not self._seconds or self._seconds[-1][0] != second:
            self._forget(second)
            self._seconds.append([second, 0])
        self._seconds[-1][1] += size

    def per_s(self, now_s: float) -> int:
        """The mean; the present second, which is not over, does not count."""
        second = int(now_s)
        self._forget(second)
        return sum(size for at, size in self._seconds if at < second) // WINDOW_S

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] < second - WINDOW_S:
            self._seconds.popleft()
