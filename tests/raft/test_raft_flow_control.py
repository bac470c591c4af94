"""What a leader has on its way to a follower: probe or window, batches, heartbeats, commit notices."""

from __future__ import annotations

from typing import Any

import pytest

from garlicfarm.wire import encode_request
from garlicfarm.wire.messages import MessageType, Response
from tests.raft.playbook import ALL, Player, Stage, leader_of


def _leader(entries: int = 0, **config: Any) -> Player:
    """A leader whose followers have all of its log, and that then was given entries of 10 bytes."""
    player = leader_of(**config)
    for _ in range(entries):
        player.node.propose((b"0123456789",), 0)
        player.turn()
    return player


def _sizes(player: Player, peer: int = 2) -> list[int]:
    return [len(request.entries) for _, _, request in player.sent(peer)]


def test_followers_that_lack_the_same_entries_are_sent_the_same_tuple() -> None:
    player = _leader()
    for value in (b"0", b"1"):
        player.node.propose((value, value), 0)
        player.turn()
        (*_, to_one), (*_, to_other) = player.sent(2)[-1], player.sent(3)[-1]
        assert [entry.value for entry in to_one.entries] == [value, value]
        assert to_one.entries is to_other.entries


def test_probe_one_request_is_on_its_way_until_the_logs_are_known_to_meet() -> None:
    player = Player(1, [1, 1]).lead()
    player.node.propose((b"x",), 1)
    player.turn()
    ((_, seq, request),) = player.sent(2)
    assert player.node.status().peers[2].state == "probe"
    player.answer(seq, request, 1, accepted=False)
    ((_, seq, request),) = player.sent(2)
    assert (request.last_log_index, len(request.entries)) == (0, 4)
    player.answer(seq, request, 5)
    assert player.node.status().peers[2].state == "replicate"
    assert player.node.status().peers[2].match_index == 4


@pytest.mark.parametrize("window", [1, 2, 5])
def test_replicate_window_bounds_the_messages_on_their_way(window: int) -> None:
    player = _leader(12, max_inflight_messages=window)
    requests = player.sent(2)
    assert [len(request.entries) for _, _, request in requests] == [1] * window
    _, seq, request = requests[0]
    player.answer(seq, request, request.last_log_index + 2)
    assert _sizes(player) == [12 - window]  # all that waited, in one message


def test_replicate_window_bounds_the_bytes_on_their_way() -> None:
    player = _leader(12, max_inflight_bytes=25)
    requests = player.sent(2)
    assert [len(request.entries) for _, _, request in requests] == [1, 1, 1]  # the third goes over it
    for _, seq, request in requests:
        assert not player.sent(2)
        player.answer(seq, request, request.last_log_index + 2)
        break
    assert _sizes(player) == [9]


def test_batch_is_bounded_by_bytes_but_holds_at_least_one_entry() -> None:
    for limit, expected in ((1, [1] * 7), (9, [1] * 7), (30, [3, 3, 1]), (1000, [7])):
        player = _leader(batch_bytes=limit)
        player.node.propose((b"0123456789",) * 7, 0)
        player.turn()
        assert _sizes(player) == expected


def test_batch_of_entries_without_bytes_is_bounded_too() -> None:
    player = _leader(batch_bytes=130)
    player.node.propose((b"",) * 25, 0)
    player.turn()
    assert _sizes(player) == [11, 11, 3]


def test_batches_go_on_across_what_is_durable_and_what_is_not() -> None:
    player = Player(1, [1, 1]).lead()
    player.slow_disk = True
    player.node.propose((b"x",), 0)
    player.turn()
    ((_, seq, request),) = player.sent(2)
    player.answer(seq, request, 1, accepted=False)
    ((_, seq, request),) = player.sent(2)
    assert [entry.term for entry in request.entries] == [1, 1, 2]
    player.answer(seq, request, 4)
    assert _sizes(player) == [1]


def test_pipelined_requests_carry_on_where_the_one_before_ended() -> None:
    player = _leader(4)
    assert [request.last_log_index for _, _, request in player.sent(2)] == [1, 2, 3, 4]
    assert player.node.status().peers[2].next_index == 6


def test_refusal_in_the_window_begins_a_probe_and_later_answers_do_not_count() -> None:
    player = _leader(4)
    requests = player.sent(2)
    for position, (_, seq, request) in enumerate(requests[1:]):
        player.answer(seq, request, 2, accepted=position == 2)
    peer = player.node.status().peers[2]
    assert (peer.state, peer.match_index, peer.inflight) == ("probe", 1, 1)
    assert _sizes(player) == [4]


@pytest.mark.parametrize("hint", [0, 1, 3, 99])
def test_refusal_never_moves_below_what_is_known_to_match_nor_forward(hint: int) -> None:
    player = _leader(4)
    _, seq, request = player.sent(2)[2]
    player.answer(seq, request, hint, accepted=False)
    ((_, _, request),) = player.sent(2)
    assert 1 <= request.last_log_index <= 3


def test_accepted_append_counts_up_to_the_next_index_of_its_answer_and_the_rest_is_sent_again() -> None:
    """As JRaft's leader counts it; a JRaft follower may take fewer entries than it was sent."""
    player = _leader()
    player.propose(*[b"x"] * 8)
    player.propose(b"y")
    (_, seq, request), _ = player.sent(2)
    assert (request.last_log_index, len(request.entries)) == (1, 8)
    player.answer(seq, request, 6)
    assert player.commit == 5
    peer = player.node.status().peers[2]
    assert (peer.state, peer.match_index, peer.inflight) == ("probe", 5, 1)
    ((_, seq, request),) = player.sent(2)
    assert (request.last_log_index, len(request.entries)) == (5, 5)
    player.answer(seq, request, 11)
    peer = player.node.status().peers[2]
    assert (peer.state, peer.match_index) == ("replicate", 10)
    assert player.commit == 10


@pytest.mark.parametrize("next_index", [15, 21])
def test_accepted_probe_counts_up_to_the_next_index_of_its_answer(next_index: int) -> None:
    player = Player(1, [1] * 20).lead()
    ((_, seq, request),) = player.sent(2)
    assert (request.last_log_index, len(request.entries)) == (20, 1)
    player.answer(seq, request, next_index)
    peer = player.node.status().peers[2]
    assert (peer.state, peer.match_index) == ("probe", next_index - 1)
    ((_, seq, request),) = player.sent(2)
    assert (request.last_log_index, len(request.entries)) == (next_index - 1, 22 - next_index)
    player.answer(seq, request, next_index)
    assert not player.sent(2)


@pytest.mark.parametrize("next_index", [0, 1])
def test_accepted_probe_that_counts_for_nothing_is_repeated_with_the_next_heartbeat(next_index: int) -> None:
    player = Player(1, [1] * 20).lead()
    for _ in range(4):
        ((_, seq, request),) = player.sent(2)
        assert (request.last_log_index, len(request.entries)) == (20, 1)
        player.answer(seq, request, next_index)
        assert not player.sent(2)
        peer = player.node.status().peers[2]
        assert (peer.state, peer.match_index) == ("probe", 0)
        player.accept(peer=3)
        player.wait(50)


@pytest.mark.parametrize("next_index", [0, 1, 2])
def test_accepted_append_that_counts_for_nothing_is_repeated_with_the_next_heartbeat(next_index: int) -> None:
    player = _leader(1)
    for _ in range(4):
        ((_, seq, request),) = player.sent(2)
        assert (request.last_log_index, len(request.entries)) == (1, 1)
        player.answer(seq, request, next_index)
        assert not player.sent(2)
        peer = player.node.status().peers[2]
        assert (peer.state, peer.match_index) == ("probe", 1)
        player.accept(peer=3)
        player.accept(peer=3)
        player.wait(50)


def test_accepted_append_counts_no_further_than_it_was_sent() -> None:
    player = _leader(4)
    (_, seq, request), *_ = player.sent(2)
    player.answer(seq, request, 2**64 - 1)
    peer = player.node.status().peers[2]
    assert (peer.state, peer.match_index, peer.inflight) == ("replicate", 2, 3)


@pytest.mark.parametrize("next_index", [0, 1, 3])
def test_short_answer_to_a_heartbeat_lowers_no_match_index(next_index: int) -> None:
    player = _leader(4)
    player.accept()
    player.accept()
    player.wait(50)
    ((_, seq, request),) = player.sent(2)
    assert not request.entries
    player.answer(seq, request, next_index)
    peer = player.node.status().peers[2]
    assert (peer.state, peer.match_index) == ("replicate", 5)
    assert not player.sent(2)


@pytest.mark.parametrize("hint", [0, 3, 99])
def test_refusal_of_what_was_acknowledged_is_asked_again_with_the_next_heartbeat(hint: int) -> None:
    """It forgot its log, as one that syncs nothing may."""
    player = _leader(1)
    for _ in range(4):
        (_, seq, request), *_ = player.sent(2)
        assert request.last_log_index == 1
        player.answer(seq, request, hint, accepted=False)
        assert not player.sent(2)
        assert player.node.status().peers[2].match_index == 1
        player.accept(peer=3)
        player.wait(50)


def test_old_answer_takes_nothing_back() -> None:
    player = _leader(3)
    requests = player.sent(2)
    for _, seq, request in reversed(requests):
        player.answer(seq, request, request.last_log_index + 2)
    assert player.node.status().peers[2].match_index == 4
    player.answer_each(requests, 1, accepted=False)
    assert player.node.status().peers[2].state == "replicate"


def test_lost_request_is_repeated_at_the_next_heartbeat_and_not_before() -> None:
    player = _leader(3)
    (_, seq, _), *_ = player.sent(2)
    player.node.report_unreachable(2, seq)
    player.node.report_unreachable(2, seq + 2)  # of the same lost connection
    player.node.propose((b"x",), 1)
    player.turn()
    assert not player.sent(2)
    player.wait(50)
    ((_, _, request),) = player.sent(2)
    assert (request.last_log_index, len(request.entries)) == (1, 4)


def test_peer_that_cannot_be_reached_is_tried_once_a_heartbeat() -> None:
    player = _leader()
    for _ in range(5):
        player.wait(50)
        ((_, seq, _),) = player.sent(2)
        player.node.report_unreachable(2, seq)
        player.turn()
        assert not player.sent(2)
        player.accept(peer=3)


@pytest.mark.parametrize("known", [True, False], ids=["request", "peer"])
def test_probe_that_is_lost_begins_again_where_it_was(known: bool) -> None:
    """A follower that is down says nothing of its log: only a refusal does."""
    player = Player(1, [1] * 20).lead()
    for _ in range(3):
        ((_, seq, request),) = player.sent(2)
        assert request.last_log_index == 20
        player.node.report_unreachable(2, seq if known else None)
        player.accept(peer=3)
        player.wait(50)
    ((_, seq, request),) = player.sent(2)
    assert (request.last_log_index, len(request.entries)) == (20, 1)
    player.answer(seq, request, 20, accepted=False)
    player.lose(2)  # the connection breaks again
    player.wait(50)
    ((_, seq, request),) = player.sent(2)
    assert (request.last_log_index, len(request.entries)) == (19, 2)
    player.answer(seq, request, 22)
    assert player.node.status().peers[2].match_index == 21


def test_follower_that_was_down_at_the_election_is_sent_what_it_lacks_and_no_more() -> None:
    stage = Stage([1] * 1000, [1] * 1000, [1] * 999, extensions=ALL)
    stage.elect(1, 2)
    for _ in range(10):
        stage[1].wait(60)
        stage.deliver(1, 2)
    assert stage[1].commit == 1001
    stage[1].wait(60)
    sizes = []
    while requests := stage[1].sent(3):
        for _, seq, request in requests:
            sizes.append(len(encode_request(request)))
            stage[1].hear(seq, stage[3].take(request))
    assert stage[3].commit == 1001
    assert sum(sizes) < 1000


def test_lost_request_in_the_window_is_sent_again_from_behind_what_matches() -> None:
    player = _leader(4)
    _, _, (_, seq, _), *_ = player.sent(2)
    player.node.report_unreachable(2, seq)
    peer = player.node.status().peers[2]
    assert (peer.state, peer.match_index, peer.next_index) == ("probe", 1, 2)


def test_peer_that_is_connected_again_is_tried_before_the_next_heartbeat() -> None:
    player = _leader(1)
    ((_, seq, request),) = player.sent(2)
    player.node.report_unreachable(2, seq)
    player.turn()
    assert not player.sent(2)
    player.node.set_extensions(2, frozenset())
    player.turn()
    assert [again for _, _, again in player.sent(2)] == [request]


def test_heartbeat_is_spared_where_entries_go() -> None:
    player = _leader()
    for _ in range(4):
        player.wait(30)
        player.node.propose((b"x",), 1)
        player.turn()
    requests = player.sent(2)
    assert [len(request.entries) for _, _, request in requests] == [1] * 4


def test_heartbeats_confirm_no_more_than_was_sent() -> None:
    player = _leader(1)
    player.wait(50)
    requests = player.sent(2)
    assert [(r.last_log_index, len(r.entries)) for _, _, r in requests] == [(1, 1), (2, 0)]
    _, seq, request = requests[0]
    player.answer(seq, request, 3)
    assert player.node.status().peers[2].match_index == 2


def test_commit_is_told_once_and_with_entries_where_there_are_some() -> None:
    player = _leader(1)
    player.accept(peer=2)
    ((_, seq, request),) = player.sent(2)
    assert (request.commit_index, request.entries) == (2, ())
    player.answer(seq, request, 3)
    assert not player.sent(2)
    player.node.propose((b"x",), 1)
    player.turn()
    ((_, seq, request),) = player.sent(2)
    assert (request.commit_index, len(request.entries)) == (2, 1)


def test_all_deadlines_are_known_and_none_is_in_the_past() -> None:
    player = Player()
    for _ in range(200):
        deadline = player.node.deadline_ms
        assert deadline >= player.now
        player.wait(7)
    player.lead()
    for _ in range(20):
        assert player.now < player.node.deadline_ms <= player.now + 50
        player.wait(13)
        player.accept()


def test_leader_alone_waits_for_nothing() -> None:
    player = Player(members=(1,)).lead()
    assert player.node.deadline_ms is None


def test_hints_of_long_conflicts_are_constant_in_size() -> None:
    follower = Player(2, [1] * 10 + [2] * 500 + [3] * 500)
    for previous, expected in (((1010, 4), 511), ((510, 4), 11), ((700, 2), 511), ((700, 1), 11)):
        response = follower.append(5, previous, source=1)
        assert (response.accepted, response.next_index) == (False, expected)


def test_commit_that_a_follower_could_not_follow_yet_is_told_again_when_it_can() -> None:
    """A heartbeat that was sent while the logs were not known to meet names a commit beyond what it
    verifies."""
    player = Player(1, [1]).lead()
    probe = player.sent(2)
    player.accept(peer=3)
    player.wait(50)
    heartbeat = player.sent(2)
    assert [(r.last_log_index, r.commit_index) for _, _, r in heartbeat] == [(1, 2)]
    for _, seq, request in probe + heartbeat:
        player.answer(seq, request, request.last_log_index + len(request.entries) + 1)
    assert [(r.last_log_index, r.commit_index) for _, _, r in player.sent(2)] == [(2, 2)]


def test_follower_that_lacks_much_is_sent_a_part_of_it_each_turn_and_only_in_spare_time() -> None:
    player = Player(1, [1] * 2).lead()
    while player.requests:
        player.accept()
    player.slow_disk = True  # its being done is another turn
    player.node.propose([bytes(100)] * 4000, 0)
    assert not player.node.ready(catch_up=False).requests
    assert player.node.has_more_catch_up
    turns = []
    while player.node.has_more_catch_up:
        player.turn()
        turns.append(sum(len(request.entries) for _, _, request in player.sent(2)))
    assert turns == [1310, 1310, 1380]  # two messages of about 64 KiB, then what does not count as much
    player.accept(peer=3)
    assert player.node.ready(catch_up=False).requests == ()


def test_snapshot_is_sent_in_spare_time_only() -> None:
    player = Player(1, [1] * 4, commit=4)
    player.take_snapshot()
    player.lead()
    (_, seq, request), *_ = player.sent(2)
    player.node.step_response(seq, Response(MessageType(request.type + 1), 2, 1, request.term, 1, False))
    assert not player.node.ready(catch_up=False).requests
    assert player.node.has_more_catch_up
    (sent,) = player.node.ready().requests
    assert sent.request.type is MessageType.INSTALL_SNAPSHOT_REQUEST
    assert not player.node.has_more_catch_up  # its answer is waited for
