"""The feed plugin contract: what carries the committed entries of a farm to somewhere else.

A feed reads the entries that this node has committed, in order, and passes them on. There is one for
each ``[[farm.feed]]`` of a member. A feed that fails or is slow holds up nothing but itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

import msgspec

from garlicfarm.feed.source import EntrySource

if TYPE_CHECKING:
    import trio


class FeedSite(msgspec.Struct, frozen=True, kw_only=True):
    """Where a feed works: the farm, the node's id, the feed's ``name`` (no other feed of the farm here has
    it), and a directory of its own, which may not exist yet."""

    farm: str
    node_id: int
    name: str
    directory: Path


class FeedSource(EntrySource, Protocol):
    """The farm as one feed reads it, and where that feed says how far it is."""

    @property
    def farm_id(self) -> bytes:
        """The farm's id, 16 bytes: another farm of the same name has another one."""

    @property
    def epoch_length(self) -> int:
        """How many Application entries make an epoch in this farm; it never changes."""

    def count_entries(self, index: int) -> int:
        """How many Application entries the log has had up to ``index``, which is from `first_index` − 1 to
        `commit_index`: the same number at every member. An Application entry at ``index`` thus has the number
        ``count_entries(index) − 1``, the first one 0; ``divmod(number, epoch_length)`` gives its epoch and
        its place there.

        Raises `Compacted`; `FeedError`: this member cannot number entries; `LocalProtocolError`: ``index`` is
        not committed.
        """

    def find_entry(self, number: int) -> int:
        """The index of the Application entry with this number.

        Raises `Compacted`: it is deleted here; `FeedError`: this member cannot number entries;
        `LocalProtocolError`: there is no such entry yet.
        """

    def report_read(self, index: int) -> None:
        """Everything up to ``index`` is passed on, or never will be: ``feed_lag_entries`` counts from here.
        Lower indexes than before are ignored."""

    def report_problem(self, problem: str) -> None:
        """What keeps the feed from its work at the moment, one sentence for operators; "" for nothing."""

    async def wait_leader_change(self) -> None:
        """Return at the next change of the leader, or of this member's role. Look at `is_leader` before and
        after: several changes may be one."""


class Feed(ABC):
    """One feed. The constructor opens nothing; it raises `ConfigError` if ``config`` is not usable.

    It shares the node's event loop: what blocks belongs into a thread.
    """

    api_version: ClassVar[int] = 1
    Config: ClassVar[type[msgspec.Struct]]
    has_epochs: ClassVar[bool] = False
    """Whether it passes the log on in epochs, and serves each from its beginning: then the node keeps all of
    the current one, and the Configurations before its first entry. It refuses such a feed if its retention is
    set to less than an epoch, or if it cannot number entries."""

    def __init__(self, config: Any, base_dir: Path, site: FeedSite) -> None:
        """``config`` is an instance of ``Config``; relative paths in it are relative to ``base_dir``."""
        self.config = config
        self.base_dir = base_dir
        self.site = site

    @abstractmethod
    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        """Pass entries on until cancelled. Call ``task_status.started()`` once that can begin.

        The feed itself remembers how far it is, in ``site.directory`` or where it sends to. It reads
        `source.entries` at its own pace: nothing is queued for it, and one that is slower than the log's
        retention gets `FellBehind`.

        Raises `FeedError`, with a sentence for the operator: something that the feed needs fails it; and what
        the source raises. Any other error is a defect of the feed. The node logs each, waits, longer each
        time, and calls `run` again on the same object.

        Cancelled, or with any error: whatever it opened is closed.
        """
