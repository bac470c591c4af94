"""Backups of one farm by this node, as ``[farm.backup]`` orders: one each ``every``, by the wall clock.

Each member makes its own. They take turns: of n members, each begins an n-th of ``every`` after the one
before it. A node makes one backup at a time, however many farms it has. One that is missing, as after a pause
of the node, is made at once. A directory that refuses does not harm the farm: it is a problem in the status
until a later attempt succeeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec
import trio

from garlicfarm._version import __version__
from garlicfarm.errors import StorageError
from garlicfarm.node.replica import Replica
from garlicfarm.storage import Saved, Snapshot, keep_backup, list_backups

LOOK_S = 60.0
"""The longest wait until the wall clock is read again."""
RETRY_S = 600.0
DEADLINE_S = 600.0
"""After so long a directory hangs. A thread may then still be writing into it, and the next one waits for
it."""

T = TypeVar("T")


def saved_snapshot(replica: Replica) -> tuple[Snapshot, Saved]:
    """The state of a farm now, with what it takes to make another farm from it."""
    snapshot, genesis = replica.applier.snapshot(), replica.store.genesis
    saved = Saved(genesis.farm, genesis.epoch_length, _now_ms(), replica.node_id, __version__)
    return msgspec.structs.replace(snapshot, saved=saved), saved


class Backups:
    """``problem``: why this node has no current backup, and what to see to, as a sentence; "": nothing.

    :param directory: an existing one.
    :param turn: one backup of the node at a time.
    """

    def __init__(self, replica: Replica, directory: Path, turn: trio.CapacityLimiter) -> None:
        self.problem = ""
        self._replica = replica
        self._directory = directory
        self._keep = replica.section.backup.keep
        self._every_ms = replica.section.backup.every_ms
        self._turn = turn

    async def run(self) -> NoReturn:
        """Run until cancelled; a thread that is writing is then left to end with the process."""
        replica = self._replica
        await replica.wait_applied(0)  # a server that joins knows nothing before
        while True:
            try:
                newest_ms = await self._in_thread(self._newest_ms)
                if newest_ms is not None:
                    replica.metrics.backup_timestamp.set(newest_ms / 1000)
                ids = [server.id for server in replica.configuration.servers]
                turn = turn_ms(replica.node_id, ids, self._every_ms)
                wait_ms = due_ms(newest_ms, self._every_ms, turn) - _now_ms()
                if wait_ms <= 0:
                    await self._make()
                    continue
                wait_s = min(wait_ms / 1000, LOOK_S)
            except StorageError as error:
                self.problem = f"node {replica.node_id} makes no backups: {error}"
                replica.log.error("backup-failed", cause=str(error))
                wait_s = min(self._every_ms / 1000, RETRY_S)
            await trio.sleep(wait_s)

    async def _make(self) -> None:
        replica = self._replica
        snapshot, saved = saved_snapshot(replica)

        def write() -> Path:
            return keep_backup(self._directory, snapshot, saved, self._keep, replica.data_dir)

        path = await self._in_thread(write)
        self.problem = ""
        replica.log.info("backup", index=snapshot.index, file=path.name)

    def _newest_ms(self) -> int | None:
        """When the newest one was made. One dated later than now was made before a clock was corrected."""
        found, now_ms = list_backups(self._directory, self._replica.farm, self._replica.node_id), _now_ms()
        return next((each.date_ms for each in found if each.is_whole and each.date_ms <= now_ms), None)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """Raises `StorageError`, also for a directory that does not answer."""
        with trio.move_on_after(DEADLINE_S):
            return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._turn)
        raise StorageError(f"{self._directory} has not answered for {DEADLINE_S:.0f} s")


def turn_ms(node_id: int, members: Iterable[int], every_ms: int) -> int:
    """How long after each multiple of ``every_ms`` it is a member's turn."""
    ids = sorted({*members, node_id})
    return every_ms * ids.index(node_id) // len(ids) // 1000 * 1000  # whole seconds, as in the names of files


def due_ms(newest_ms: int | None, every_ms: int, offset_ms: int) -> int:
    """When to make the next backup: at the first multiple of ``every_ms``, plus ``offset_ms``, after the
    newest one; at once (0), if there is none."""
    if newest_ms is None:
        return 0
    return ((newest_ms - offset_ms) // every_ms + 1) * every_ms + offset_ms


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
