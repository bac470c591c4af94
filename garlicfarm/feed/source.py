"""The source of a farm's committed entries for feeds: the contract, and an iterator that implements it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, Self

from garlicfarm.errors import Compacted, FellBehind
from garlicfarm.raft.types import Entry


class EntrySource(Protocol):
    """One farm as a feed reads it, at any member."""

    @property
    def farm(self) -> str:
        """The farm's name."""

    @property
    def first_index(self) -> int:
        """The index of the oldest entry that is still stored."""

    @property
    def commit_index(self) -> int:
        """The last index that can be read: committed, durable and applied at this member."""

    @property
    def is_leader(self) -> bool:
        """Whether this member believes that it is the leader."""

    def entries(
        self, after: int, max_bytes: int, *, upto: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        """Committed entries of all types with index > ``after``, in order, without gaps: in each step at
        least one, and at most ``max_bytes`` as records.

        :param upto: the last index to read; the iteration ends there. None: it does not end, but waits for
            later commits.
        :raises Compacted: at the first step, ``after`` < first_index − 1: start from the state.
        :raises FellBehind: at a later step, the reader was slower than the log's retention.
        :raises StorageError: the store cannot be read.

        Cancelled: the next step resumes there. It need not be closed.
        """


class EntryStream:
    """Implements `EntrySource.entries` with ``read(after, upto, max_bytes)``, which reads committed entries,
    and ``wait_commit(beyond)``, which returns the commit index once it is larger."""

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
