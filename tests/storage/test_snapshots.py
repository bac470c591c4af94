"""Snapshots, and a log that begins after one: durable before anything is deleted, believed when whole."""

from __future__ import annotations

import errno
import resource
import struct
import subprocess
import sys
import tracemalloc
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import trio

from garlicfarm.errors import Compacted, LocalProtocolError, StorageDamaged, StorageError, StorageVersion
from garlicfarm.raft.types import Entry, HardState, Persist
from garlicfarm.storage import (
    SNAPSHOTS,
    LogReader,
    LogStore,
    Snapshot,
    Writer,
    remove_snapshots,
    write_snapshot,
)
from garlicfarm.storage.appender import Appender
from garlicfarm.storage.segments import read_log
from garlicfarm.storage.snapshots import check_snapshot, list_snapshots, read_snapshot
from garlicfarm.wire import ClusterServer, Configuration, ValueType, encode_configuration
from tests.storage import compaction_child
from tests.storage.conftest import write

ROOT = Path(__file__).parents[2]
CHILD = (sys.executable, compaction_child.__file__)
MEMBERS = Configuration(7, 0, (ClusterServer(1, "ssl://a:1"), ClusterServer(4, "ssl://d:1")))


def snapshot(index: int, term: int = 1, state: bytes = b"state", **fields: Any) -> Snapshot:
    made = Snapshot(b"farm-id-16-bytes", "log", 2, index, term, MEMBERS, MEMBERS.servers, 7, state)
    return msgspec.structs.replace(made, **fields)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_header_of_the_file_has_the_keys_of_version_1_and_a_count(tmp_path: Path) -> None:
    write_snapshot(tmp_path, snapshot(12, 3))
    written = (tmp_path / "12-3.snap").read_bytes()
    size = int.from_bytes(written[48:52], "big")
    keys = ["farm_id", "application", "algorithm", "index", "term", "configuration", "ever"]
    assert list(msgspec.json.decode(written[52 : 52 + size])) == [*keys, "application_entries"]


def test_snapshot_written_is_read_again(tmp_path: Path) -> None:
    directory = tmp_path / SNAPSHOTS
    for state in (b"", bytes(range(256)) * 100):
        write_snapshot(directory, snapshot(12, 3, state))
        assert read_snapshot(directory / "12-3.snap") == snapshot(12, 3, state)
    assert names(directory) == ["12-3.snap"]
    assert (directory / "12-3.snap").stat().st_mode & 0o777 == 0o600


def test_snapshot_need_not_count_its_entries(tmp_path: Path) -> None:
    write_snapshot(tmp_path, snapshot(12, 3))
    path = tmp_path / "12-3.snap"
    data = path.read_bytes()
    size = int.from_bytes(data[48:52], "big")
    header = msgspec.json.decode(data[52 : 52 + size])
    assert header.pop("application_entries") == 7

    def rewrite(**more: object) -> None:
        written = msgspec.json.encode({**header, **more})
        rest = struct.pack(">I", len(written)) + written + data[52 + size :]
        path.write_bytes(struct.pack(">6sHQ32s", b"GFSNAP", 1, len(rest), sha256(rest).digest()) + rest)

    for more in ({}, {"application_entries": None}):
        rewrite(**more)
        assert read_snapshot(path) == snapshot(12, 3, application_entries=None)
        assert read_snapshot(path).meta.application_entries is None
    rewrite(application_entries=0)
    assert read_snapshot(path).meta.application_entries == 0
    rewrite(application_entries=-1)
    with pytest.raises(StorageDamaged):
        read_snapshot(path)


def test_large_state_is_in_memory_once_while_it_is_written_and_read(tmp_path: Path) -> None:
    directory = tmp_path / SNAPSHOTS
    written = snapshot(9, state=bytes(16 << 20))
    tracemalloc.start()
    try:
        write_snapshot(directory, written)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        assert read_snapshot(directory / "9-1.snap") == written
        assert tracemalloc.get_traced_memory()[1] < 18 << 20
    finally:
        tracemalloc.stop()


def test_snapshot_with_any_bit_flipped_or_cut_anywhere_is_damaged(tmp_path: Path) -> None:
    write_snapshot(tmp_path, snapshot(12, 3, b"a state"))
    path = tmp_path / "12-3.snap"
    data = path.read_bytes()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises((StorageDamaged, StorageVersion)) as caught:
            read_snapshot(path)
        assert caught.type is StorageDamaged or bit // 8 in (6, 7)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(StorageDamaged):
            read_snapshot(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(StorageDamaged):
        read_snapshot(path)
    path.with_name("13-3.snap").write_bytes(data)
    with pytest.raises(StorageDamaged, match="name"):
        read_snapshot(path.with_name("13-3.snap"))
    with pytest.raises(StorageError):
        read_snapshot(tmp_path / "1-1.snap")


@pytest.mark.parametrize(
    "header", [b'{"new":' + b"[" * 50_000, b'{"application":"\xff"}', b"[]", b""], ids=len
)
def test_snapshot_with_a_header_that_is_none_is_damaged_although_its_checksum_is_valid(
    tmp_path: Path, header: bytes
) -> None:
    data = struct.pack(">I", len(header)) + header
    path = tmp_path / "12-3.snap"
    path.write_bytes(struct.pack(">6sHQ32s", b"GFSNAP", 1, len(data), sha256(data).digest()) + data)
    with pytest.raises(StorageDamaged):
        read_snapshot(path)


def test_snapshots_removed_are_the_oldest(tmp_path: Path) -> None:
    directory = tmp_path / SNAPSHOTS
    assert list_snapshots(directory) == []
    for index in (9, 10, 100, 1):
        write_snapshot(directory, snapshot(index))
    for name in ("9-1.part", "200-1.part", "10-1.tmp"):
        (directory / name).touch()
    assert [path.name for path in list_snapshots(directory)] == [f"{i}-1.snap" for i in (100, 10, 9, 1)]
    remove_snapshots(directory, 50, 2)
    assert names(directory) == ["10-1.snap", "10-1.tmp", "100-1.snap", "200-1.part", "9-1.snap"]
    remove_snapshots(directory, 100, 2)
    assert names(directory) == ["10-1.snap", "10-1.tmp", "100-1.snap", "200-1.part"]


def test_snapshot_without_room_is_an_error_and_leaves_what_was_there(tmp_path: Path) -> None:
    write_snapshot(tmp_path, snapshot(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(StorageError, match="File too large"):
            write_snapshot(tmp_path, snapshot(2, state=bytes(20_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["1-1.snap"]


# The log that begins after a snapshot


def log(last: int) -> list[Entry]:
    """Entries of 200 bytes; the 7th, and every 50th, is a Configuration."""
    return [
        Entry(
            index,
            1 + index // 30,
            ValueType.CONFIGURATION,
            encode_configuration(Configuration(index, 0, (ClusterServer(index, f"ssl://m{index}:1"),))),
        )
        if index == 7 or index % 50 == 0
        else Entry(index, 1 + index // 30, ValueType.APPLICATION, b"%0200d" % index)
        for index in range(1, last + 1)
    ]


async def fill(directory: Path, last: int, *compact: int) -> None:
    """Entries up to ``last``, all committed, written and then compacted."""
    with closing(LogStore.open(directory, farm="farm")) as store:
        await write(store, [Persist(0, HardState(3, 2, last), None, tuple(log(last)))])
    if compact:
        await compacted(directory, *compact)


async def compacted(directory: Path, *upto: int) -> None:
    with closing(LogStore.open(directory, farm="farm")) as store:
        writer = Writer(store, lambda token: None)
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: writer.run(task_status=task_status))
            for index in upto:
                writer.compact(index)
                assert store.first_index() == index + 1
            with pytest.raises(Compacted) as gone:
                LogReader(store).entries(upto[-1] - 1, upto[-1] + 1, 0)
            assert gone.value.first_index == upto[-1] + 1
            nursery.cancel_scope.cancel()


async def test_log_compacted_begins_after_its_boundary(directory: Path) -> None:
    await fill(directory, 120)
    with closing(LogStore.open(directory, farm="farm")) as store:
        before = store.entries(91, 121, 1 << 20)
        assert store.restored is None
    write_snapshot(directory / SNAPSHOTS, snapshot(110, 4))
    await compacted(directory, 40, 90)
    with closing(LogStore.open(directory, farm="farm")) as store:
        assert (store.first_index(), store.last_index()) == (91, 120)
        assert store.term(90) == 4
        assert store.entries(91, 121, 1 << 20) == before
        for ask in (lambda: store.term(89), lambda: store.entries(90, 95, 1 << 20)):
            with pytest.raises(Compacted) as caught:
                ask()
            assert caught.value.first_index == 91
        meta = store.snapshot()
        assert (meta.index, meta.term, meta.configuration) == (110, 4, MEMBERS)
        assert store.initial_state()[1].servers[0].id == 100
        assert store.restored == snapshot(110, 4)
        assert store.problems == []


async def test_configuration_in_force_outlives_the_entry_that_held_it(directory: Path) -> None:
    await fill(directory, 45)
    write_snapshot(directory / SNAPSHOTS, snapshot(45, 2))
    await compacted(directory, 6)
    with closing(LogStore.open(directory, farm="farm")) as store:
        assert store.initial_state()[1].servers[0].id == 7
    await compacted(directory, 44)
    with closing(LogStore.open(directory, farm="farm")) as store:
        assert store.initial_state()[1].servers[0].id == 7
        assert store.initial_state()[0] == HardState(3, 2, 45)


async def test_commit_index_is_not_below_the_snapshot(directory: Path) -> None:
    with closing(LogStore.open(directory, farm="farm")) as store:
        await write(store, [Persist(0, HardState(3, 2, 5), None, tuple(log(20)))])
    write_snapshot(directory / SNAPSHOTS, snapshot(18))
    with closing(LogStore.open(directory, farm="farm")) as store:
        assert store.initial_state()[0] == HardState(3, 2, 18)


async def test_log_that_begins_late_needs_a_sound_snapshot(directory: Path) -> None:
    await fill(directory, 120)
    for index, term in ((60, 3), (100, 4), (110, 4)):
        write_snapshot(directory / SNAPSHOTS, snapshot(index, term))
    await compacted(directory, 90)
    newest, older, oldest = list_snapshots(directory / SNAPSHOTS)
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    with closing(LogStore.open(directory, farm="farm")) as store:
        assert store.restored == snapshot(100, 4)
        (problem,) = store.problems
        assert "110-4.snap is damaged" in problem
    older.unlink()
    contents = {path: path.read_bytes() for path in (directory / "log").iterdir()}
    with pytest.raises(StorageDamaged, match="begins after 90, without a snapshot") as caught:
        LogStore.open(directory, farm="farm")
    assert "60-3.snap does not meet the log" in str(caught.value)
    assert {path: path.read_bytes() for path in (directory / "log").iterdir()} == contents
    newest.unlink()
    oldest.unlink()
    (directory / SNAPSHOTS).rmdir()
    with pytest.raises(StorageDamaged, match="holds none"):
        LogStore.open(directory, farm="farm")


@pytest.mark.parametrize(
    ("strange", "problem"),
    [
        (snapshot(110, 4, farm_id=bytes(16)), "another farm"),
        (snapshot(110, 4, application="publisher"), "another farm"),
        (snapshot(110, 3), "another log"),
        (snapshot(121, 5), "does not meet"),
    ],
)
async def test_snapshot_of_something_else_is_not_believed(
    directory: Path, strange: Snapshot, problem: str
) -> None:
    await fill(directory, 120)
    write_snapshot(directory / SNAPSHOTS, strange)
    with closing(LogStore.open(directory, farm="farm")) as store:
        assert store.restored is None
        assert problem in store.problems[0]


async def test_compaction_beside_appends_gives_segments_back(directory: Path, small_segments: None) -> None:
    with closing(LogStore.open(directory, farm="farm")) as store:
        entries = log(500)
        for first in range(0, 500, 10):
            step = Persist(first, HardState(3, 2, first + 10), None, tuple(entries[first : first + 10]))
            await write(store, [step])
            store.appender = Appender(store.path, read_log(store.path))
        size = store.size_bytes()
    write_snapshot(directory / SNAPSHOTS, snapshot(500, 17))
    durable = trio.Event()
    with closing(LogStore.open(directory, farm="farm")) as store:
        writer = Writer(store, lambda token: durable.set())
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: writer.run(task_status=task_status))
            writer.compact(390)
            for token in range(20):
                durable = trio.Event()
                writer.submit(
                    Persist(token, None, None, (Entry(501 + token, 17, ValueType.APPLICATION, b"x"),))
                )
                with trio.fail_after(240):
                    await durable.wait()
            nursery.cancel_scope.cancel()
        assert store.size_bytes() < size * 0.5
    with closing(LogStore.open(directory, farm="farm")) as store:
        assert (store.first_index(), store.last_index()) == (391, 520)
        assert store.problems == []


async def test_compaction_of_what_is_not_there_or_in_no_snapshot_is_refused(directory: Path) -> None:
    await fill(directory, 20)
    with closing(LogStore.open(directory, farm="farm")) as store:
        writer = Writer(store, lambda token: None)
        for upto in (0, 1, 19, 20, 21):
            with pytest.raises(LocalProtocolError):
                writer.compact(upto)
        store.on_snapshot_written(snapshot(15).meta)
        with pytest.raises(LocalProtocolError, match="a snapshot of 15"):
            writer.compact(16)
        writer.compact(9)
        for upto in (8, 9):
            with pytest.raises(LocalProtocolError):
                writer.compact(upto)
        writer.compact(10)


async def test_error_of_a_deletion_ends_the_writer(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(directory, 20)

    def fail(appender: Appender, before: int) -> None:
        raise OSError(errno.EIO, "disk I/O error")

    with closing(LogStore.open(directory, farm="farm")) as store:
        writer = Writer(store, lambda token: None)
        store.on_snapshot_written(snapshot(20).meta)
        writer.compact(9)
        monkeypatch.setattr(Appender, "delete_segments", fail)
        with pytest.raises(StorageError, match="disk I/O"), trio.fail_after(240):
            await writer.run()


async def test_surplus_is_what_neither_count_nor_size_keeps(directory: Path) -> None:
    await fill(directory, 40)
    with closing(LogStore.open(directory, farm="farm")) as store:
        reader = LogReader(store)
        assert reader.surplus(40, 30, 1 << 20) == 10
        assert reader.surplus(40, 50, 1 << 20) == 0
        assert reader.surplus(30, 30, 1 << 20) == 0
        assert reader.surplus(40, 30, 1000) == 35
        assert reader.surplus(40, 3, 1000) == 37
        assert reader.surplus(40, 30, 999) == 36
        assert reader.surplus(40, 30, 10) == 40


@pytest.mark.slow
def test_process_killed_between_snapshots_and_deletions_loses_nothing(directory: Path) -> None:
    """Own snapshots, and received ones that its log ends before."""
    rnd = Random(8)
    reported = 0
    for _ in range(12):
        with subprocess.Popen([*CHILD, str(directory)], stdout=subprocess.PIPE) as child:
            lines = [child.stdout.readline() for _ in range(rnd.randint(5, 40))]
            child.kill()
            lines += child.stdout.readlines()
        reported = int([line for line in lines if line.endswith(b"\n")][-1].split()[1])
        first = compaction_child.check(directory, reported)
    assert first > 100
    assert reported > 500


@pytest.mark.slow
@pytest.mark.fuse
def test_power_lost_between_snapshots_and_deletions_loses_nothing_reported(tmp_path: Path) -> None:
    command = ["unshare", "-rm", sys.executable, "-m", "tests.storage.power_rounds", str(tmp_path), "10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    reported, first, unsynced = map(int, done.stdout.split())
    assert reported > 200
    assert first > 100
    assert unsynced > 0, "nothing was there to be lost"


@pytest.mark.parametrize(("version", "age"), [(0, "older"), (2, "newer")])
def test_snapshot_of_another_format_is_refused_with_the_direction(
    tmp_path: Path, version: int, age: str
) -> None:
    write_snapshot(tmp_path, snapshot(3))
    (path,) = list_snapshots(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:6] + struct.pack(">H", version) + data[8:])
    said = (
        rf"snap has format version {version}, .*knows 1\. Nothing was changed; use the {age} garlicfarm that"
    )
    for read in (read_snapshot, check_snapshot):
        with pytest.raises(StorageVersion, match=said):
            read(path)
