"""Appended entries whose proposers still wait for the outcome, and how many more may be added.

A proposer waits for a limited time. If more bytes are uncommitted than are committed in that time, every
proposal times out, even one of a member that posts little. So the bound on uncommitted bytes follows the pace
of the commits. A proposal that took too long shows how many bytes would have been committed in time (Little's
law), and sets the bound to that. A proposal that was committed in time can only raise the bound: it may have
waited for round trips rather than for the entries before it. While the bound is below its maximum, a proposal
is added only if a second one of its size would fit too, so that large proposals do not shut out small ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from garlicfarm.raft.log import ENTRY_HEADER_BYTES

_LOWEST_SHARE = 64
"""The bound falls to this part of ``max_bytes`` at the lowest."""


class UncommittedProposal(msgspec.Struct, frozen=True, gc=False):
    """Entries up to ``last_index``, of a ClientRequest (``from_client``) or of `RawNode.propose`.

    ``source``: the member that sent the ClientRequest, 0 if none did. ``since_ms``: when they were appended;
    ``backlog``: how many bytes were uncommitted then, these among them.
    """

    last_index: int
    size: int
    token: int
    from_client: bool
    source: int
    since_ms: int
    backlog: int


class UncommittedProposals:
    """In log order. They have ``max_bytes`` at most, and no more than is committed within ``max_wait_ms``; a
    single proposal may be larger. All times are of the clock of `RawNode.tick`."""

    def __init__(self, max_bytes: int, max_wait_ms: int) -> None:
        self._max_bytes = self._bound = max_bytes
        self._max_wait_ms = max_wait_ms
        self._size = 0
        self._queue: deque[UncommittedProposal] = deque()

    def admit(
        self,
        values: Sequence[bytes],
        last_index: int,
        token: int,
        now_ms: int,
        *,
        from_client: bool,
        source: int = 0,
    ) -> bool:
        """Add a proposal. Returns False if too much is uncommitted."""
        size = sum(map(len, values)) + ENTRY_HEADER_BYTES * len(values)
        needed = size if self._bound == self._max_bytes else 2 * size
        if self._size and self._size + needed > self._bound:
            return False
        self._size += size
        proposal = UncommittedProposal(last_index, size, token, from_client, source, now_ms, self._size)
        self._queue.append(proposal)
        return True

    def take_committed(self, index: int, now_ms: int) -> Iterator[UncommittedProposal]:
        """Remove the proposals that are committed with ``index``, in order."""
        while self._queue and self._queue[0].last_index <= index:
            proposal = self._queue.popleft()
            self._size -= proposal.size
            waited_ms = now_ms - proposal.since_ms
            if waited_ms > self._max_wait_ms or self._bound != self._max_bytes:
                self._follow(proposal.backlog, waited_ms)
            yield proposal

    def take_all(self) -> tuple[UncommittedProposal, ...]:
        """Remove all: their outcome is unknown."""
        dropped = tuple(self._queue)
        self._queue.clear()
        self._size = 0
        return dropped

    def _follow(self, backlog: int, waited_ms: int) -> None:
        """Adapt the bound to a proposal that was committed after ``waited_ms``, behind ``backlog`` bytes. A
        bound at its maximum stays there if that was in time."""
        in_time = backlog * self._max_wait_ms // max(waited_ms, 1)
        if waited_ms > self._max_wait_ms or in_time > self._bound:
            self._bound = min(max(in_time, self._max_bytes // _LOWEST_SHARE), self._max_bytes)
