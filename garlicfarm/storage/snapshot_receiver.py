"""Receiving a snapshot, piece by piece, from a leader whose log begins after ours ends.

The pieces are collected in ``snapshots/<index>-<term>.part``; the size of that file is how much is held. So a
transfer is resumed after a lost connection, under another leader (the snapshot of one index has the same
bytes on every member), and after a crash. Each piece is synced before it is acknowledged. If a power cut
leaves bytes that were never written, the checksum detects it and the transfer starts over.

A complete file is accepted if its size and SHA-256 are right and it is of this farm and application. Then it
is renamed to ``.snap`` and its directory synced. The log and the older snapshots stay in force until a step
of the core names the new one (`garlicfarm.raft.types.Persist`); after a crash it need not be sent again.

A full disk does not stop the farm: the part is kept, and the next piece is another attempt. After any other
error of a write or a sync the part is deleted; the sender has another copy.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from garlicfarm import descriptors
from garlicfarm.durable_files import fsync_path, make_private_directory
from garlicfarm.errors import StorageDamaged, StorageError
from garlicfarm.levels import COMPARING, unknown_algorithm
from garlicfarm.raft.types import SnapshotMeta
from garlicfarm.regular_files import open_file, reading
from garlicfarm.storage.segments import Genesis
from garlicfarm.storage.snapshots import check_snapshot, claimed_size, list_snapshots, snapshot_name
from garlicfarm.storage.state_origin import keep_origin
from garlicfarm.wire.messages import SnapshotSyncRequest

_HEAD_BYTES = 64  # enough to know the size
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class SnapshotReceiver:
    """Writes the pieces of snapshots of the farm in ``genesis`` into ``directory``. It receives one snapshot
    at a time: one that is sent from its beginning replaces another. For one thread; blocking.

    ``problem`` says why the last piece was not taken, "" if it was. ``is_refused``: that is the
    sender's fault, not the disk's.
    """

    def __init__(self, directory: Path, genesis: Genesis) -> None:
        self._directory = directory
        self._genesis = genesis
        self.problem = ""
        self.is_refused = False

    def take(self, request: SnapshotSyncRequest, source: int = 0) -> tuple[int, SnapshotMeta | None]:
        """Take a piece, which the member ``source`` sent (0: not told). Returns how many bytes of this
        snapshot are held now, the offset of the next piece; and its metadata, once it is complete, verified
        and durable under its name.

        Raises `OSError`: the part cannot be removed.
        """
        self.problem, self.is_refused = "", False
        name = snapshot_name(request.last_log_index, request.last_log_term)
        part, whole = self._directory / f"{name}.part", self._directory / f"{name}.snap"
        try:
            if whole.exists():
                fsync_path(self._directory)
                return self._held_whole(whole)
        except (FileNotFoundError, StorageError):
            pass  # deleted or damaged since: received anew
        held = 0
        try:
            held = self._append(part, request)
            if not self._is_whole(part, request, held):
                return held, None
            meta = self._keep(part, whole, request, source)
            fsync_path(self._directory)
        except StorageError as error:
            self.problem, self.is_refused = f"snapshot {name} is refused: {error}", True
        except OSError as error:
            if descriptors.is_shortage(error):  # nothing was written: the next piece is another attempt
                self.problem = f"{part}: {error.strerror}; the snapshot waits for a descriptor"
                return part.stat().st_size if part.exists() else 0, None
            self.problem = f"snapshot {name} cannot be stored: {error.strerror or error}"
        else:
            return held, meta
        part.unlink(missing_ok=True)
        whole.unlink(missing_ok=True)
        return 0, None

    def _append(self, part: Path, request: SnapshotSyncRequest) -> int:
        """Write and sync the new bytes of a piece; returns how many bytes are held then."""
        make_private_directory(self._directory)
        held = part.stat().st_size if part.exists() else 0
        if request.offset > held:
            return held
        if request.offset == 0 and (not held or not self._agrees(part, request.data)):
            for other in list_snapshots(self._directory, "part"):
                other.unlink(missing_ok=True)
            held = 0
        new = request.data[held - request.offset :]
        descriptor = open_file(part, os.O_WRONLY | os.O_CREAT)
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
            os.fsync(descriptor)  # also of what a process wrote that died before its sync
        finally:
            descriptors.close(descriptor)
        return held + len(new)

    # Overridden for JRaft, whose snapshots travel without a header.

    def _held_whole(self, whole: Path) -> tuple[int, SnapshotMeta]:
        """Size as sent, and metadata, of a snapshot that was received before."""
        return whole.stat().st_size, self._check(whole)

    def _agrees(self, part: Path, data: bytes) -> bool:
        """Whether the part and ``data`` agree where they overlap."""
        with reading(part) as file:
            held = file.read(len(data))
        return data.startswith(held)

    def _is_whole(self, part: Path, request: SnapshotSyncRequest, held: int) -> bool:
        """Whether the part is complete. Raises `StorageDamaged`: it ends early."""
        size = claimed_size(_head(part)) if held else None
        if size is not None and held >= size:
            return True
        if request.done and held == request.offset + len(request.data):
            raise StorageDamaged("it ends early")
        return False

    def _keep(self, part: Path, whole: Path, request: SnapshotSyncRequest, source: int) -> SnapshotMeta:
        """Verify the part and rename it."""
        meta = self._check(part)
        if source and meta.configuration.level >= COMPARING:
            keep_origin(self._directory.parent, source)
        part.rename(whole)
        return meta

    def _check(self, path: Path) -> SnapshotMeta:
        snapshot, genesis = check_snapshot(path), self._genesis
        if snapshot.farm_id != genesis.farm_id:
            raise StorageDamaged("it is of another farm")
        if snapshot.application != genesis.application:
            raise StorageDamaged(f"it is of another application, {snapshot.application}")
        if unknown := unknown_algorithm(snapshot.algorithm):
            raise StorageDamaged(f"it is of {unknown}")
        return snapshot.meta


def _head(part: Path) -> bytes:
    with reading(part) as file:
        return file.read(_HEAD_BYTES)
