"""The body of an HTTP request of httpcore, or of httpx, which is built on it."""

from __future__ import annotations


class RequestBody:
    """``content``, sent in one piece. Of bytes both libraries make a generator, and leave that to the garbage
    collector where writing fails or is cancelled."""

    def __init__(self, content: bytes) -> None:
        self._parts = iter([content])

    def __aiter__(self) -> RequestBody:
        return self

    async def __anext__(self) -> bytes:
        for part in self._parts:
            return part
        raise StopAsyncIteration
