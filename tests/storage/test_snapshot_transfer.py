"""A snapshot that comes in pieces: resumed wherever it stopped, believed when whole, and never in the way."""

from __future__ import annotations

import errno
import os
import resource
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.levels import HIGHEST, algorithm_of
from garlicfarm.raft.types import SnapshotMeta
from garlicfarm.storage import Genesis, Snapshot, snapshots, write_snapshot
from garlicfarm.storage.jraft_snapshots import JRaftSnapshotSender
from garlicfarm.storage.snapshot_receiver import SnapshotReceiver
from garlicfarm.storage.snapshot_sender import SnapshotSender
from garlicfarm.storage.snapshots import list_snapshots, read_snapshot
from garlicfarm.wire import ClusterServer, Configuration
from garlicfarm.wire.messages import SnapshotSyncRequest

MEMBERS = Configuration(7, 0, (ClusterServer(1, "ssl://a:1"), ClusterServer(4, "ssl://d:1")))
GENESIS = Genesis("farm", b"farm-id-16-bytes", "log", 2, None)
EVER = (*MEMBERS.servers, ClusterServer(2, "ssl://b:1"))
SENT = Snapshot(b"farm-id-16-bytes", "log", 2, 30, 2, MEMBERS, EVER, 21, bytes(range(256)))


def file_of(snapshot: Snapshot) -> bytes:
    with TemporaryDirectory() as directory:
        write_snapshot(Path(directory), snapshot)
        return (Path(directory) / f"{snapshot.index}-{snapshot.term}.snap").read_bytes()


DATA = file_of(SENT)


def piece(offset: int, end: int | None = None, data: bytes = DATA, **fields: Any) -> SnapshotSyncRequest:
    """What a leader sends of ``data`` from ``offset`` to ``end``."""
    done = end is None or end >= len(data)
    request = SnapshotSyncRequest(SENT.index, SENT.term, MEMBERS, offset, data[offset:end], done)
    return msgspec.structs.replace(request, **fields)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


@pytest.fixture
def receiver(tmp_path: Path) -> SnapshotReceiver:
    return SnapshotReceiver(tmp_path / "snapshots", GENESIS)


@pytest.mark.parametrize("size", [7, 47, 48, 49, len(DATA) - 1, len(DATA), 1 << 20])
def test_pieces_of_any_size_become_the_snapshot(
    receiver: SnapshotReceiver, tmp_path: Path, size: int
) -> None:
    held, meta = 0, None
    while meta is None:
        before = held
        held, meta = receiver.take(piece(held, held + size))
        assert held == min(before + size, len(DATA))
        assert receiver.problem == ""
        if meta is None:
            assert (tmp_path / "snapshots" / "30-2.part").stat().st_mode & 0o777 == 0o600
    assert meta == SnapshotMeta(30, 2, MEMBERS, 21)
    assert names(tmp_path / "snapshots") == ["30-2.snap"]
    assert read_snapshot(tmp_path / "snapshots" / "30-2.snap") == SENT


def test_piece_after_a_gap_or_repeated_or_overlapping_is_answered_with_what_is_held(
    receiver: SnapshotReceiver, tmp_path: Path
) -> None:
    assert receiver.take(piece(5, 10)) == (0, None)
    assert names(tmp_path / "snapshots") == []
    assert receiver.take(piece(0, 100)) == (100, None)
    assert receiver.take(piece(101, 200)) == (100, None)
    assert receiver.take(piece(50, 80)) == (100, None)
    assert receiver.take(piece(50, 130)) == (130, None)
    assert receiver.take(piece(0, 100)) == (130, None), "its beginning again: the leader goes on from there"
    assert receiver.take(piece(0, 140)) == (140, None)
    assert receiver.take(piece(140)) == (len(DATA), SnapshotMeta(30, 2, MEMBERS, 21))


def test_transfer_goes_on_after_a_restart(receiver: SnapshotReceiver, tmp_path: Path) -> None:
    receiver.take(piece(0, 350))
    again = SnapshotReceiver(tmp_path / "snapshots", GENESIS)
    assert again.take(piece(0, 300)) == (350, None)
    assert again.take(piece(350))[1] == SENT.meta


def test_whole_part_is_finished_by_any_piece(receiver: SnapshotReceiver, tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "30-2.part").write_bytes(DATA)
    assert receiver.take(piece(0, 10)) == (len(DATA), SENT.meta)


def test_snapshot_that_is_there_already_is_not_sent_again(receiver: SnapshotReceiver, tmp_path: Path) -> None:
    write_snapshot(tmp_path / "snapshots", SENT)
    assert receiver.take(piece(0, 10)) == (len(DATA), SENT.meta)
    damaged = bytearray(DATA)
    damaged[-1] ^= 1
    (tmp_path / "snapshots" / "30-2.snap").write_bytes(damaged)
    assert receiver.take(piece(0, 10)) == (10, None)
    assert receiver.take(piece(10))[1] == SENT.meta
    assert read_snapshot(tmp_path / "snapshots" / "30-2.snap") == SENT


def test_other_beginning_or_other_snapshot_takes_the_place_of_what_is_held(
    receiver: SnapshotReceiver, tmp_path: Path
) -> None:
    other = file_of(msgspec.structs.replace(SENT, state=b"other" * 100))
    receiver.take(piece(0, 200, other))
    assert receiver.take(piece(0, 100)) == (100, None), "begun anew"
    newer = msgspec.structs.replace(SENT, index=50)
    data = file_of(newer)
    assert receiver.take(piece(10, 200, data, last_log_index=50)) == (0, None), "nothing of it is held"
    assert receiver.take(piece(100, 200)) == (200, None), "nor is anything lost by it"
    assert receiver.take(piece(0, 100, data, last_log_index=50)) == (100, None)
    assert names(tmp_path / "snapshots") == ["50-2.part"]
    assert receiver.take(piece(100, None, data, last_log_index=50))[1] == newer.meta
    assert receiver.take(piece(0, 100)) == (100, None), "an older one too: a new leader may have no other"


@pytest.mark.parametrize("position", [0, 5, 7, 14, 20, 50, len(DATA) - 1])
def test_flipped_bit_is_found_and_the_transfer_begins_anew(
    receiver: SnapshotReceiver, tmp_path: Path, position: int
) -> None:
    wrong = bytearray(DATA)
    wrong[position] ^= 4
    held = 0
    while not receiver.problem:
        held, meta = receiver.take(piece(held, held + 300, bytes(wrong)))
        assert meta is None
    assert held == 0
    assert receiver.problem.startswith("snapshot 30-2 is refused: ")
    assert names(tmp_path / "snapshots") == []
    assert receiver.take(piece(0))[1] == SENT.meta


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (msgspec.structs.replace(SENT, farm_id=bytes(16)), "of another farm"),
        (msgspec.structs.replace(SENT, application="publisher"), "of another application"),
        (
            msgspec.structs.replace(SENT, algorithm=algorithm_of(HIGHEST + 1)),
            f"version {algorithm_of(HIGHEST + 1)} of the common algorithm",
        ),
        (msgspec.structs.replace(SENT, index=31), "name is not its own"),
        (msgspec.structs.replace(SENT, term=3), "name is not its own"),
    ],
)
def test_snapshot_of_something_else_is_refused(
    receiver: SnapshotReceiver, tmp_path: Path, sent: Snapshot, reason: str
) -> None:
    assert receiver.take(piece(0, None, file_of(sent))) == (0, None)
    assert reason in receiver.problem
    assert names(tmp_path / "snapshots") == []


def test_size_that_is_not_what_the_head_says_is_refused(receiver: SnapshotReceiver, tmp_path: Path) -> None:
    assert receiver.take(piece(0, None, DATA + b"x")) == (0, None)
    assert "checksum" in receiver.problem
    assert receiver.take(piece(0, None, DATA[:-1])) == (0, None)
    assert "ends early" in receiver.problem
    assert receiver.take(piece(0, None, DATA[:20])) == (0, None)
    assert "ends early" in receiver.problem
    assert names(tmp_path / "snapshots") == []


def test_absurd_size_is_refused_with_the_first_piece(
    receiver: SnapshotReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOT_BYTES", len(DATA) - 1)
    assert receiver.take(piece(0, 48)) == (0, None)
    assert "more than" in receiver.problem
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOT_BYTES", len(DATA))
    assert receiver.take(piece(0, 48)) == (48, None)


def test_disk_without_room_keeps_what_is_held_and_goes_on_later(
    receiver: SnapshotReceiver, tmp_path: Path
) -> None:
    receiver.take(piece(0, 200))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        for _ in range(2):
            assert receiver.take(piece(200, 400)) == (200, None)
            assert "waits for room" in receiver.problem
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "snapshots" / "30-2.part").stat().st_size == 200
    assert receiver.take(piece(200))[1] == SENT.meta
    assert receiver.problem == ""


@pytest.mark.parametrize("call", ["fsync", "pwrite"])
def test_error_of_the_disk_costs_the_part_and_no_more(
    receiver: SnapshotReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*arguments: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    receiver.take(piece(0, 200))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        assert receiver.take(piece(200, 400)) == (0, None)
    assert "Input/output error" in receiver.problem
    assert names(tmp_path / "snapshots") == []
    assert receiver.take(piece(0))[1] == SENT.meta


def test_rename_that_is_not_durable_is_not_told(
    receiver: SnapshotReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    receiver.take(piece(0, 200))
    with monkeypatch.context() as patch:
        patch.setattr("garlicfarm.storage.snapshot_receiver.fsync_path", fail)
        assert receiver.take(piece(200)) == (0, None)
    assert names(tmp_path / "snapshots") == []


def test_large_snapshot_is_checked_in_little_memory(tmp_path: Path) -> None:
    large = msgspec.structs.replace(SENT, state=bytes(24 << 20))
    data = file_of(large)
    receiver = SnapshotReceiver(tmp_path / "snapshots", GENESIS)
    requests = [piece(offset, offset + (1 << 20), data) for offset in range(0, len(data), 1 << 20)]
    tracemalloc.start()
    try:
        results = [receiver.take(request) for request in requests]
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()
    assert results[-1][1] == SENT.meta


@settings(max_examples=40)
@given(
    tries=st.lists(
        st.tuples(
            st.integers(0, len(DATA)), st.integers(0, len(DATA)), st.sampled_from(["", "restart", "cut"])
        ),
        max_size=12,
    ),
    size=st.integers(50, 700),
)
def test_whatever_came_before_an_honest_leader_gets_it_through(
    tries: list[tuple[int, int, str]], size: int
) -> None:
    """Pieces in any order, restarts, and files cut short by a power loss."""
    with TemporaryDirectory() as temporary:
        directory = Path(temporary) / "snapshots"
        receiver = SnapshotReceiver(directory, GENESIS)
        held, meta = 0, None
        for offset, end, event in tries:
            if event == "restart":
                receiver = SnapshotReceiver(directory, GENESIS)
            if event == "cut" and (directory / "30-2.part").exists():
                os.truncate(directory / "30-2.part", min(offset, (directory / "30-2.part").stat().st_size))
            held, meta = receiver.take(piece(offset, max(offset, end)))
            assert receiver.problem == ""
        for _ in range(len(DATA) // size + 2):
            if meta is not None:
                break
            held, meta = receiver.take(piece(held, held + size))
        assert (held, meta) == (len(DATA), SENT.meta)
        assert read_snapshot(directory / "30-2.snap") == SENT


# The sender's side


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[SnapshotSender]:
    reading = SnapshotSender(tmp_path)
    yield reading
    reading.close()


def read_all(take: Callable[[int], tuple[bytes, bool] | None]) -> bytes:
    data = b""
    while True:
        found = take(len(data))
        assert found is not None
        data += found[0]
        if found[1]:
            return data


@pytest.mark.parametrize("size", [1, 100, len(DATA) - 1, len(DATA), 1 << 20])
def test_snapshot_is_served_in_pieces_the_last_of_which_says_so(
    sender: SnapshotSender, tmp_path: Path, size: int
) -> None:
    write_snapshot(tmp_path, SENT)
    assert sender.piece(3, 0, 10) is None
    assert read_all(lambda offset: sender.piece(30, offset, size)) == DATA
    assert sender.piece(30, len(DATA), size) == (b"", True)


@pytest.mark.parametrize("offset", [1 << 40, 2**63 - 1, 2**64 - 1])
def test_piece_behind_the_end_which_a_receiver_may_name_is_empty_and_the_last(
    sender: SnapshotSender, tmp_path: Path, offset: int
) -> None:
    write_snapshot(tmp_path, SENT)
    assert sender.piece(30, offset, 100) == (b"", True)
    assert JRaftSnapshotSender(tmp_path).piece(30, offset, 100) == (b"", True)


def test_snapshot_that_was_begun_is_served_to_its_end_though_it_was_deleted(
    sender: SnapshotSender, tmp_path: Path
) -> None:
    indexes = range(30, 37)
    for index in indexes:
        write_snapshot(tmp_path, msgspec.structs.replace(SENT, index=index))
        assert sender.piece(index, 0, 100) is not None
        (tmp_path / f"{index}-2.snap").unlink()
    held = [index for index in indexes if sender.piece(index, 0, 1) is not None]
    assert held == list(indexes)[-4:], "so many files stay open, no more"
    assert read_all(lambda offset: sender.piece(36, offset, 100)) == file_of(
        msgspec.structs.replace(SENT, index=36)
    )
    assert sender.piece(36, 0, 1) is None


def test_snapshot_that_is_deleted_while_it_is_looked_for_is_gone(
    sender: SnapshotSender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retention deletes in a thread of its own."""
    write_snapshot(tmp_path, SENT)
    found = list_snapshots(tmp_path)
    monkeypatch.setattr("garlicfarm.storage.snapshot_sender.list_snapshots", lambda directory: found)
    found[0].unlink()
    assert sender.piece(30, 0, 100) is None


def test_snapshot_that_is_deleted_while_it_is_received_again_is_received_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, exists = SnapshotReceiver(tmp_path, GENESIS), Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path.name == "30-2.snap" or exists(path))
    assert receiver.take(piece(0, 100)) == (100, None)
    assert receiver.problem == ""
