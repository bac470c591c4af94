"""What a member keeps of its log: a snapshot of the state now and then, and the entries since.

Entries are deleted when they are in a durable snapshot, when ``[farm.retention]`` does not keep them for
readers, and when every member is known to hold them: this version sends no snapshots to members that
lag. A leader knows that from its followers' answers; a follower in a farm of status documents from what
each member said to have applied (D15); a follower of any other application does not know, and deletes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import msgspec
import trio

from garlicfarm.errors import StorageError
from garlicfarm.farm.documents import NodeReport
from garlicfarm.farm.state import FarmApplication
from garlicfarm.feed.pages import PageReader
from garlicfarm.node.farm import Farm
from garlicfarm.raft import Role
from garlicfarm.storage import SNAPSHOTS, LogStore, Snapshot, Writer, remove_snapshots, write_snapshot

__all__ = ["Retention"]

CHECK_S = 5.0
WARN_S = 3600.0
KEPT_SNAPSHOTS = 2  # the second is there if the first is found damaged


class Retention:
    """Takes the snapshots of one farm, and shortens its log."""

    def __init__(self, farm: Farm, store: LogStore, writer: Writer, pages: PageReader) -> None:
        self._farm = farm
        self._store = store
        self._writer = writer
        self._pages = pages
        self._directory = store.path.parent / SNAPSHOTS
        self._limiter = trio.CapacityLimiter(1)
        self._keep = farm.section.retention
        self._next = store.snapshot().index + self._keep.snapshot_every_entries
        self._surplus = 0  # entries up to here are in a snapshot, and kept for no reader
        self._warned: dict[tuple[str, int], float] = {}

    async def run(self) -> NoReturn:
        """Do so until cancelled, which takes as long as the disk takes for a snapshot at hand. A snapshot
        that cannot be written is logged, and tried again after as many further entries: it is a means
        to a shorter log, no more.

        Raises `StorageError`: the log cannot be read.
        """
        while True:
            with trio.move_on_after(CHECK_S):
                await self._farm.wait_applied(self._next - 1)
            if self._farm.applied_index >= self._next:
                self._next = self._farm.applied_index + self._keep.snapshot_every_entries
                await self._take_snapshot()
            self._compact()

    async def _take_snapshot(self) -> None:
        farm, genesis = self._farm, self._store.genesis
        snapshot = Snapshot(
            genesis.farm_id,
            genesis.application,
            genesis.algorithm,
            farm.applied_index,
            farm.applied_term,
            farm.applied_configuration,
            tuple(sorted(farm.used_ids)),
            farm.application.snapshot(),
        )
        try:
            await trio.to_thread.run_sync(self._write, snapshot, limiter=self._limiter)
        except StorageError as error:
            farm.metrics.count_snapshot("failed")
            farm.log.error("snapshot-failed", index=snapshot.index, cause=str(error))
            return
        farm.metrics.count_snapshot("ok")
        farm.log.info("snapshot", index=snapshot.index)
        keep = self._keep
        surplus = await self._pages.surplus(snapshot.index, keep.keep_entries, keep.keep_bytes)
        self._surplus = min(surplus, snapshot.index - 1)  # the last one stays, whatever its size

    def _write(self, snapshot: Snapshot) -> None:
        write_snapshot(self._directory, snapshot)
        remove_snapshots(self._directory, KEPT_SNAPSHOTS)

    def _compact(self) -> None:
        farm, first = self._farm, self._store.first_index()
        held = self._held()
        if held is None:
            farm.metrics.storage_held_back_entries.set(0)
            return
        upto = min([self._surplus, *held.values()])
        if upto >= first:
            self._writer.compact(upto)
        held_back = max(0, self._surplus - max(upto, first - 1))
        farm.metrics.storage_held_back_entries.set(held_back)
        for member, index in held.items():
            lags = held_back >= self._keep.snapshot_every_entries and index < self._surplus
            if lags and self._due("lags", member):
                farm.log.warning("log-held-back", peer=member, held=index, first=first)
        for member, progress in farm.raw.status().peers.items():
            # Only a member that lost what it had acknowledged can come to this.
            if progress.state == "snapshot" and self._due("lost", member):
                farm.log.warning("peer-needs-snapshot", peer=member, first=first)

    def _held(self) -> Mapping[int, int] | None:
        """Up to where each other member is known to hold the log; None where this member cannot know."""
        farm, core = self._farm, self._farm.raw.status()
        others = [server.id for server in core.configuration.servers if server.id != farm.node_id]
        if core.role is Role.LEADER:
            return {member: core.peers[member].match_index for member in others}
        if isinstance(farm.application, FarmApplication):
            return {member: self._said(farm.application, member) for member in others}
        return None

    def _said(self, application: FarmApplication, member: int) -> int:
        newest = application.newest(member)
        if newest is None:
            return 0
        return msgspec.convert((newest[1].config or {}).get("node") or {}, NodeReport).applied or 0

    def _due(self, cause: str, member: int) -> bool:
        """Whether an hour has passed since this was told."""
        now = trio.current_time()
        if now < self._warned.get((cause, member), now):
            return False
        self._warned[cause, member] = now + WARN_S
        return True
