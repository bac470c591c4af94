"""The numbers of a farm's Application entries, and where its current epoch begins (D23).

The number of an entry follows from the log alone: it is how many Application entries come before it. A member
that begins with a snapshot knows from it how many there are up to there (`garlicfarm.raft.SnapshotMeta`), and
counts on.
"""

from __future__ import annotations

from garlicfarm.errors import Compacted, FeedError, LocalProtocolError
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.store import Store
from garlicfarm.raft import SnapshotMeta
from garlicfarm.storage.log_index import LogIndex


def _index(meta: SnapshotMeta) -> int:
    return meta.index


class Epochs:
    """``length``: how many entries make an epoch."""

    def __init__(self, core: CoreInbox, store: Store, log: LogIndex) -> None:
        self.length = store.genesis.epoch_length
        self._core = core
        self._store = store
        self._log = log

    @property
    def refusal(self) -> str:
        """Why this member cannot number entries, "" if it can."""
        if self._core.applied.application_entries is not None:
            return ""
        return (
            "the entries of this farm cannot be numbered here: its log begins with a snapshot of a "
            "JRaft server, which does not count them"
        )

    def count_entries(self, index: int) -> int:
        """See `garlicfarm.feed.contract.FeedSource`."""
        known = max(self._core.applied, self._store.snapshot(), key=_index)  # a received one is applied later
        if known.application_entries is None:
            raise FeedError(self.refusal)
        if index > known.index:
            raise LocalProtocolError(f"{index} is behind the last index, {known.index}")
        return known.application_entries - self._log.application_entries(index, known.index)

    def find_entry(self, number: int) -> int:
        """See `garlicfarm.feed.contract.FeedSource`."""
        before = self._store.first_index() - 1
        found = number - self.count_entries(before)
        if found < 0:
            raise Compacted(before + 1)
        if number >= self.count_entries(self._core.applied_index):
            raise LocalProtocolError(f"there is no entry of number {number} yet")
        return self._log.application_entry(before, found + 1)

    def current_start(self) -> int:
        """The first index that the newest entry's epoch needs, of those that are stored: of the Application
        entry before it, so that the Configurations between the two are there. The next index where there is
        no entry yet, or where entries are not numbered."""
        applied = self._core.applied
        if not applied.application_entries:
            return applied.index + 1
        newest = applied.application_entries - 1
        first = newest - newest % self.length
        try:
            return self.find_entry(first - 1) if first else 1
        except Compacted as gone:
            return gone.first_index
