"""Appended entries whose proposer still waits for the outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from garlicfarm.raft.log import ENTRY_HEADER_BYTES

__all__ = ["UncommittedProposal", "UncommittedProposals"]


class UncommittedProposal(msgspec.Struct, frozen=True, gc=False):
    """Entries up to ``last_index``, of a ClientRequest (``from_client``) or of `RawNode.propose`."""

    last_index: int
    size: int
    token: int
    from_client: bool


class UncommittedProposals:
    """In log order, bounded by ``max_bytes``; a single proposal may be larger."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._queue: deque[UncommittedProposal] = deque()

    def admit(self, values: Sequence[bytes], last_index: int, token: int, from_client: bool) -> bool:
        """Add a proposal. Returns False if too much is uncommitted."""
        size = sum(map(len, values)) + ENTRY_HEADER_BYTES * len(values)
        if self._size and self._size + size > self._max_bytes:
            return False
        self._size += size
        self._queue.append(UncommittedProposal(last_index, size, token, from_client))
        return True

    def take_committed(self, index: int) -> Iterator[UncommittedProposal]:
        """Remove the proposals that are committed with ``index``, in order."""
        while self._queue and self._queue[0].last_index <= index:
            proposal = self._queue.popleft()
            self._size -= proposal.size
            yield proposal

    def take_all(self) -> tuple[UncommittedProposal, ...]:
        """Remove all: their outcome is unknown."""
        dropped = tuple(self._queue)
        self._queue.clear()
        self._size = 0
        return dropped
