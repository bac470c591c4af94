"""What a leader appended for others and owes an outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from garlicfarm.raft.log import ENTRY_HEADER_BYTES

__all__ = ["Proposal", "Proposals"]


class Proposal(msgspec.Struct, frozen=True, gc=False):
    """Entries up to ``last_index``, of a ClientRequest (``from_client``) or of `RawNode.propose`."""

    last_index: int
    size: int
    token: int
    from_client: bool


class Proposals:
    """In log order; bounded by ``max_bytes``, where one of any size is taken if it is alone."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._queue: deque[Proposal] = deque()

    def admit(self, values: Sequence[bytes], last_index: int, token: int, from_client: bool) -> bool:
        """Take one more; False: too much is uncommitted."""
        size = sum(map(len, values)) + ENTRY_HEADER_BYTES * len(values)
        if self._size and self._size + size > self._max_bytes:
            return False
        self._size += size
        self._queue.append(Proposal(last_index, size, token, from_client))
        return True

    def take_committed(self, index: int) -> Iterator[Proposal]:
        """Take out those that are committed when all up to ``index`` is."""
        while self._queue and self._queue[0].last_index <= index:
            proposal = self._queue.popleft()
            self._size -= proposal.size
            yield proposal

    def take_all(self) -> tuple[Proposal, ...]:
        """Take out all: their outcome is unknown."""
        dropped = tuple(self._queue)
        self._queue.clear()
        self._size = 0
        return dropped
