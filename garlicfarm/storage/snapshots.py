"""Snapshots of an application's state, which replace the entries up to their index.

A file ``<index>-<term>.snap`` is written as ``.snap.new`` (one that another member sends: ``.part``), synced,
renamed, and its directory synced. It is checked as a whole before anything in it is believed::

    magic 6 bytes | version u16 | size u64 | SHA-256 32 bytes | header_size u32 | header | state

big-endian; size and SHA-256 are of all that follows them. The header is JSON: the farm's id, the
application and its algorithm's version, index and term of the last entry in the state, the
Configuration in force there, all members up to there, removed ones too (key ``ever``), the number of
Application entries up to there (null, or missing: not known), and since level 4 the ``chain`` over all
entries (`garlicfarm.digests`). The whole file is sent to members whose log ends before ours begins.

A snapshot that is *saved*, outside of a store and under any name, also says where it comes from (key
``saved``): the farm's name, how long its epochs are, the date, and the program.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from garlicfarm.descriptors import patiently
from garlicfarm.durable_files import make_private_directory, replace_file
from garlicfarm.errors import StorageDamaged, StorageError
from garlicfarm.raft.types import SnapshotMeta
from garlicfarm.regular_files import reading
from garlicfarm.storage.damage import Corrupt, configuration_of
from garlicfarm.storage.formats import other_version
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import ClusterServer, Configuration

MAX_SNAPSHOT_BYTES = 1 << 30
"""The largest file that is written or received. Applications hold their state in memory."""

_MAGIC = b"GFSNAP"
_VERSION = 1
_HEAD = struct.Struct(">6sHQ32s")
_HEADER_SIZE = struct.Struct(">I")
_NAME = re.compile(r"(\d+)-(\d+)\.(snap|part)", re.ASCII)
_PIECE_BYTES = 1 << 20


class Saved(msgspec.Struct, frozen=True):
    """What a snapshot says of its farm outside of a store: its name, and how many Application entries make
    an epoch (D23). ``date_ms``: when it was taken, by the wall clock of the node; ``node``: its id;
    ``program``: its version of garlicfarm."""

    farm: str
    epoch_length: Annotated[int, msgspec.Meta(ge=1)]
    date_ms: int
    node: int
    program: str


class Snapshot(msgspec.Struct, frozen=True):
    """The state after all entries up to ``index``. ``all_members``: every member up to there, removed ones
    too, by id, with the last endpoint. ``application_entries``: as in `SnapshotMeta`. ``chain``: that of
    `garlicfarm.digests` there, None if it has not begun. ``saved``: None in a store."""

    farm_id: bytes
    application: str
    algorithm: int
    index: int
    term: int
    configuration: Configuration
    all_members: tuple[ClusterServer, ...]
    application_entries: int | None
    state: bytes
    chain: bytes | None = None
    saved: Saved | None = None

    @property
    def meta(self) -> SnapshotMeta:
        """What the consensus core needs to know of it."""
        return SnapshotMeta(self.index, self.term, self.configuration, self.application_entries)


class _Header(msgspec.Struct, omit_defaults=True):
    farm_id: bytes
    application: str
    algorithm: int
    index: int
    term: int
    configuration: bytes
    all_members: tuple[ClusterServer, ...] = msgspec.field(name="ever")
    application_entries: Annotated[int, msgspec.Meta(ge=0)] | None = None
    chain: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)] | msgspec.UnsetType = msgspec.UNSET
    saved: Saved | None = None


def write_snapshot(directory: Path, snapshot: Snapshot) -> None:
    """Write a snapshot into ``directory``, made if it is missing; durable on return. Blocking.

    Raises `StorageError`: the system refuses; there is no new snapshot.
    """
    path = directory / f"{snapshot_name(snapshot.index, snapshot.term)}.snap"
    try:
        parts = encode_snapshot(snapshot)
        make_private_directory(directory)
        replace_file(path, parts, 0o600)
    except StorageError as error:
        raise StorageError(f"{path}: {error}; there is no new snapshot") from error
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}; there is no new snapshot") from error


def encode_snapshot(snapshot: Snapshot) -> tuple[bytes, ...]:
    """The parts of its file, one after another. Blocking: a large state takes a while. Raises
    `StorageError`: it is too large."""
    header = msgspec.json.encode(
        _Header(
            snapshot.farm_id,
            snapshot.application,
            snapshot.algorithm,
            snapshot.index,
            snapshot.term,
            encode_configuration(snapshot.configuration),
            snapshot.all_members,
            snapshot.application_entries,
            msgspec.UNSET if snapshot.chain is None else snapshot.chain,
            snapshot.saved,
        )
    )
    parts = _HEADER_SIZE.pack(len(header)) + header, snapshot.state  # not joined: the state may be large
    size = sum(map(len, parts))
    if _HEAD.size + size > MAX_SNAPSHOT_BYTES:
        raise StorageError(f"a state of {size} bytes is too large")
    digest = sha256()
    for each in parts:
        digest.update(each)
    return _HEAD.pack(_MAGIC, _VERSION, size, digest.digest()), *parts


def read_snapshot(path: Path) -> Snapshot:
    """The snapshot in a file, checked as a whole. Blocking.

    Raises `StorageDamaged`, `StorageVersion` (written by another version), `StorageError` (the system
    refuses).
    """
    return _named(path, _read(path, keep=True))


def check_snapshot(path: Path) -> Snapshot:
    """As `read_snapshot`, but without the state: no more than a MiB of it is in memory at a time."""
    return _named(path, _read(path, keep=False))


def check_pieces(pieces: Iterable[bytes]) -> Iterator[int]:
    """Check the checksum of a snapshot's file, which comes in pieces; gives the size of each. Raises
    `Corrupt`."""
    head, digest, size = b"", sha256(), 0
    for piece in pieces:
        missing = _HEAD.size - len(head)
        head += piece[:missing]
        digest.update(piece[missing:])
        size += len(piece)
        yield len(piece)
    if len(head) < _HEAD.size or _HEAD.unpack(head) != (_MAGIC, _VERSION, size - len(head), digest.digest()):
        raise Corrupt("it fails its checksum")


def read_saved(path: Path, *, state: bool = True) -> tuple[Snapshot, Saved]:
    """The saved snapshot in a file of any name, without its state unless ``state``; and where it comes from.
    Raises as `read_snapshot`."""
    snapshot = _read(path, keep=state)
    if snapshot.saved is None:
        raise StorageError(
            f"{path} is a snapshot of a node's own store, which does not name its farm; save one with "
            "`garlicfarm snapshot save`"
        )
    return snapshot, snapshot.saved


def _named(path: Path, snapshot: Snapshot) -> Snapshot:
    """A store's snapshot, whose file is named after it."""
    if path.stem != snapshot_name(snapshot.index, snapshot.term):
        raise StorageDamaged(f"{path} is damaged: its name is not its own")
    return snapshot


def claimed_size(head: bytes) -> int | None:
    """The size of the file that begins with ``head``; None if ``head`` is too short. Raises `StorageDamaged`:
    it is not a snapshot, or larger than `MAX_SNAPSHOT_BYTES`."""
    if len(head) < _HEAD.size:
        return None
    magic, _, size, _ = _HEAD.unpack_from(head)
    if magic != _MAGIC or size > MAX_SNAPSHOT_BYTES - _HEAD.size:
        raise StorageDamaged(f"it is not a snapshot, or one of more than {MAX_SNAPSHOT_BYTES} bytes")
    return _HEAD.size + int(size)


def state_start(file: BinaryIO) -> int:
    """The position of the state in a snapshot's file. Raises `OSError`, `Corrupt`."""
    file.seek(_HEAD.size)
    head = file.read(_HEADER_SIZE.size)
    if len(head) < _HEADER_SIZE.size:
        raise Corrupt("a snapshot ends in its header")
    (header_size,) = _HEADER_SIZE.unpack(head)
    return _HEAD.size + _HEADER_SIZE.size + int(header_size)


def snapshot_name(index: int, term: int) -> str:
    """The name of a snapshot's file, without its suffix."""
    return f"{index}-{term}"


def list_snapshots(directory: Path, suffix: str = "snap") -> Sequence[Path]:
    """The snapshots' files, the newest first; none if the directory is missing. Raises `OSError`."""
    if not directory.exists():
        return []
    found = [
        (match, path)
        for path in patiently(lambda: list(directory.iterdir()))
        if (match := _NAME.fullmatch(path.name))
    ]
    newest_first = sorted(found, key=lambda pair: int(pair[0][1]), reverse=True)
    return [path for match, path in newest_first if match[3] == suffix]


def remove_snapshots(directory: Path, newest: int, keep: int) -> None:
    """Delete the snapshots up to index ``newest``, the one in use, except the ``keep`` newest; and the parts
    of such snapshots. Later ones are about to be used. Blocking. Raises `StorageError`: the system
    refuses."""
    try:
        whole, parts = (
            [path for path in list_snapshots(directory, suffix) if int(path.stem.partition("-")[0]) <= newest]
            for suffix in ("snap", "part")
        )
        for path in [*whole[keep:], *parts]:
            path.unlink(missing_ok=True)  # the receiver may have deleted its part
    except OSError as error:
        raise StorageError(f"{directory}: {error.strerror or error}") from error


def _read(path: Path, *, keep: bool) -> Snapshot:
    try:
        with reading(path) as file:
            return _checked(path, file, keep)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError, Corrupt) as error:
        raise StorageDamaged(f"{path} is damaged: {error}") from error


def _checked(path: Path, file: BinaryIO, keep: bool) -> Snapshot:
    magic, version, size, expected = _HEAD.unpack(file.read(_HEAD.size))
    if magic != _MAGIC:
        raise Corrupt("it is not a snapshot")
    left = os.fstat(file.fileno()).st_size - _HEAD.size
    start = file.read(_HEADER_SIZE.size)
    header = file.read(min(*_HEADER_SIZE.unpack(start), left))
    digest = sha256(start + header)
    state = file.read(left) if keep else b""  # in one piece: joining pieces would take twice its size
    digest.update(state)
    for piece in _pieces(file):
        digest.update(piece)
    sound = size == left and digest.digest() == expected
    if (
        version != _VERSION and sound
    ):  # the checksum does not cover the version, so a wrong one may be a flipped bit
        raise other_version(path, version, [_VERSION])
    if version != _VERSION or not sound:
        raise Corrupt("it fails its checksum")
    told = msgspec.json.decode(header, type=_Header)
    return Snapshot(
        told.farm_id,
        told.application,
        told.algorithm,
        told.index,
        told.term,
        configuration_of(told.configuration),
        told.all_members,
        told.application_entries,
        state,
        told.chain or None,
        told.saved,
    )


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece
