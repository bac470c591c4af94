"""Sentences of the Raft paper (extended version) on replication and commits: §5.3, §5.4.2."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from garlicfarm.raft import Role
from garlicfarm.wire.messages import ValueType
from tests.raft.playbook import APPEND, Player, Stage, application, leader_of, log, wire

FIGURE_7_LEADER = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
FIGURE_7_FOLLOWERS = (
    (1, 1, 1, 4, 4, 5, 5, 6, 6),  # a
    (1, 1, 1, 4),  # b
    (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),  # c
    (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),  # d
    (1, 1, 1, 4, 4, 4, 4),  # e
    (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),  # f
)


def test_5_3_leader_appends_the_command_and_sends_it_in_parallel_to_all_others() -> None:
    player = leader_of()
    player.node.propose((b"command",), 1)
    player.turn()
    assert player.terms == [1, 1]
    sent = player.sent()
    assert [peer for peer, _, _ in sent] == [2, 3]
    for _, _, request in sent:
        assert (request.type, request.term, request.commit_index) == (APPEND, 1, 1)
        assert (request.last_log_index, request.last_log_term) == (1, 1)
        assert request.entries == (application(1, b"command"),)


def test_5_3_entry_stored_on_a_majority_is_committed_and_applied_by_the_leader() -> None:
    player = leader_of()
    player.node.propose((b"command",), 7)
    player.turn()
    assert player.commit == 1
    player.accept(peer=3)
    assert player.commit == 2
    assert player.applied[-1].value == b"command"
    assert player.outcomes == {7: (2, 1)}


@pytest.mark.parametrize(
    ("size", "acknowledging", "committed"),
    [(1, 0, True), (2, 0, False), (2, 1, True), (3, 0, False), (3, 1, True), (5, 1, False), (5, 2, True)],
)
def test_5_3_entry_is_committed_once_a_majority_has_it(
    size: int, acknowledging: int, committed: bool
) -> None:
    player = Player(members=range(1, size + 1))
    player.answer_each(player.campaign())
    for peer in range(2, 2 + acknowledging):
        player.accept(peer=peer)
    assert (player.commit == 1) is committed


def test_5_3_later_messages_tell_the_followers_what_is_committed() -> None:
    player = leader_of()
    player.node.propose((b"command",), 1)
    player.turn()
    player.accept(peer=2)
    (_, _, notice), *_ = player.sent(2)  # at once, without waiting for a heartbeat
    assert (notice.commit_index, notice.entries) == (2, ())
    player.accept(peer=3)
    (_, _, notice), *_ = player.sent(3)
    assert (notice.commit_index, notice.last_log_index) == (2, 2)


def test_5_3_commit_notice_waits_for_the_answers_that_are_due() -> None:
    player = leader_of()
    player.node.propose((b"one",), 1)
    player.turn()
    player.node.propose((b"two",), 2)
    player.turn()
    (_, seq, request), *_ = player.sent(2)
    player.answer(seq, request, 3)
    assert player.commit == 2
    assert not player.sent(2)


def test_5_3_commit_of_an_entry_commits_all_preceding_ones_of_other_leaders_too() -> None:
    for terms in ([], [2], [1, 2], [1]):
        player = Player(1, terms, term=2).lead()
        player.accept(peer=2)
        player.accept(peer=2)
        assert player.commit == len(terms) + 1
        assert [entry.index for entry in player.applied] == list(range(1, len(terms) + 2))


def test_5_3_follower_that_learns_of_a_commit_applies_it_in_log_order() -> None:
    player = Player()
    entries = [application(1, b"a"), application(1, b"b"), application(1, b"c")]
    player.append(1, (0, 0), entries, commit=2)
    assert [entry.value for entry in player.applied] == [b"a", b"b"]
    player.append(1, (3, 1), (), commit=3)
    assert [(entry.index, entry.value) for entry in player.applied] == [(1, b"a"), (2, b"b"), (3, b"c")]


@pytest.mark.parametrize(
    ("previous", "accepted", "next_index"),
    [
        ((0, 0), True, 1),
        ((1, 1), True, 2),
        ((2, 2), True, 3),
        ((2, 1), False, 2),  # another term there
        ((3, 2), False, 3),  # nothing there
        ((9, 9), False, 3),
    ],
)
def test_5_3_follower_refuses_entries_whose_predecessor_it_does_not_have(
    previous: tuple[int, int], accepted: bool, next_index: int
) -> None:
    player = Player(1, [1, 2])
    response = player.append(9, previous)
    assert (response.accepted, response.next_index) == (accepted, next_index)
    assert player.terms == [1, 2]


@pytest.mark.parametrize(
    ("previous", "entries", "terms", "truncated"),
    [
        ((2, 2), [3], [1, 2, 3], None),
        ((1, 1), [3, 4], [1, 3, 4], 2),
        ((0, 0), [1], [1, 2], None),  # an old message takes nothing away
        ((0, 0), [1, 2], [1, 2], None),
        ((0, 0), [1, 2, 3], [1, 2, 3], None),
        ((0, 0), [3], [3], 1),
    ],
)
def test_5_3_conflicting_entries_are_deleted_with_all_that_follow_and_others_stay(
    previous: tuple[int, int], entries: list[int], terms: list[int], truncated: int | None
) -> None:
    player = Player(1, [1, 2])
    player.slow_disk = True
    player.append(4, previous, [application(term) for term in entries])
    assert player.terms == terms
    assert player.writes[0].truncate_from == truncated
    player.sync()
    assert [entry.term for entry in player.disk.contents] == terms


def test_5_3_message_that_repeats_a_part_of_the_log_takes_nothing_away() -> None:
    player = Player(1, [1, 1, 1, 1])
    player.slow_disk = True
    player.append(1, (1, 1), wire(log(1, 1, 1, 1)[1:2]))
    assert player.terms == [1, 1, 1, 1]
    assert all(persist.truncate_from is None for persist in player.writes)


@pytest.mark.parametrize("follower", FIGURE_7_FOLLOWERS, ids="abcdef")
def test_5_3_leader_brings_the_followers_log_of_figure_7_into_consistency_with_its_own(
    follower: Sequence[int],
) -> None:
    stage = Stage(FIGURE_7_LEADER, follower, ())
    stage[1].ask_vote(7, source=3)  # to the newest term that was
    stage.elect(1, 3)
    stage.settle(1, 2, 3)
    assert stage[1].node.term == 8
    assert [player.terms for player in stage.players.values()] == [[*FIGURE_7_LEADER, 8]] * 3
    assert [player.commit for player in stage.players.values()] == [11] * 3


@pytest.mark.parametrize("follower", FIGURE_7_FOLLOWERS, ids="abcdef")
def test_5_3_logs_of_figure_7_meet_within_a_round_per_term_not_per_entry(follower: Sequence[int]) -> None:
    scale = 40  # each entry of the figure forty times
    leader = Player(1, [term for term in FIGURE_7_LEADER for _ in range(scale)], term=7).lead()
    other = Player(2, [term for term in follower for _ in range(scale)])
    rounds, accepted = 0, False
    while not accepted:
        rounds += 1
        ((_, seq, request),) = leader.sent(2)
        response = other.take(request)
        leader.hear(seq, response)
        accepted = response.accepted
    assert rounds <= 1 + len(set(follower))


def test_5_4_2_only_entries_of_the_current_term_are_committed_by_counting() -> None:
    player = Player(1, [1, 2], batch_bytes=1, max_inflight_messages=1).lead()  # in term 3; 3 is its own
    ((_, seq, request),) = player.sent(2)
    player.answer(seq, request, 1, accepted=False)
    for index, commit in ((1, 0), (2, 0), (3, 3)):
        ((_, seq, request),) = player.sent(2)
        player.answer(seq, request, index + 1)
        assert player.node.status().peers[2].match_index == index
        assert player.commit == commit


def _figure_8(stage: Stage) -> None:
    """(a) S1 leads in term 2 and reaches S2 only. (b) S5 leads in term 3 by S3 and S4, reaching nobody.
    (c) S1 leads in term 4, its entry of term 2 gets to S3: a majority holds it. Then (d): S5 leads once
    more, by S3 and S4, and overwrites it everywhere. Each entry travels by itself."""
    stage.elect(1, 2, 3)
    stage[1].node.propose((b"two",), 1)
    stage[1].turn()
    stage.deliver(1, 2)  # the probe, with the D7 entry
    stage.deliver(1, 2)
    stage.elect(5, 3, 4)
    stage[5].requests.clear()
    stage.elect(1, 2, 3)
    ((_, seq, request),) = stage[1].sent(3)  # finds that S3 has nothing beyond index 1
    response = stage[3].take(request)
    assert not response.accepted
    stage[1].hear(seq, response)
    for _ in range(2):  # what S1 wrote in term 2 gets to S3, what it wrote in term 4 does not
        ((_, seq, request),) = stage[1].sent(3)[:1]
        assert {entry.term for entry in request.entries} == {2}
        stage[1].hear(seq, stage[3].take(request))
    stage.deliver(1, 2)
    assert [stage[member].terms for member in (1, 2, 3)] == [[1, 2, 2, 4], [1, 2, 2, 4], [1, 2, 2]]
    stage.elect(5, 3, 4)
    stage.settle(5, 1, 2, 3, 4)


def _figure_8_stage() -> Stage:
    return Stage(*[[1]] * 5, batch_bytes=1, max_inflight_messages=1)


def test_5_4_2_figure_8_entry_of_an_earlier_term_on_a_majority_is_not_committed() -> None:
    stage = _figure_8_stage()
    _figure_8(stage)
    leader = stage[5]
    assert leader.node.role is Role.LEADER
    assert all(player.terms == leader.terms for player in stage.players.values())
    assert 2 not in leader.terms
    assert leader.commit == len(leader.terms)


def test_5_4_2_new_leader_at_once_appends_an_entry_of_its_own_term() -> None:
    player = Player(1, [1]).lead()
    assert player.terms == [1, 2]
    for peer in (2, 3):
        ((_, _, request),) = player.sent(peer)
        assert [entry.value_type for entry in request.entries] == [ValueType.CONFIGURATION]
