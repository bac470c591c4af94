"""Where feeds read a farm's committed entries: the contract, and the iterator that keeps it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, Self

from garlicfarm.errors import Compacted, FellBehind
from garlicfarm.raft.types import Entry

__all__ = ["EntrySource", "EntryStream"]


class EntrySource(Protocol):
    """One farm, as a feed reads it. Any member can be one."""

    @property
    def farm(self) -> str:
        """The farm's name."""

    @property
    def first_index(self) -> int:
        """The oldest entry that is still held."""

    @property
    def commit_index(self) -> int:
        """Up to where entries can be read: committed, durable and applied at this member."""

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows."""

    def entries(
        self, after: int, max_bytes: int, *, upto: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        """Committed entries of all types with index > ``after``, in order, without gaps: each time at
        least one, and no more than make up ``max_bytes`` as records.

        :param upto: the last index that is wanted; the iteration ends there. None: it never ends, and
            waits for what will be committed.
        :raises Compacted: at the first step, ``after`` < first_index − 1: start from the state.
        :raises FellBehind: at a later step, the reader was slower than the log's retention.
        :raises StorageError: the store cannot be read.

        Cancelled at a step, it goes on from there when it is asked again. It need not be closed.
        """


class EntryStream:
    """What `EntrySource.entries` returns, over ``read(after, upto, max_bytes)`` of committed entries;
    ``wait_commit(beyond)`` returns the commit index once it is larger."""

    def __init__(
        self,
        read: Callable[[int, int, int], Awaitable[Sequence[Entry]]],
        wait_commit: Callable[[int], Awaitable[int]],
        after: int,
        max_bytes: int,
        upto: int | None,
    ) -> None:
        self._read = read
        self._wait_commit = wait_commit
        self._after = after
        self._max_bytes = max_bytes
        self._upto = upto
        self._begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Entry]:
        if self._upto is not None and self._after >= self._upto:
            raise StopAsyncIteration
        upto = await self._wait_commit(self._after)
        if self._upto is not None:
            upto = min(upto, self._upto)
        try:
            entries = await self._read(self._after, upto, self._max_bytes)
        except Compacted as gone:
            if not self._begun:
                raise
            raise FellBehind(f"the entries after {self._after} were not read in time; {gone}") from gone
        self._begun = True
        self._after = entries[-1].index
        return entries
