"""A node's data directory: the node's identity, and the lock that admits one process at a time.

::

    data/lock         flock, held while a process uses the directory
    data/node.json    {"crc32", "id", "made", "version"}; crc32 covers the other keys as sorted JSON
    data/farms/       one store per farm (`garlicfarm.storage.log_store`)

`credentials` and `setup` keep tls/, secrets/, users and local.password here too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from zlib import crc32

import msgspec

from garlicfarm.durable_files import fsync_path, locked, owner_of, replace_file
from garlicfarm.errors import (
    ConfigError,
    LocalProtocolError,
    StorageDamaged,
    StorageError,
    StorageInUse,
    StorageMissing,
)
from garlicfarm.names import FARM_NAME_RULE, is_farm_name
from garlicfarm.regular_files import read_file
from garlicfarm.storage.damage import unknown_files
from garlicfarm.storage.formats import other_version

FORMAT_VERSION = 1
_OF_CREDENTIALS = {"admin.url", "farms", "local.password", "lock", "node.json.new", "secrets", "tls", "users"}

LOST_STORE = (
    "Is its disk mounted, and is node.data_dir right? A member whose store is lost cannot return under its "
    "id: on another member's machine remove it with `garlicfarm member remove ID` and make a token with "
    "`garlicfarm member token`, then use `garlicfarm node join` here, in a new directory"
)
"""What to do where a configured node has no store. It may have been a member: it must not get a new one."""


class _Node(msgspec.Struct, frozen=True):
    crc32: int
    id: int
    made: str
    version: int

    def checksum(self) -> int:
        return crc32(msgspec.json.encode({"id": self.id, "made": self.made, "version": self.version}))


class DataDirectory:
    """An opened data directory: ``path``, and ``node_id`` (1 … 2**31−1), which never changes."""

    def __init__(self, path: Path, node_id: int) -> None:
        self.path = path
        self.node_id = node_id

    @staticmethod
    def create(path: Path, node_id: int) -> None:
        """Make a data directory, durably; its parent must exist.

        An existing directory is used if it is private (0700) and holds no node yet, so that an interrupted
        ``create`` can be repeated. Nothing is overwritten.

        Raises `StorageInUse` (another process uses it), `StorageError` (it holds a node, is open to others,
        or cannot be written); the caller has to solve them.
        """
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            if path.stat().st_mode & 0o077:
                raise StorageError(f"{path} is open to others; make it private (chmod 700) or name a new one")
            with _locked(path / "lock"):
                if (path / "node.json").exists():
                    raise StorageError(f"{path} is the data directory of a node already; name a new one")
                if unknown := unknown_files(path / "farms", ()):
                    raise unknown
                (path / "farms").mkdir(mode=0o700, exist_ok=True)
                made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                node = _Node(0, node_id, made, FORMAT_VERSION)
                line = msgspec.json.encode(msgspec.structs.replace(node, crc32=node.checksum()))
                replace_file(path / "node.json", [line], 0o600)  # last: a directory without it has no node
            fsync_path(path.absolute().parent)
        except OSError as error:
            raise StorageError(f"cannot make the data directory {path}: {error.strerror}") from error

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[DataDirectory]:
        """Lock a data directory; the lock is released at the end, or by the kernel when the process dies.

        Raises `StorageMissing`, `StorageInUse`, `StorageVersion`, `StorageDamaged` (node.json),
        `StorageError` (the operating system refuses), and `ConfigError` (this is root, and the directory
        belongs to another user). Only the lock file is changed.
        """
        try:
            data = read_file(path / "node.json")
        except FileNotFoundError:
            if path.is_dir() and (unknown := unknown_files(path, _OF_CREDENTIALS)):
                raise unknown from None
            raise StorageMissing(
                f"this node's store is missing: {path} is not the data directory of a node. {LOST_STORE}"
            ) from None
        except OSError as error:
            raise StorageError(f"cannot read {error.filename}: {error.strerror}") from error
        node = _decode_node(data, path / "node.json")
        _check_owner(path)
        with _locked(path / "lock"):
            yield cls(path, node.id)

    def farm_directory(self, name: str) -> Path:
        """The directory of the farm's store, existing or not. Raises `LocalProtocolError`: not a farm's
        name."""
        if not is_farm_name(name):
            raise LocalProtocolError(f"{name!r} is not a farm's name: {FARM_NAME_RULE}")
        return self.path / "farms" / name


def _check_owner(path: Path) -> None:
    if os.geteuid() == 0 and path.stat().st_uid != 0:
        user = owner_of(path)
        raise ConfigError(
            [
                f"{path} belongs to the user {user}, who could not read what root leaves there; run this as "
                f"that user: sudo -u '{user}' garlicfarm …"
            ]
        )


def _decode_node(data: bytes, where: Path) -> _Node:
    try:
        found = msgspec.json.decode(data, type=dict[str, object])
        checksum, version = found.pop("crc32", None), found.get("version")
        # First: another version may have other keys.
        if version != FORMAT_VERSION and checksum == crc32(msgspec.json.encode(found, order="sorted")):
            raise other_version(where, version, [FORMAT_VERSION])
        node = msgspec.json.decode(data, type=_Node)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StorageDamaged(f"{where}: {error}; restore it from a backup") from error
    if node.crc32 != node.checksum():
        raise StorageDamaged(f"{where} fails its checksum; restore it from a backup")
    return node


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path))
        except BlockingIOError as error:
            raise StorageInUse(f"another process uses {path.parent}; stop it first") from error
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}") from error
        yield
