"""Every writer of a room syncs a file first and then the directory that names it, in this order."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from garlicfarm.cli import run
from garlicfarm.config.files import rewrite
from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.credentials.member_credentials import write_secret_file
from garlicfarm.credentials.private_files import write_private_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.durable_files import replace_file
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.log_application import LogApplication
from garlicfarm.setup.provision import MemberPlan, create_node
from garlicfarm.setup.recovery import read_survivor, recover_store
from garlicfarm.storage import DataDirectory, Genesis, Snapshot, create_store, write_snapshot
from garlicfarm.storage.snapshot_receiver import SnapshotReceiver
from garlicfarm.wire.messages import ClusterServer, Configuration, SnapshotSyncRequest

FARM_ID = bytes(range(16))
MEMBERS = Configuration(0, 0, (ClusterServer(1, "ssl://a.example:1"),))
GENESIS = Genesis("farm", FARM_ID, "log", 2, MEMBERS)
SNAPSHOT = Snapshot(FARM_ID, "log", 2, 5, 1, MEMBERS, MEMBERS.servers, 4, b"state")


class Trace:
    """Each fsync: of which inode, and the directory's names at that moment if it was of a directory."""

    def __init__(self) -> None:
        self.synced: list[tuple[int, frozenset[str]]] = []

    def fsync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        names = os.listdir(descriptor) if stat.S_ISDIR(found.st_mode) else ()
        self.synced.append((found.st_ino, frozenset(names)))

    def is_durable(self, path: Path) -> bool:
        """Whether the contents were synced, and after that the directory, with the name in it."""
        inode, directory = path.stat().st_ino, path.parent.stat().st_ino
        contents = next((at for at, (synced, _) in enumerate(self.synced) if synced == inode), None)
        return contents is not None and any(
            synced == directory and path.name in names for synced, names in self.synced[contents:]
        )


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    traced = Trace()
    monkeypatch.setattr(os, "fsync", traced.fsync)
    return traced


def _users(at: Path) -> list[Path]:
    store = UserStore(at / "users")
    store.add("alice", "reader", "wonderland")
    store.add("bob", "reader", "build it up")
    return [at / "users"]


def _certificate(at: Path) -> list[Path]:
    make_certificate(at / "node.crt", at / "node.key", "a.example")
    return [at / "node.crt", at / "node.key"]


def _master_key(at: Path) -> list[Path]:
    create_keys(at / "new" / "master.key")
    return [at / "new" / "master.key"]


def _secret(at: Path) -> list[Path]:
    write_secret_file(at / "farm.secret", bytes(32))
    return [at / "farm.secret"]


def _private_file(at: Path) -> list[Path]:
    write_private_file(at / "token", b"secret")
    return [at / "token"]


def _configuration(at: Path) -> list[Path]:
    create_node(at / "node", 1, MemberPlan(endpoint="ssl://127.0.0.1:1"))
    file = at / "node" / "garlicfarm.toml"
    rewrite(file, file.read_text() + "# one line more\n")
    return [file]


def _imported_configuration(at: Path) -> list[Path]:
    create_node(at / "node", 1, MemberPlan(endpoint="ssl://127.0.0.1:1"))
    file = at / "imported.toml"
    assert run(["config", "import", str(at / "node" / "garlicfarm.toml"), "--out", str(file)]) == 0
    return [file]


def _tunnel(at: Path) -> list[Path]:
    (at / "keys.dat").write_bytes(simulated_destination(1) + b"private keys")
    create_node(at / "node", 1, MemberPlan(endpoint="i2p://a.b32.i2p:27150", listen="i2p://127.0.0.1:27150"))
    file = at / "garlicfarm-farm.conf"
    where = ["--tunnels-dir", str(at), "--keys", str(at / "keys.dat")]
    assert run(["i2p", "setup", *where, "--config", str(at / "node" / "garlicfarm.toml")]) == 0
    return [file, at / "node" / "garlicfarm.toml"]


def _data_directory(at: Path) -> list[Path]:
    DataDirectory.create(at / "data", 1)
    return [at / "data" / "node.json"]


def _store(at: Path) -> list[Path]:
    create_store(at / "store", GENESIS)
    return [*(at / "store" / "log").glob("*.seg"), at / "store" / "log"]


def _snapshot(at: Path) -> list[Path]:
    write_snapshot(at / "snapshots", SNAPSHOT)
    return [at / "snapshots" / "5-1.snap"]


def _received_snapshot(at: Path) -> list[Path]:
    write_snapshot(at / "sent", SNAPSHOT)
    sent = (at / "sent" / "5-1.snap").read_bytes()
    receiver = SnapshotReceiver(at / "received", GENESIS)
    receiver.take(SnapshotSyncRequest(5, 1, MEMBERS, 0, sent[:50], False))
    assert receiver.take(SnapshotSyncRequest(5, 1, MEMBERS, 50, sent[50:], True))[1] is not None
    return [at / "received" / "5-1.snap"]


def _recovered_store(at: Path) -> list[Path]:
    create_store(at / "store", GENESIS)
    recover_store(at / "store", 1, read_survivor(at / "store", "farm", LogApplication()))
    return [
        at / "store" / "log",
        *(at / "store" / "log").glob("*.seg"),
        *(at / "store" / "snapshots").glob("*.snap"),
    ]


WRITERS: list[Callable[[Path], list[Path]]] = [
    _users,
    _certificate,
    _master_key,
    _secret,
    _private_file,
    _configuration,
    _imported_configuration,
    _tunnel,
    _data_directory,
    _store,
    _snapshot,
    _received_snapshot,
    _recovered_store,
]


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__.strip("_"))
def test_writer_syncs_the_file_and_then_its_directory(
    writer: Callable[[Path], list[Path]], tmp_path: Path, trace: Trace
) -> None:
    written = writer(tmp_path)
    assert written
    for path in written:
        assert trace.is_durable(path), path


def test_replaced_file_has_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        replace_file(tmp_path / "file", [b"one", b"two"], 0o640)
    finally:
        os.umask(before)
    assert (tmp_path / "file").read_bytes() == b"onetwo"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_file_that_cannot_be_replaced_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    replace_file(tmp_path / "file", [b"old"], 0o600)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "file", [b"new"], 0o600)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
