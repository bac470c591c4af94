"""Snapshots as JRaft servers send and take them: the state alone, from and into our files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from garlicfarm.storage import Genesis, Snapshot
from garlicfarm.storage import jraft_snapshots as module
from garlicfarm.storage.jraft_snapshots import JRaftSnapshotReceiver, JRaftSnapshotSender
from garlicfarm.storage.snapshots import read_snapshot, write_snapshot
from garlicfarm.wire.messages import ClusterServer, Configuration, SnapshotSyncRequest

MEMBERS = Configuration(7, 1, (ClusterServer(1, "tcp://127.0.0.1:9001"), ClusterServer(5, "tcp://b:9005")))
GENESIS = Genesis("farm", b"f" * 16, "log", 2, MEMBERS)


def piece(
    offset: int, data: bytes, *, done: bool = False, index: int = 40, term: int = 3
) -> SnapshotSyncRequest:
    return SnapshotSyncRequest(index, term, MEMBERS, offset, data, done)


def any_state(state: bytes) -> None:
    pass


def test_pieces_become_a_snapshot_of_ours(tmp_path: Path) -> None:
    incoming = JRaftSnapshotReceiver(tmp_path / "snapshots", GENESIS, any_state)
    assert incoming.take(piece(0, b"one\n")) == (4, None)
    held, meta = incoming.take(piece(4, b"two\n", done=True))
    snapshot = read_snapshot(tmp_path / "snapshots" / "40-3.snap")
    assert (held, meta) == (8, snapshot.meta)
    assert (snapshot.state, snapshot.all_members) == (b"one\ntwo\n", MEMBERS.servers)
    assert (snapshot.farm_id, snapshot.application, snapshot.index, snapshot.term) == (
        b"f" * 16,
        "log",
        40,
        3,
    )
    assert sorted(path.name for path in (tmp_path / "snapshots").iterdir()) == ["40-3.snap"]
    assert incoming.take(piece(4, b"two\n", done=True)) == (8, snapshot.meta), "its answer was lost"


def test_piece_after_a_hole_and_one_that_is_not_the_last_make_nothing_whole(tmp_path: Path) -> None:
    incoming = JRaftSnapshotReceiver(tmp_path, GENESIS, any_state)
    assert incoming.take(piece(4, b"late", done=True)) == (0, None)
    assert incoming.take(piece(0, b"0123")) == (4, None)
    assert incoming.take(piece(6, b"hole", done=True)) == (4, None)
    assert incoming.take(piece(0, b"01", done=False)) == (2, None), "another server's begins anew"
    assert incoming.take(piece(2, b"xy", done=True))[0] == 4
    assert read_snapshot(tmp_path / "40-3.snap").state == b"01xy"


def test_state_larger_than_any_snapshot_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SNAPSHOT_BYTES", 10)
    incoming = JRaftSnapshotReceiver(tmp_path, GENESIS, any_state)
    assert incoming.take(piece(0, b"12345678")) == (8, None)
    assert incoming.take(piece(8, b"12345678")) == (0, None)
    assert "more than 10 bytes" in incoming.problem
    assert list(tmp_path.iterdir()) == []


def test_state_that_the_application_cannot_take_is_refused_and_may_come_again(tmp_path: Path) -> None:
    def numbers(state: bytes) -> None:
        int(state)

    incoming = JRaftSnapshotReceiver(tmp_path, GENESIS, numbers)
    assert incoming.take(piece(0, b"12")) == (2, None)
    assert incoming.take(piece(2, b"x", done=True)) == (0, None)
    assert "the application cannot take it: invalid literal" in incoming.problem
    assert list(tmp_path.iterdir()) == []
    assert incoming.take(piece(0, b"123", done=True))[1] is not None
    assert not incoming.problem


def test_refused_state_that_is_sent_again_is_refused_without_being_stored(tmp_path: Path) -> None:
    judged: list[bytes] = []

    def none(state: bytes) -> None:
        judged.append(state)
        raise ValueError("no state of ours")

    incoming = JRaftSnapshotReceiver(tmp_path, GENESIS, none)
    problems = set()
    for _ in range(module.CHECK_AGAIN_AFTER):
        if incoming.take(piece(0, b"12"))[0]:
            assert incoming.take(piece(2, b"34", done=True)) == (0, None)
        assert list(tmp_path.iterdir()) == []
        problems.add(incoming.problem)
    assert judged == [b"1234"]
    assert len(problems) == 1, "so that it is told once"
    # What comes behind the first piece may be another server's by now.
    assert incoming.take(piece(0, b"12")) == (2, None)
    assert incoming.take(piece(2, b"56", done=True)) == (0, None)
    assert judged == [b"1234", b"1256"]


@pytest.mark.parametrize(
    "other",
    [piece(0, b"99"), piece(0, b"12", index=41), piece(0, b"12", term=4)],
    ids=["data", "index", "term"],
)
def test_other_state_than_the_refused_one_is_taken(tmp_path: Path, other: SnapshotSyncRequest) -> None:
    def none(state: bytes) -> None:
        raise ValueError("no state of ours")

    incoming = JRaftSnapshotReceiver(tmp_path, GENESIS, none)
    assert incoming.take(piece(0, b"12")) == (2, None)
    assert incoming.take(piece(2, b"34", done=True)) == (0, None)
    assert incoming.take(piece(0, b"12")) == (0, None)
    assert incoming.take(other) == (2, None)


def test_what_is_sent_is_the_state_alone(tmp_path: Path) -> None:
    state = b"".join(b"line %d\n" % number for number in range(1000))
    write_snapshot(tmp_path, Snapshot(b"f" * 16, "log", 2, 40, 3, MEMBERS, MEMBERS.servers, None, state))
    with closing(JRaftSnapshotSender(tmp_path)) as outgoing:
        sent, last = b"", False
        while not last:
            piece_sent = outgoing.piece(40, len(sent), 4096)
            assert piece_sent is not None
            data, last = piece_sent
            sent += data
    assert sent == state
