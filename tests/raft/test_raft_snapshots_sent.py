"""A leader sends its snapshot in pieces (Raft §7): one at a time, repeated where lost, anew where it must."""

from __future__ import annotations

from garlicfarm.raft import Role
from garlicfarm.wire import decode_snapshot_sync_request
from garlicfarm.wire.messages import SnapshotSyncRequest
from tests.raft.playbook import (
    ALL,
    APPEND,
    SNAPSHOT,
    Player,
    Stage,
    configuration_entry,
)


def _behind(entries: int = 6, batch_bytes: int = 20) -> Stage:
    """Member 1 leads and has deleted its log; member 3 has nothing."""
    stage = Stage([], [], [], extensions=ALL, batch_bytes=batch_bytes)
    stage.elect(1, 2)
    stage[1].lose(3)
    stage[1].propose(*[b"%d" % n for n in range(entries)])
    stage.settle(1, 2)
    stage[1].take_snapshot()
    return stage


def _sent(stage: Stage) -> list[SnapshotSyncRequest]:
    """The pieces on their way to 3; they stay there."""
    return [
        decode_snapshot_sync_request(request.entries[0].value)
        for _, _, request in stage[1].requests
        if request.type is SNAPSHOT
    ]


def _deliver_a_piece(stage: Stage, *, answered: bool = True) -> SnapshotSyncRequest:
    """One piece gets to member 3, and its answer back."""
    for _ in range(20):
        for _, seq, request in stage[1].sent(3):
            response = stage[3].take(request)
            if request.type is SNAPSHOT:
                if answered:
                    assert response is not None
                    stage[1].hear(seq, response)
                return decode_snapshot_sync_request(request.entries[0].value)
            assert response is not None
            stage[1].hear(seq, response)
        stage[1].wait(50)
        for _, seq, request in stage[1].sent(2):
            stage[1].hear(seq, stage[2].take(request))
    raise AssertionError("no piece comes")


def test_follower_that_needs_deleted_entries_gets_a_snapshot_and_the_rest() -> None:
    stage = _behind()
    stage[1].propose(b"+")
    for _ in range(4):
        stage.settle(1, 2, 3)
    assert [meta.index for meta in stage[3].restored] == [7]
    assert stage[3].state == stage[1].state == b"012345+"
    assert stage[3].commit == stage[1].commit == 8
    peer = stage[1].node.status().peers[3]
    assert (peer.state, peer.match_index) == ("replicate", 8)


def test_state_snapshot_is_shown_while_one_is_sent() -> None:
    stage = _behind()
    _deliver_a_piece(stage)
    assert stage[1].node.status().peers[3].state == "snapshot"


def test_pieces_are_sent_one_at_a_time_each_where_the_answer_said() -> None:
    stage = _behind()
    offsets = []
    while not stage[3].restored:
        piece = _deliver_a_piece(stage)
        assert len(_sent(stage)) <= 1
        offsets.append((piece.offset, len(piece.data), piece.done))
    assert offsets == [(0, 20, False), (20, 18, True)]


def test_heartbeats_and_commits_go_on_while_a_snapshot_is_sent() -> None:
    stage = _behind()
    _deliver_a_piece(stage, answered=False)
    beats = stage[1].sent(3)
    for _ in range(4):
        stage[1].wait(50)
        stage.deliver(1, 2)
        stage[1].propose(b"x")
    assert stage[1].node.role is Role.LEADER
    assert stage[1].commit > 7
    assert all(request.type is APPEND for _, _, request in beats)


def test_lost_piece_is_repeated_at_the_next_heartbeat() -> None:
    stage = _behind()
    _deliver_a_piece(stage)
    (before,) = _sent(stage)
    stage[1].lose(3)
    assert not _sent(stage)
    stage[1].wait(50)
    assert _sent(stage) == [before]


def test_lost_answer_to_the_last_piece_is_made_good_by_a_heartbeat() -> None:
    stage = _behind(batch_bytes=1000)
    piece = _deliver_a_piece(stage, answered=False)
    assert piece.done
    stage[1].node.report_unreachable(3, None)
    stage.settle(1, 2, 3)
    assert stage[1].node.status().peers[3].match_index == 7
    assert [meta.index for meta in stage[3].restored] == [7]


def test_new_snapshot_while_one_is_sent_lets_that_be_finished() -> None:
    stage = _behind()
    _deliver_a_piece(stage)
    stage[1].propose(b"more")
    stage.settle(1, 2)
    stage[1].take_snapshot()
    for _ in range(4):
        stage.settle(1, 2, 3)
    assert [meta.index for meta in stage[3].restored] == [7, 8]
    assert stage[3].state == stage[1].state


def test_snapshot_that_is_deleted_while_it_is_sent_is_replaced_by_the_newest() -> None:
    stage = _behind()
    _deliver_a_piece(stage)
    for _ in range(3):  # the store keeps two
        stage[1].propose(b"more")
        stage.settle(1, 2)
        stage[1].take_snapshot()
    for _ in range(5):
        stage.settle(1, 2, 3)
    # The one of 7 is gone when its next piece is due, that of 9 is the newest then.
    assert [meta.index for meta in stage[3].restored] == [9, 10]
    assert stage[3].state == stage[1].state


def test_follower_that_kept_pieces_gets_only_the_others_from_a_new_leader() -> None:
    stage = _behind(batch_bytes=10)
    stage[2].take_snapshot()
    _deliver_a_piece(stage)
    _deliver_a_piece(stage)
    stage[1].lose()
    stage.elect(2, 1)
    stage[2].propose(b"+")
    stage.settle(2, 1)
    sent = []
    for _ in range(30):
        for _, seq, request in stage[2].sent(3):
            if request.type is SNAPSHOT:
                sent.append(decode_snapshot_sync_request(request.entries[0].value).offset)
            stage[2].hear(seq, stage[3].take(request))
        stage[2].wait(50)
        if stage[3].restored:
            stage.deliver(2, 1, 3)
        else:
            stage[2].refuse(1)
    assert sent == [0, 20, 30]  # the answer to the first piece says what is held
    assert stage[3].state == stage[2].state


def test_follower_that_restarts_goes_on_at_the_bytes_it_holds() -> None:
    stage = _behind(batch_bytes=10)
    _deliver_a_piece(stage)
    _deliver_a_piece(stage)
    stage[3].crash()
    stage[1].lose(3)
    pieces = []
    while not stage[3].restored:
        pieces.append(_deliver_a_piece(stage).offset)
    assert pieces == [20, 30]


def test_follower_that_has_all_of_it_declines_and_is_sent_entries() -> None:
    """It took them of an earlier leader; this one knows when a heartbeat is accepted."""
    player = Player(1, [1] * 5, commit=5, term=1, extensions=ALL).lead()
    player.accept(peer=2)
    player.accept(peer=2)
    player.take_snapshot()
    other = Player(3, [1] * 5, commit=5)
    for _, seq, request in player.sent(3):
        player.answer(seq, request, 1, accepted=False)  # an old refusal
    ((_, seq, request),) = [item for item in player.sent(3) if item[2].type is SNAPSHOT]
    other.append(2, (5, 1), [configuration_entry(2, 6, 0)], commit=6, source=1)
    response = other.take(request)
    assert not response.accepted
    player.hear(seq, response)
    assert not player.sent(3)  # until the next heartbeat
    player.wait(50)
    kinds = []
    for _, seq, request in player.sent(3):
        kinds.append(request.type)
        player.hear(seq, other.take(request))
    assert APPEND in kinds
    peer = player.node.status().peers[3]
    assert (peer.state, peer.match_index) == ("replicate", 6)
    assert not other.restored


def test_unsound_snapshot_is_begun_anew_at_a_heartbeat() -> None:
    stage = _behind(batch_bytes=1000)
    stage[1].answer_each(stage[1].sent(3), 1, accepted=False)
    for _ in range(3):
        stage[1].wait(50)
        stage[1].accept(peer=2)
        for _, seq, request in stage[1].sent(3):
            if request.type is SNAPSHOT:
                stage[1].answer(seq, request, 0)
            else:
                stage[1].answer(seq, request, 1, accepted=False)
        assert not _sent(stage)  # no hot loop
    stage.settle(1, 2, 3)
    assert stage[3].state == stage[1].state


def test_answer_of_a_later_term_ends_the_leadership_and_the_snapshot() -> None:
    stage = _behind()
    _deliver_a_piece(stage)
    (_, seq, request), *_ = stage[1].sent(3)
    stage[1].answer(seq, request, 0, accepted=False, term=9)
    assert (stage[1].node.role, stage[1].node.term) == (Role.FOLLOWER, 9)
    assert not _sent(stage)


def test_leader_restarted_from_its_own_snapshot_goes_on() -> None:
    stage = _behind()
    stage[1].propose(b"+")
    stage.settle(1, 2)
    stage[1].crash()
    assert stage[1].node.status().applied >= 7
    stage.elect(1, 2)
    for _ in range(4):
        stage.settle(1, 2, 3)
    assert {player.state for player in stage.players.values()} == {b"012345+"}
