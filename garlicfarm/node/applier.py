"""Applies committed entries to the application.

Each turn of the core's task applies entries for `SLICE_S` (at least one); the rest waits for the next turn.
Between two turns the other tasks of this process run, and the core ticks: heartbeats do not wait for entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio

from garlicfarm.application import Application
from garlicfarm.digests import Contradicted, DigestKeeper
from garlicfarm.levels import algorithm_of
from garlicfarm.logs import EventLogger
from garlicfarm.node.core_inbox import SLICE_S, CoreInbox
from garlicfarm.node.membership import Membership
from garlicfarm.node.store import Store
from garlicfarm.raft import Entry, SnapshotMeta
from garlicfarm.storage import Snapshot
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import ClusterServer, ValueType


class Applier:
    """Applies the entries of one farm, and takes and restores snapshots of its application."""

    def __init__(
        self,
        core: CoreInbox,
        membership: Membership,
        application: Application,
        store: Store,
        log: EventLogger,
    ) -> None:
        self._core = core
        self._membership = membership
        self._application = application
        self._store = store
        self._log = log
        self._committed: deque[Entry] = deque()  # handed out by the core, not yet applied
        self.restored = 0
        """how many snapshots of other members this process has restored"""
        self._contradicted: Contradicted = ""  # as the core was told
        self.digests = DigestKeeper()

    @property
    def has_entries(self) -> bool:
        """Whether entries wait to be applied."""
        return bool(self._committed)

    def configure_genesis(self) -> None:
        """Give the application the farm's first Configuration, before anything is applied."""
        core = self._core
        if core.applied.configuration.servers and not core.applied.index:
            self._application.configure(0, core.applied.configuration)

    def add(self, committed: Sequence[Entry]) -> None:
        """Queue entries from the core, and apply a slice of the queue."""
        self._committed.extend(committed)
        if self._committed:
            self._apply()

    def _apply(self) -> None:
        until, taken = trio.current_time() + SLICE_S, list[Entry]()
        while True:
            entry = self._committed.popleft()
            level = None
            if entry.value_type is ValueType.CONFIGURATION:
                configuration = decode_configuration(entry.value)
                level = configuration.level
                self._application.configure(entry.index, configuration)
                self._membership.on_applied(configuration)
            else:
                self._application.apply(entry.index, entry.term, entry.value)
            self.digests.add(entry.index, entry.term, entry.value_type, entry.value, level)
            if self._application.agreed_index() == entry.index:
                self.digests.take(entry.index, self._application.snapshot())
            taken.append(entry)
            if not self._committed or trio.current_time() >= until:
                break
        self._core.on_applied(self._core.applied.after(taken))
        self._follow_contradiction()

    def _follow_contradiction(self) -> None:
        application, own_id = self._application, self._core.node_id
        claimed = application.claimed(own_id)
        if self.digests.has_origin and application.confirmed(own_id):
            self.digests.confirm(claimed)
        contradicted = self.digests.bars(application.contradicted(own_id), claimed)
        if contradicted != self._contradicted:
            self._contradicted = contradicted
            self._core.put(self._core.raw.report_contradicted, contradicted)
            if contradicted:
                self._log.error("contradicted", what=contradicted)
            else:
                self._log.info("no-longer-contradicted")

    async def restore(self, meta: SnapshotMeta) -> None:
        """Continue from a snapshot that the leader sent."""
        # Use a thread of its own: it must not queue behind name lookups, since this task waits for it.
        own = trio.CapacityLimiter(1)
        snapshot = await trio.to_thread.run_sync(self._store.read_state, meta, limiter=own)
        origin = await trio.to_thread.run_sync(self._store.origin, limiter=own)
        self._application.restore(snapshot.state)
        self.digests.restore(snapshot.chain, origin)
        self._committed.clear()  # the snapshot contains them
        self._membership.on_restored(snapshot.configuration, snapshot.all_members)
        self.restored += 1
        self._log.info("snapshot-restored", index=meta.index, term=meta.term)
        self._core.on_applied(snapshot.meta)
        self._follow_contradiction()

    def snapshot(self) -> Snapshot:
        """The application's state now, with the data that a store keeps about it."""
        applied, genesis = self._core.applied, self._store.genesis
        return Snapshot(
            genesis.farm_id,
            genesis.application,
            algorithm_of(applied.configuration.level),
            applied.index,
            applied.term,
            applied.configuration,
            tuple(ClusterServer(member, at) for member, at in sorted(self._membership.all_members.items())),
            applied.application_entries,
            self._application.snapshot(),
            self.digests.chain,
        )
