"""Snapshots exchanged with JRaft servers: the application's state alone.

There is no header that names the farm or counts entries, and no checksum. The last piece is marked as such,
and the snapshots of two servers for one index may differ, so a transfer is never resumed from another server.
The application itself says whether it can take a state, before the old one is replaced. On disk they have the
same form as all snapshots (`garlicfarm.storage.snapshots`).
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from garlicfarm.errors import StorageDamaged
from garlicfarm.raft.types import SnapshotMeta
from garlicfarm.regular_files import read_file
from garlicfarm.storage.segments import Genesis
from garlicfarm.storage.snapshot_receiver import SnapshotReceiver
from garlicfarm.storage.snapshot_sender import SnapshotSender
from garlicfarm.storage.snapshots import (
    MAX_SNAPSHOT_BYTES,
    Snapshot,
    read_snapshot,
    state_start,
    write_snapshot,
)
from garlicfarm.wire.messages import SnapshotSyncRequest

CHECK_AGAIN_AFTER = 32
"""Another server's snapshot of the same index may have the same first piece and differ after it."""


class JRaftSnapshotReceiver(SnapshotReceiver):
    """Accepts a state if ``check(state)`` does not raise. Other arguments as for `SnapshotReceiver`."""

    def __init__(self, directory: Path, genesis: Genesis, check: Callable[[bytes], None]) -> None:
        super().__init__(directory, genesis)
        self._check_state = check
        self._first: tuple[int, int, bytes] | None = None  # index, term, digest of the first piece
        self._refused: tuple[int, int, bytes] | None = None  # the refused one
        self._why = ""  # why it was refused
        self._times = 0  # and how often

    def take(self, request: SnapshotSyncRequest, source: int = 0) -> tuple[int, SnapshotMeta | None]:
        """As `SnapshotReceiver.take`. A JRaft leader sends a refused snapshot again and again, until it has a
        newer one. It is recognised by its first piece and refused without being stored; every
        `CHECK_AGAIN_AFTER` times it is received and checked again."""
        if request.offset == 0:
            digest = sha256(request.data).digest()
            self._first = (request.last_log_index, request.last_log_term, digest)
            if self._first == self._refused and self._times < CHECK_AGAIN_AFTER:
                self._times += 1
                self.problem = self._why
                return 0, None
        taken = super().take(request)
        if self.is_refused:
            self._refused, self._why, self._times = self._first, self.problem, 1
        return taken

    def _held_whole(self, whole: Path) -> tuple[int, SnapshotMeta]:
        snapshot = read_snapshot(whole)
        return len(snapshot.state), snapshot.meta

    def _agrees(self, part: Path, data: bytes) -> bool:
        return False

    def _is_whole(self, part: Path, request: SnapshotSyncRequest, held: int) -> bool:
        if held > MAX_SNAPSHOT_BYTES:
            raise StorageDamaged(f"it is one of more than {MAX_SNAPSHOT_BYTES} bytes")
        return request.done and held == request.offset + len(request.data)

    def _keep(self, part: Path, whole: Path, request: SnapshotSyncRequest, source: int) -> SnapshotMeta:
        born = (self._genesis.farm_id, self._genesis.application, self._genesis.algorithm)
        what = (request.last_log_index, request.last_log_term, request.configuration)
        snapshot = Snapshot(*born, *what, request.configuration.servers, None, read_file(part))
        try:
            self._check_state(snapshot.state)
        except Exception as error:  # the application's code may raise anything
            raise StorageDamaged(f"the application cannot take it: {error}") from error
        write_snapshot(self._directory, snapshot)
        part.unlink()
        return snapshot.meta


class JRaftSnapshotSender(SnapshotSender):
    """Sends states without a header. Arguments as for `SnapshotSender`."""

    def _start(self, file: BinaryIO) -> int:
        return state_start(file)
