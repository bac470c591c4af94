"""The snapshot that a member is being sent, piece by piece, by a leader whose log begins after ours ends.

The pieces are collected in ``snapshots/<index>-<term>.part``; how much is held is the size of that file, so
a transfer is gone on with after a lost connection, under another leader (one index, the same bytes on
every member), and after a crash. Each piece is synced before it is told to be held. After a power cut
there may be bytes that were never written: the checksum finds that out, and all begins anew.

A whole file is believed when its size and its SHA-256 are what it says, and farm, application, index and
term what they must be. Then it is renamed to ``.snap`` and its directory synced; the log and the older
snapshots stay what they are until a step of the core names it (`garlicfarm.raft.types.Persist`). What a
crash leaves of it before that is not sent again.

No room on the disk ends no farm: what is held stays so, and the next piece is another try. Any other
error of a write or a sync costs the part, which is nobody's only copy.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from garlicfarm.durable_files import fsync_path, make_private_directory
from garlicfarm.errors import StorageDamaged, StorageError
from garlicfarm.raft.types import SnapshotMeta
from garlicfarm.storage.snapshots import check_snapshot, claimed_size, snapshot_name
from garlicfarm.storage.tables import Genesis
from garlicfarm.wire.messages import SnapshotSyncRequest

__all__ = ["SnapshotReceiver"]

_HEAD_BYTES = 64  # enough to tell the size
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class SnapshotReceiver:
    """Takes the pieces of snapshots of the farm in ``genesis`` into ``directory``. Only one is received at a
    time: whatever is sent from its beginning takes the place of another. For one thread; blocking.

    ``problem`` says why the last piece was not taken, "" if it was. ``is_refused``: that is the
    sender's fault, not the disk's.
    """

    def __init__(self, directory: Path, genesis: Genesis) -> None:
        self._directory = directory
        self._genesis = genesis
        self.problem = ""
        self.is_refused = False

    def take(self, request: SnapshotSyncRequest) -> tuple[int, SnapshotMeta | None]:
        """How many bytes of this snapshot are held now, which is where to go on from, and what it is once
        it is whole, sound and durable under its name.

        Raises `OSError`: not even the part can be removed.
        """
        self.problem, self.is_refused = "", False
        name = snapshot_name(request.last_log_index, request.last_log_term)
        part, whole = self._directory / f"{name}.part", self._directory / f"{name}.snap"
        try:
            if whole.exists():
                fsync_path(self._directory)
                return self._held_whole(whole)
        except (FileNotFoundError, StorageError):
            pass  # deleted or damaged since: it is replaced
        held = 0
        try:
            held = self._append(part, request)
            if not self._is_whole(part, request, held):
                return held, None
            meta = self._keep(part, whole, request)
            fsync_path(self._directory)
        except StorageError as error:
            self.problem, self.is_refused = f"snapshot {name} is refused: {error}", True
        except OSError as error:
            self.problem = f"snapshot {name} cannot be stored: {error.strerror or error}"
        else:
            return held, meta
        part.unlink(missing_ok=True)
        whole.unlink(missing_ok=True)
        return 0, None

    def _append(self, part: Path, request: SnapshotSyncRequest) -> int:
        """Write and sync what is new in a piece; what is held then."""
        make_private_directory(self._directory)
        held = part.stat().st_size if part.exists() else 0
        if request.offset > held:
            return held
        if request.offset == 0 and (not held or not self._agrees(part, request.data)):
            for other in self._directory.glob("*.part"):
                other.unlink(missing_ok=True)
            held = 0
        new = request.data[held - request.offset :]
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            written = 0
            try:
                while written < len(new):
                    written += os.pwrite(descriptor, new[written:], held + written)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                os.ftruncate(descriptor, held)
                self.problem = f"{part}: {error.strerror}; the snapshot waits for room"
                return held
            os.fsync(descriptor)  # of all that is there, also by a process that died before its sync
        finally:
            os.close(descriptor)
        return held + len(new)

    # How a snapshot travels.

    def _held_whole(self, whole: Path) -> tuple[int, SnapshotMeta]:
        """Of a snapshot that is there already: how much its sender sent, and what it is."""
        return whole.stat().st_size, self._check(whole)

    def _agrees(self, part: Path, data: bytes) -> bool:
        """Whether what is held is the beginning of what is sent, as far as both go."""
        with part.open("rb") as file:
            held = file.read(len(data))
        return data.startswith(held)

    def _is_whole(self, part: Path, request: SnapshotSyncRequest, held: int) -> bool:
        """Whether nothing is left to come."""
        size = claimed_size(_head(part)) if held else None
        if size is not None and held >= size:
            return True
        if request.done and held == request.offset + len(request.data):
            raise StorageDamaged("it ends early")
        return False

    def _keep(self, part: Path, whole: Path, request: SnapshotSyncRequest) -> SnapshotMeta:
        """Check what came and give it its name."""
        meta = self._check(part)
        part.rename(whole)
        return meta

    def _check(self, path: Path) -> SnapshotMeta:
        snapshot, genesis = check_snapshot(path), self._genesis
        if snapshot.farm_id != genesis.farm_id:
            raise StorageDamaged("it is of another farm")
        if (snapshot.application, snapshot.algorithm) != (genesis.application, genesis.algorithm):
            raise StorageDamaged("it is of another application")
        return snapshot.meta


def _head(part: Path) -> bytes:
    with part.open("rb") as file:
        return file.read(_HEAD_BYTES)
