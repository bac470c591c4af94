"""Snapshots of an application's state: what makes the entries up to its index unnecessary.

A file ``<index>-<term>.snap`` is written beside (``.part``), synced, renamed, and its directory synced;
it is checked as a whole before anything in it is believed::

    magic 6 bytes | version u16 | size u64 | SHA-256 32 bytes | header_size u32 | header | state

big-endian; size and SHA-256 are of all that follows them. The header is JSON: the farm's id, the
application and its algorithm's version, index and term of the last entry in the state, the
Configuration in force there, and the ids that were ever a member's.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from garlicfarm.errors import StorageDamaged, StorageError, StorageVersion
from garlicfarm.storage.directory import fsync_path
from garlicfarm.storage.schema import Corrupt, configuration_of
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import Configuration

__all__ = ["Snapshot", "list_snapshots", "read_snapshot", "remove_snapshots", "write_snapshot"]

_MAGIC = b"GFSNAP"
_VERSION = 1
_HEAD = struct.Struct(">6sHQ32s")
_HEADER_SIZE = struct.Struct(">I")
_NAME = re.compile(r"(\d+)-(\d+)\.snap", re.ASCII)


class Snapshot(msgspec.Struct, frozen=True):
    """The state after all entries up to ``index``. ``ids``: every id that was a member's up to there."""

    farm_id: bytes
    application: str
    algorithm: int
    index: int
    term: int
    configuration: Configuration
    ids: tuple[int, ...]
    state: bytes


class _Header(msgspec.Struct):
    farm_id: bytes
    application: str
    algorithm: int
    index: int
    term: int
    configuration: bytes
    ids: tuple[int, ...]


def write_snapshot(directory: Path, snapshot: Snapshot) -> None:
    """Write a snapshot into ``directory``, made if it is missing; durable on return. Blocking.

    Raises `StorageError`: the system refuses, there is no new snapshot.
    """
    header = msgspec.json.encode(
        _Header(
            snapshot.farm_id,
            snapshot.application,
            snapshot.algorithm,
            snapshot.index,
            snapshot.term,
            encode_configuration(snapshot.configuration),
            snapshot.ids,
        )
    )
    body = _HEADER_SIZE.pack(len(header)) + header + snapshot.state
    path = directory / f"{snapshot.index}-{snapshot.term}.snap"
    part = path.with_suffix(".part")
    try:
        if not directory.exists():
            directory.mkdir(mode=0o700)
            fsync_path(directory.absolute().parent)
        try:
            with part.open("wb") as file:
                file.write(_HEAD.pack(_MAGIC, _VERSION, len(body), sha256(body).digest()))
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        fsync_path(directory)
    except OSError as error:
        raise StorageError(f"{part}: {error.strerror or error}; there is no new snapshot") from error


def read_snapshot(path: Path) -> Snapshot:
    """The snapshot in a file, checked as a whole. Blocking.

    Raises `StorageDamaged`, `StorageVersion` (written by another version), `StorageError` (the system
    refuses).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    try:
        magic, version, size, digest = _HEAD.unpack_from(data)
        body = memoryview(data)[_HEAD.size :]
        if magic != _MAGIC:
            raise Corrupt("it is no snapshot")
        if version != _VERSION:
            # The sum does not cover the version: flipped bits are no version.
            kind = StorageVersion if sha256(body).digest() == digest else StorageDamaged
            raise kind(f"{path} has format version {version}, this program knows {_VERSION}")
        if size != len(body) or sha256(body).digest() != digest:
            raise Corrupt("it fails its checksum")
        start = _HEADER_SIZE.size + _HEADER_SIZE.unpack_from(body)[0]
        header = msgspec.json.decode(body[_HEADER_SIZE.size : start], type=_Header)
        configuration = configuration_of(header.configuration)
        if path.name != f"{header.index}-{header.term}.snap":
            raise Corrupt("its name is not its own")
    except (struct.error, msgspec.DecodeError, Corrupt) as error:
        raise StorageDamaged(f"{path} is damaged: {error}") from error
    return Snapshot(
        header.farm_id,
        header.application,
        header.algorithm,
        header.index,
        header.term,
        configuration,
        header.ids,
        bytes(body[start:]),
    )


def list_snapshots(directory: Path) -> Sequence[Path]:
    """The snapshots' files, the newest first; none where there is no such directory. Raises `OSError`."""
    if not directory.exists():
        return []
    found = [(match, path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for match, path in sorted(found, key=lambda pair: int(pair[0][1]), reverse=True)]


def remove_snapshots(directory: Path, keep: int) -> None:
    """Delete all but the ``keep`` newest, and what a killed process left half written. Not beside
    `write_snapshot`. Blocking. Raises `StorageError`: the system refuses."""
    try:
        for path in [*list_snapshots(directory)[keep:], *directory.glob("*.part")]:
            path.unlink()
    except OSError as error:
        raise StorageError(f"{directory}: {error.strerror or error}") from error
