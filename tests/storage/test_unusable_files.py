"""Files in the places of a store's own: no regular ones, of another version, or merely sound by checksum."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest

from garlicfarm.credentials.private_files import read_private_bytes
from garlicfarm.errors import ConfigError, StorageDamaged, StorageError, StorageMissing, StorageVersion
from garlicfarm.raft.types import HardState, Persist, SnapshotMeta
from garlicfarm.storage import (
    SNAPSHOTS,
    DataDirectory,
    LogStore,
    RankingStore,
    create_store,
    read_committed,
    read_genesis,
)
from garlicfarm.storage.appender import Appender
from garlicfarm.storage.segments import read_log, segment_name
from garlicfarm.storage.snapshots import read_snapshot
from garlicfarm.wire import ValueType
from tests.storage.conftest import GENESIS, entry


def make_fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def make_socket(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # its name may be long, the address may not
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


OTHERS = pytest.mark.parametrize(
    ("make", "said"),
    [(make_fifo, "a FIFO"), (make_socket, "a socket"), (Path.mkdir, "a directory")],
    ids=["fifo", "socket", "directory"],
)
Make = Callable[[Path], None]


@OTHERS
@pytest.mark.parametrize("name", [segment_name(1), segment_name(2), "synced"])
def test_store_with_something_else_in_the_place_of_a_file_is_refused(
    directory: Path, name: str, make: Make, said: str
) -> None:
    path = directory / "log" / name
    path.unlink(missing_ok=True)
    make(path)
    with pytest.raises(StorageError, match=rf"{name}: it is {said}, not a regular file") as caught:
        LogStore.open(directory, farm="farm")
    assert not isinstance(caught.value, StorageDamaged)
    if name == segment_name(2):
        with pytest.raises(StorageError, match=f"it is {said}"):
            read_genesis(directory)
    with pytest.raises(StorageError, match=f"it is {said}"):
        read_committed(directory)


@OTHERS
def test_snapshot_that_is_no_file_is_refused(directory: Path, make: Make, said: str) -> None:
    (directory / SNAPSHOTS).mkdir()
    path = directory / SNAPSHOTS / "3-1.snap"
    make(path)
    with pytest.raises(StorageError, match=f"it is {said}"):
        read_snapshot(path)
    with pytest.raises(StorageError, match=f"it is {said}"):
        LogStore.open(directory, farm="farm")


@OTHERS
def test_node_json_lock_and_rankings_that_are_no_files_are_refused(
    tmp_path: Path, make: Make, said: str
) -> None:
    data = tmp_path / "data"
    DataDirectory.create(data, 7)
    for name in ("lock", "node.json"):
        (data / name).unlink()
        make(data / name)
        with pytest.raises(StorageError, match=f"it is {said}"), DataDirectory.open(data):
            pass
    ranking = tmp_path / "rankings" / "query.ranking"
    ranking.parent.mkdir()
    make(ranking)
    store = RankingStore(tmp_path / "rankings")
    store.load()
    (problem,) = store.problems
    assert f"it is {said}" in problem


@OTHERS
def test_secret_that_is_no_file_is_refused(tmp_path: Path, make: Make, said: str) -> None:
    make(tmp_path / "secret")
    with pytest.raises(ConfigError, match=f"it is {said}"):
        read_private_bytes(tmp_path / "secret")


def test_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="it is a device"):
        read_private_bytes(Path("/dev/zero"))


def append(directory: Path, records: bytes) -> None:
    """A frame of these records, whose checksums are right."""
    end = read_log(directory / "log").end
    head = struct.pack(">4sII", end.mark, end.sequence, len(records))
    checksums = struct.pack(">II", crc32(head), crc32(records, end.checksum))
    with (directory / "log" / segment_name(end.number)).open("ab") as file:
        file.write(head + checksums + records)


def entry_record(index: int, size: int, value: bytes, kind: int = ValueType.APPLICATION) -> bytes:
    head = struct.pack(">BQQBI", 1, index, 1, kind, size)
    return head + struct.pack(">I", crc32(value, crc32(head))) + value


MALFORMED = {
    "half an entry's head": b"\1" + bytes(10),
    "an entry that ends beyond its frame": entry_record(1, 1000, b"short"),
    "an entry of an unknown type": entry_record(1, 5, b"value", kind=99),
    "an entry of a far index": entry_record(2**64 - 1, 5, b"value"),
    "half a hard state": b"\2" + bytes(3),
    "half a truncation": b"\3" + bytes(7),
    "a truncation before the log": b"\3" + bytes(8),
    "half a boundary": b"\4" + bytes(4),
    "a boundary without its configuration": struct.pack(">BQQI", 4, 1, 1, 500),
    "an unknown record": b"\x77",
}


@pytest.mark.parametrize("records", MALFORMED.values(), ids=MALFORMED)
def test_malformed_records_with_right_checksums_are_damage(directory: Path, records: bytes) -> None:
    append(directory, records)
    with pytest.raises(StorageDamaged):
        LogStore.open(directory, farm="farm")
    with pytest.raises(StorageDamaged):
        read_committed(directory)


@pytest.mark.parametrize("key", ["term", "commit", "boundary_index", "last_index", "previous_checksum"])
def test_header_with_a_negative_number_and_a_right_checksum_is_damage(directory: Path, key: str) -> None:
    path = directory / "log" / segment_name(1)
    data = path.read_bytes()
    magic, version, size, _ = struct.unpack_from(">8sIII", data)
    header = data[20 : 20 + size].replace(b'"%b":' % key.encode(), b'"%b":-1' % key.encode())
    head = struct.pack(">8sIII", magic, version, len(header), 0)
    path.write_bytes(head[:-4] + struct.pack(">I", crc32(header, crc32(head))) + header)
    (directory / "log" / "synced").unlink()
    with pytest.raises(StorageDamaged):
        LogStore.open(directory, farm="farm")


def test_snapshot_that_ends_in_its_header_is_damage_for_who_sends_it(directory: Path) -> None:
    (directory / SNAPSHOTS).mkdir()
    with closing(LogStore.open(directory, farm="farm", is_jraft=True)) as store:
        store.on_snapshot_written(SnapshotMeta(3, 1, GENESIS.configuration))
        (directory / SNAPSHOTS / "3-1.snap").write_bytes(b"GFSNAP")
        with pytest.raises(StorageDamaged):
            store.snapshot_chunk(3, 0, 100)


# Other versions


def others(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "log.v7").mkdir()
    (directory / "state.v7").write_bytes(b"?")


def test_store_of_unknown_files_is_refused_by_name_and_none_is_made(tmp_path: Path) -> None:
    directory = tmp_path / "farm"
    others(directory)
    said = rf"{directory} holds log\.v7, state\.v7, .*garlicfarm [0-9.]+, does not know.* use the "
    for attempt in (
        lambda: LogStore.open(directory, farm="farm"),
        lambda: read_genesis(directory),
        lambda: read_committed(directory),
        lambda: create_store(directory, GENESIS),
    ):
        with pytest.raises(StorageVersion, match=said):
            attempt()
    assert sorted(each.name for each in directory.iterdir()) == ["log.v7", "state.v7"]


def test_log_of_unknown_files_is_another_versions_not_damage(directory: Path) -> None:
    log = directory / "log"
    for path in log.glob("*.seg"):
        path.rename(path.with_suffix(".seg2"))
    with pytest.raises(StorageVersion, match=r"log holds 0000000001\.seg2, which"):
        LogStore.open(directory, farm="farm")
    with pytest.raises(StorageVersion, match="seg2"):
        read_genesis(directory)


def test_log_whose_snapshots_have_unknown_names_is_another_versions(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = read_log(directory / "log")
    with closing(Appender(directory / "log", log)) as file:
        file.write([Persist(1, HardState(1, 0, 2), entries=tuple(entry(index) for index in (1, 2, 3)))])
        file.write([], SnapshotMeta(2, 1, GENESIS.configuration))
        file.sync_all()
    (directory / SNAPSHOTS).mkdir()
    (directory / SNAPSHOTS / "2-1.state").write_bytes(b"?")
    with pytest.raises(StorageVersion, match=r"snapshots holds 2-1\.state"):
        LogStore.open(directory, farm="farm")


def test_data_directory_of_unknown_files_is_refused_and_none_is_made(tmp_path: Path) -> None:
    data = tmp_path / "data"
    others(data)
    data.chmod(0o700)
    with pytest.raises(StorageVersion, match=r"holds log\.v7, state\.v7"), DataDirectory.open(data):
        pass
    (data / "farms" / "farm").mkdir(parents=True)
    with pytest.raises(StorageVersion, match="farms holds farm"):
        DataDirectory.create(data, 7)
    assert not (data / "node.json").exists()


def test_empty_directory_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StorageMissing):
        LogStore.open(tmp_path, farm="farm")
    with pytest.raises(StorageMissing), DataDirectory.open(tmp_path):
        pass


def test_node_json_of_another_version_with_other_keys_is_refused_by_version(tmp_path: Path) -> None:
    body = b'{"cluster":"x","id":7,"version":2}'
    (tmp_path / "node.json").write_bytes(b'{"crc32":%d,' % crc32(body) + body[1:])
    with pytest.raises(StorageVersion, match="format version 2, this program"), DataDirectory.open(tmp_path):
        pass
