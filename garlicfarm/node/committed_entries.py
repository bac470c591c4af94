"""The committed entries of a farm as its readers at this node see them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from garlicfarm.feed.pages import PageReader
from garlicfarm.feed.source import EntryStream
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.store import Store
from garlicfarm.raft import Entry


class CommittedEntries:
    """Implements `garlicfarm.feed.source.EntrySource`."""

    def __init__(self, core: CoreInbox, store: Store, pages: PageReader) -> None:
        self.farm = core.farm
        self._core = core
        self._store = store
        self._pages = pages

    @property
    def first_index(self) -> int:
        return self._store.first_index()

    @property
    def commit_index(self) -> int:
        """Up to here entries are committed, durable here and applied: readers may see them."""
        return self._core.applied_index

    @property
    def is_leader(self) -> bool:
        return self._core.is_leader

    def entries(
        self, after: int, max_bytes: int, *, upto: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        return EntryStream(self._pages.read, self.wait_commit, after, max_bytes, upto)

    async def wait_commit(self, beyond: int) -> int:
        """Return `commit_index` once it is > ``beyond``."""
        await self._core.wait_applied(beyond)
        return self.commit_index
