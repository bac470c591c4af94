"""Runs one feed plugin: starts it, reads the log for it, and starts it again after it has ended.

A feed that fails never hurts another one or the node: its errors are logged, and it is started again with
back-off. One that is slow only falls behind: it is handed entries as it asks for them, and none is queued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

import trio

from garlicfarm.config import Config, FarmSection, FeedSection
from garlicfarm.errors import ConfigError, GarlicFarmError, first_error
from garlicfarm.feed.contract import Feed, FeedSite
from garlicfarm.feed.pages import PageReader
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import FarmMetrics
from garlicfarm.net.link import Backoff
from garlicfarm.node.committed_entries import CommittedEntries
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.epochs import Epochs
from garlicfarm.node.store import Store
from garlicfarm.plugins import make_feed

State = Literal["starting", "running", "failed"]

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 60.0
STALL_S = 60.0
"""A feed that has passed nothing on for so long, while entries wait, has a problem."""


class NodeFeedSource(CommittedEntries):
    """Implements `garlicfarm.feed.contract.FeedSource`. ``read_index``: the last index that the feed
    reported, 0 if none. ``problem``: its newest, "" for none."""

    def __init__(self, core: CoreInbox, store: Store, pages: PageReader, epochs: Epochs) -> None:
        super().__init__(core, store, pages)
        self.farm_id = store.genesis.farm_id
        self.epochs = epochs
        self.read_index = 0
        self.problem = ""
        self._waited_for_since = trio.current_time()  # if entries wait

    @property
    def stalled_s(self) -> float:
        """For how long entries have waited and none was passed on; 0 if none waits."""
        return trio.current_time() - self._waited_for_since if self.lag else 0.0

    @property
    def lag(self) -> int:
        """How many committed entries the feed has yet to pass on, of those that are stored."""
        return max(0, self.commit_index - max(self.read_index, self.first_index - 1))

    @property
    def epoch_length(self) -> int:
        return self.epochs.length

    def count_entries(self, index: int) -> int:
        return self.epochs.count_entries(index)

    def find_entry(self, number: int) -> int:
        return self.epochs.find_entry(number)

    def report_read(self, index: int) -> None:
        if index > self.read_index:
            self.read_index = index
            self._waited_for_since = trio.current_time()
        elif not self.lag:
            self._waited_for_since = trio.current_time()

    async def wait_commit(self, beyond: int) -> int:
        committed = await super().wait_commit(beyond)
        if self.read_index >= beyond:  # everything before is passed on
            self._waited_for_since = trio.current_time()
        return committed

    def report_problem(self, problem: str) -> None:
        self.problem = problem

    async def wait_leader_change(self) -> None:
        await self._core.wait_leader_change()


class HostedFeed:
    """``feed`` of the table ``section``, and what is known of its work. ``random()``: in [0, 1).
    ``problem``: why it does not do its work, "" if nothing is wrong."""

    def __init__(
        self,
        feed: Feed,
        section: FeedSection,
        source: NodeFeedSource,
        metrics: FarmMetrics,
        log: EventLogger,
        random: Callable[[], float],
    ) -> None:
        self.reader = section.reader
        self._feed = feed
        self._plugin = section.plugin
        self._source = source
        self._metrics = metrics
        self._log = log.bind(reader=self.reader)
        self._backoff = Backoff(random, first_s=FIRST_WAIT_S, longest_s=LONGEST_WAIT_S)
        self._state: State = "starting"
        self._cause = ""  # of its last end

    @property
    def problem(self) -> str:
        stalled_s = self._source.stalled_s
        stall = f"it has passed nothing on for {stalled_s:.0f} s" if stalled_s >= STALL_S else ""
        return self._cause or self._source.problem or stall

    def describe(self) -> dict[str, Any]:
        """Its row in ``GET …/status``."""
        return {
            "name": self.reader,
            "plugin": self._plugin,
            "state": self._state,
            "index": self._source.read_index or None,
            "lag": self._source.lag,
            "problem": self.problem or None,
        }

    def collect(self) -> None:
        """Bring its gauge up to date."""
        self._metrics.set_feed_lag(self.reader, self._source.lag)

    async def run(self) -> NoReturn:
        """Run the feed until cancelled."""
        failures = 0
        while True:
            begun_at = trio.current_time()
            self._cause = await self._run_once()
            self._source.problem = ""
            self._state = "failed"
            self._metrics.count_feed_failure(self.reader)
            if trio.current_time() >= begun_at + LONGEST_WAIT_S:
                failures = 0  # that it did its work so long is no sign of a defect
            failures += 1
            wait_s = self._backoff.wait_s(failures)
            self._log.warning("feed-failed", cause=self._cause, again_s=round(wait_s, 1))
            await trio.sleep(wait_s)
            self._state = "starting"

    async def _run_once(self) -> str:
        """Run the feed until it ends; why it did."""
        if self._feed.has_epochs and self._source.epochs.refusal:
            return self._source.epochs.refusal
        cause = "it ended, which a feed never does"
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._feed.run, self._source)
                self._state, self._cause = "running", ""
        except* Exception as group:  # noqa: BLE001 - a plugin's defect is not the node's
            error = first_error(group)
            is_ours = isinstance(error, GarlicFarmError)
            cause = str(error) if is_ours and str(error) else f"{type(error).__name__}: {error}"
        return cause


def make_feeds(section: FarmSection, config: Config) -> list[Feed]:
    """The feeds of ``[[farm.feed]]``, in that order.

    Raises `PluginError`, and `ConfigError`: a table is not usable.
    """
    made = []
    for table in section.feed:
        site = FeedSite(
            farm=section.name,
            node_id=config.node.id,
            name=table.reader,
            directory=config.node.data_dir / "feeds" / section.name / table.reader,
        )
        made.append(make_feed(table.plugin, table.options, config.base_dir, site))
    return made


def check_retention(section: FarmSection, feeds: Sequence[Feed], epoch_length: int) -> None:
    """Raises `ConfigError`: a feed serves whole epochs, and so few entries are kept that a reader may not
    even have an epoch's time to finish the one before."""
    keep = section.retention.keep_entries
    problems = [
        f"farm {section.name}: the feed {feed.site.name} serves whole epochs, of {epoch_length} entries in "
        f"this farm, and retention.keep_entries is {keep}; set it to {epoch_length} or more"
        for feed in feeds
        if feed.has_epochs and keep < epoch_length
    ]
    if problems:
        raise ConfigError(problems)
