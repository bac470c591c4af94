"""A follower takes a snapshot in pieces (Raft §7): resumed, begun anew, declined, installed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.raft import Role, SnapshotMeta
from garlicfarm.testing.memory_storage import Stored, encode_snapshot
from garlicfarm.wire.messages import MessageType, Request, SnapshotSyncRequest
from tests.raft.playbook import (
    APPEND,
    SNAPSHOT,
    Player,
    application,
    configuration,
    configuration_entry,
)

STATE = b"the state after all of that"
FILE = encode_snapshot(STATE)


def _pieces(
    index: int = 10, term: int = 3, size: int = 20, members: tuple[int, ...] = (1, 2, 3)
) -> list[SnapshotSyncRequest]:
    """A snapshot as it travels; it names ``members``."""
    return [
        SnapshotSyncRequest(
            index,
            term,
            configuration(1, 0, members),
            at,
            FILE[at : at + size],
            at + size >= len(FILE),
        )
        for at in range(0, len(FILE), size)
    ]


def _receive(player: Player, *, in_term: int = 4, source: int = 2, **snapshot: Any) -> None:
    for piece in _pieces(**snapshot):
        player.piece(piece, in_term, source)


def test_snapshot_that_came_whole_takes_the_place_of_the_log() -> None:
    player = Player(1, [1, 1], term=2)
    for piece in _pieces():
        response = player.piece(piece, 4)
        assert (response.accepted, response.next_index) == (True, piece.offset + len(piece.data))
        assert response.type is MessageType.INSTALL_SNAPSHOT_RESPONSE
    status = player.node.status()
    assert (status.commit, status.applied, status.first_index, status.last_index) == (10, 10, 11, 10)
    assert (status.term, status.leader, status.stable) == (4, 2, 10)
    assert player.restored == [SnapshotMeta(10, 3, configuration(1, 0))]
    assert player.state == STATE
    assert player.node.configuration == configuration(1, 0)


def test_entries_go_on_behind_a_snapshot() -> None:
    player = Player()
    _receive(player)
    response = player.append(4, (10, 3), [application(4, b"+")], commit=11)
    assert (response.accepted, response.next_index) == (True, 12)
    assert player.state == STATE + b"+"
    player.crash()
    player.append(4, (11, 4), [], commit=11)
    assert player.state == STATE + b"+"
    refused = player.append(4, (12, 4))
    assert (refused.accepted, refused.next_index) == (False, 12)


def test_vote_is_judged_by_the_snapshots_index_and_term() -> None:
    player = Player()
    _receive(player)
    assert [(r.last_log_index, r.last_log_term) for _, _, r in player.campaign()] == [(10, 3)] * 2
    answers = [player.ask_vote(6, last, ordered=True) for last in ((9, 3), (99, 2), (10, 3))]
    assert [answer.accepted for answer in answers if answer] == [False, False, True]


def test_snapshot_within_what_is_committed_is_declined() -> None:
    player = Player(1, [3] * 12, commit=10)
    before = (player.commit, player.terms)
    for piece in _pieces():
        response = player.piece(piece, 4)
        assert (response.accepted, response.next_index) == (False, 0)
    assert (player.commit, player.terms) == before
    assert not player.restored
    assert player.node.leader == 2  # it follows all the same


def test_piece_of_an_earlier_term_is_refused_and_changes_nothing() -> None:
    player = Player(1, term=5)
    before = player.picture
    response = player.piece(_pieces()[0], 4)
    assert (response.accepted, response.term, response.next_index) == (False, 5, 0)
    assert player.picture == before


@pytest.mark.parametrize("entries", [0, 2])
def test_request_without_exactly_one_piece_is_refused_and_changes_nothing(entries: int) -> None:
    player = Player()
    before = player.picture
    with pytest.raises(RemoteProtocolError, match="exactly one entry"):
        player.take(Request(SNAPSHOT, 2, 1, 4, entries=(application(4),) * entries))
    assert player.picture == before


@pytest.mark.parametrize(
    "change",
    [
        {"last_log_index": 2**64 - 1},
        {"last_log_index": 2**62 + 1},
        {"last_log_term": 5},
        {"last_log_term": 0},
        {"last_log_term": 2**64 - 1},
        {"configuration": configuration(members=())},
    ],
    ids=str,
)
def test_piece_of_a_snapshot_that_no_leader_has_is_refused_and_changes_nothing(
    change: dict[str, Any],
) -> None:
    player = Player(1, [1, 1], term=3)
    before = player.picture
    with pytest.raises(RemoteProtocolError, match="no leader of this term"):
        player.piece(msgspec.structs.replace(_pieces()[-1], **change), 4)
    assert player.picture == before


def test_pieces_are_taken_up_again_at_the_bytes_held() -> None:
    player = Player()
    first, second, third = _pieces()
    player.piece(first, 4)
    player.crash()
    assert player.piece(first, 4).next_index == 20
    player.piece(second, 4)
    again = player.piece(first, 4)  # of a leader that begins at 0
    assert (again.accepted, again.next_index) == (True, 40)
    player.piece(third, 4)
    assert player.state == STATE


def test_piece_behind_a_gap_is_not_taken() -> None:
    player = Player()
    first, _, third = _pieces()
    player.piece(first, 4)
    response = player.piece(third, 4)
    assert (response.accepted, response.next_index) == (True, 20)
    assert not player.restored


def test_piece_of_another_snapshot_begins_anew() -> None:
    player = Player()
    player.piece(_pieces()[0], 4)
    assert player.piece(_pieces(index=11)[1], 4).next_index == 0
    _receive(player, index=11)
    assert [meta.index for meta in player.restored] == [11]


def test_snapshot_that_is_not_sound_is_not_installed() -> None:
    player = Player()
    *most, last = _pieces()
    for piece in most:
        player.piece(piece, 4)
    flipped = bytes([last.data[0] ^ 1]) + last.data[1:]
    broken = type(last)(
        last.last_log_index, last.last_log_term, last.configuration, last.offset, flipped, True
    )
    assert player.piece(broken, 4).next_index == 0
    assert not player.restored
    assert player.commit == 0
    _receive(player)
    assert player.state == STATE


def test_snapshot_may_come_from_two_leaders_in_turn() -> None:
    player = Player()
    first, second, third = _pieces()
    player.piece(first, 4, source=2)
    player.piece(second, 5, source=3)
    player.piece(third, 5, source=3)
    assert player.state == STATE
    assert player.node.leader == 3


def test_log_behind_a_snapshot_stays_where_it_meets_it() -> None:
    """Those entries may be acknowledged, and counted for a commit."""
    player = Player(1, [3] * 14, commit=4)
    _receive(player)
    assert player.terms == [3] * 4
    status = player.node.status()
    assert (status.first_index, status.last_index, status.commit) == (11, 14, 10)
    assert [entry.index for entry in player.disk.contents] == [11, 12, 13, 14]
    player.append(4, (14, 3), [], commit=14)
    assert [entry.index for entry in player.applied] == [11, 12, 13, 14]
    player.crash()
    assert player.terms == [3] * 4


@pytest.mark.parametrize("terms", [[2] * 14, [3] * 9, [1] * 10])
def test_log_that_does_not_meet_the_snapshot_is_dropped(terms: list[int]) -> None:
    player = Player(1, terms, commit=1)
    _receive(player)
    assert player.terms == []
    assert player.disk.contents == ()
    status = player.node.status()
    assert (status.first_index, status.last_index) == (11, 10)
    assert player.append(4, (10, 3), [application(4)], commit=11).accepted
    assert player.applied[-1].index == 11


@pytest.mark.parametrize("meets", [True, False])
def test_configurations_of_the_log_below_a_snapshot_are_past(meets: bool) -> None:
    player = Player()
    entries = [
        configuration_entry(1, 1, 0),
        application(1),
        configuration_entry(3, 3, 1, (1, 2)),
        *[application(3 if meets else 2 + 1)] * 7,
        configuration_entry(3, 11, 3, (1, 2, 3, 4)),
    ]
    player.append(3, (0, 0), entries, commit=1)
    _receive(player, term=3 if meets else 4, members=(1, 2), in_term=5)
    assert player.member_ids == [1, 2]
    commit = 11
    entry = [] if meets else [application(5)]
    previous = (11, 3) if meets else (10, 4)
    player.append(5, previous, entry, commit=commit)
    expected = [1, 2, 3, 4] if meets else [1, 2]
    assert player.member_ids == expected


def test_piece_is_answered_when_it_is_stored_and_the_last_when_it_is_the_log() -> None:
    player = Player()
    player.slow_disk = True
    pieces = _pieces()
    for piece in pieces[:-1]:
        assert player.piece(piece, 4) is None
    player.piece(pieces[-1], 4)
    token = player.token
    for _ in range(len(pieces) + 1):  # the term, and the pieces
        player.sync()
    assert token not in player.responses
    assert player.commit == 10
    assert not player.restored  # the application waits too
    player.sync()
    assert player.responses[token].next_index == len(FILE)
    assert [meta.index for meta in player.restored] == [10]


def test_entries_that_come_before_the_snapshot_is_durable_are_handed_out_after_it() -> None:
    player = Player()
    player.slow_disk = True
    _receive(player)
    for _ in range(1 + len(_pieces())):
        player.sync()
    player.append(4, (10, 3), [application(4, b"+")], commit=11)
    assert player.terms == [4]
    assert (player.commit, player.applied, player.restored) == (11, [], [])
    player.sync()  # the snapshot
    assert ([meta.index for meta in player.restored], player.applied) == ([10], [])
    player.sync()  # the entry
    assert player.state == STATE + b"+"


def test_entries_that_were_durable_before_the_snapshot_are_handed_out_after_it() -> None:
    player = Player(1, [3] * 14, commit=4)
    player.slow_disk = True
    _receive(player)
    for _ in range(1 + len(_pieces())):
        player.sync()
    player.append(4, (14, 3), commit=14)
    assert player.commit == 14
    assert [entry.index for entry in player.applied] == [1, 2, 3, 4]
    player.sync()
    assert [meta.index for meta in player.restored] == [10]
    assert [entry.index for entry in player.applied] == [11, 12, 13, 14]


def test_entries_and_snapshot_of_one_write_come_in_this_order() -> None:
    player = Player()
    player.slow_disk = True
    _receive(player)
    for _ in range(len(_pieces())):
        player.sync()
    stored = player.disk.sync()  # of the last piece; nothing is asked of the core yet
    assert isinstance(stored, Stored)
    player.node.report_chunk_stored(stored.token, stored.held, stored.meta)
    player.node.step(Request(APPEND, 2, 1, 4, 3, 10, 11, (application(4, b"+"),)), 99)
    player.turn()
    (persist,) = player.writes
    assert (persist.snapshot.index, [entry.index for entry in persist.entries]) == (10, [11])
    player.sync()
    assert player.state == STATE + b"+"
    assert [entry.index for entry in player.applied] == [11]


@pytest.mark.parametrize("writes", range(8))
@pytest.mark.parametrize("meets", [True, False])
def test_restart_at_any_point_of_a_snapshot_ends_with_all_of_it(writes: int, meets: bool) -> None:
    player = Player(1, [3] * 12 if meets else [2] * 12, commit=2)
    player.slow_disk = True
    _receive(player)
    for _ in range(writes):
        if player.disk.pending:
            player.sync()
    player.crash()
    player.slow_disk = False
    assert player.commit in (2, 10)
    _receive(player)
    assert player.commit == 10
    player.append(4, (10, 3), [application(4, b"+")], commit=11)
    assert player.state == STATE + b"+"
    assert player.terms[0] == 4 if not meets else player.terms[:1] == [4]


def test_older_write_that_is_done_after_the_snapshot_brings_nothing_back() -> None:
    player = Player(1, [1])
    player.slow_disk = True
    player.append(2, (1, 1), [application(2)] * 12)  # to be given up
    _receive(player, source=3)
    while player.disk.pending:
        player.sync()
        assert player.node.status().stable <= player.node.status().last_index
    assert (player.terms, player.disk.contents) == ([], ())
    assert player.state == STATE


def test_snapshot_received_by_one_that_leads_by_now_is_not_installed() -> None:
    player = Player(1, [3] * 12, term=4)
    player.slow_disk = True
    _receive(player)
    held = []
    while player.disk.pending:
        held.append(player.disk.sync())
    player.slow_disk = False
    player.doubt()
    player.lead()
    for stored in held[:-1]:
        if not isinstance(stored, Stored):
            player.node.report_persisted(stored.token)
    last = held[-1]
    assert isinstance(last, Stored)
    player.node.report_chunk_stored(last.token, last.held, last.meta)
    player.turn()
    assert player.node.role is Role.LEADER
    assert not player.restored
    assert player.terms == [3] * 12 + [5]


def test_snapshot_that_was_overtaken_by_entries_is_not_installed() -> None:
    player = Player(1, [3] * 12)
    player.slow_disk = True
    _receive(player)
    player.append(4, (12, 3), [], commit=12)
    player.sync_all()
    assert not player.restored
    assert [entry.index for entry in player.applied] == list(range(1, 13))
