"""The store as a replica sees it: the read side, and the one writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, Protocol

import trio

from garlicfarm.raft import Persist, SnapshotMeta, Storage
from garlicfarm.storage import Genesis, Snapshot
from garlicfarm.wire.messages import SnapshotSyncRequest


class Store(Storage, Protocol):
    """The read side: `garlicfarm.storage.LogStore`, or a store in memory."""

    genesis: Genesis

    def size_bytes(self) -> int:
        """Its size on the disk."""

    def read_state(self, meta: SnapshotMeta) -> Snapshot:
        """The snapshot that ``meta`` describes. Blocking; called in a thread."""
        ...

    def origin(self) -> int:
        """The member whose snapshot was restored last, 0: none since the members compare what they hold
        (D26). Blocking; called in a thread."""

    def oldest_state(self) -> Snapshot | None:
        """The oldest snapshot that the log continues. Blocking; called in a thread."""
        ...


class StoreWriter(Protocol):
    """The writer: `garlicfarm.storage.Writer`, or one in memory."""

    def submit(self, persist: Persist) -> None:
        """Queue a durable step."""

    def submit_chunk(self, token: int, request: SnapshotSyncRequest, source: int) -> None:
        """Queue a piece of a snapshot of the member ``source``."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Write until cancelled."""
        ...


MakeWriter = Callable[
    [
        Callable[[int], None],
        Callable[[int, float], None],
        Callable[[int, int, SnapshotMeta | None], None],
        Callable[[str], None],
    ],
    StoreWriter,
]
"""``make_writer(on_durable, on_batch, on_chunk, on_problem)`` makes the one writer of a store."""
