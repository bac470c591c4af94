"""No vote while a leader is alive (thesis 4.2.3), but in elections that the leader ordered."""

from __future__ import annotations

from typing import Any

import pytest

from garlicfarm.raft import Role
from garlicfarm.raft.votes import TRANSFER_CAMPAIGN
from garlicfarm.wire.messages import Request
from tests.raft.playbook import ALL, VOTE, Player, Stage


def _follower(**options: Any) -> Player:
    """It heard leader 2 of term 1 at 0 ms, and would stand at 200 ms."""
    player = Player(**options)
    player.random = 200
    player.append(1)
    return player


def test_vote_is_refused_while_the_leader_is_heard_and_the_term_stays() -> None:
    player = _follower()
    before = player.picture
    player.wait(99)
    response = player.ask_vote(7, (9, 9), source=3)
    assert (response.accepted, response.term) == (False, 1)
    assert player.picture == before
    assert player.disk.initial_state()[0].term == 1


def test_vote_is_given_once_the_leader_was_silent_for_the_lower_election_timeout() -> None:
    player = _follower()
    player.wait(100)
    response = player.ask_vote(2, (9, 9), source=3)
    assert (response.accepted, response.term) == (True, 2)


def test_each_message_of_the_leader_renews_the_lease() -> None:
    player = _follower()
    for _ in range(5):
        player.wait(90)
        player.append(1)
        assert not player.ask_vote(2, (9, 9), source=3).accepted


def test_refused_request_of_the_leader_renews_the_lease_too() -> None:
    player = _follower()
    player.wait(90)
    player.append(1, (9, 1))
    player.wait(90)
    assert not player.ask_vote(2, (9, 9), source=3).accepted


def test_request_of_an_earlier_term_renews_nothing() -> None:
    player = _follower()
    player.append(3, source=3)
    player.wait(90)
    player.append(1)
    player.wait(10)
    assert player.ask_vote(4, source=2).accepted


def test_vote_is_refused_by_a_leader_that_a_majority_answers() -> None:
    player = Player().lead()
    before = player.picture
    response = player.ask_vote(9, (9, 9))
    assert (response.accepted, response.term) == (False, 1)
    assert player.picture == before


def test_vote_is_given_by_a_leader_that_stepped_down_unheard() -> None:
    player = Player().lead()
    player.wait(201)
    assert player.ask_vote(2, (9, 9)).accepted


@pytest.mark.parametrize(("last", "granted"), [((1, 1), True), ((0, 0), False)])
@pytest.mark.parametrize("leads", [False, True])
def test_ordered_vote_is_judged_by_term_and_log_alone(
    leads: bool, last: tuple[int, int], granted: bool
) -> None:
    player = Player(1, [1])
    if leads:
        player.lead()
        last = (last[0] * 2, last[1] * 2)
    else:
        player.append(1, (1, 1))
    term = player.node.term
    assert player.ask_vote(term + 1, last, source=3, ordered=True).accepted is granted
    assert (player.node.role, player.node.term) == (Role.FOLLOWER, term + 1)


def test_ordered_vote_in_the_same_term_is_not_a_second_one() -> None:
    player = Player()
    player.ask_vote(1, source=3)
    assert not player.ask_vote(1, source=2, ordered=True).accepted


def test_commit_index_of_a_vote_request_is_a_mark_only_where_it_is_the_highest_number() -> None:
    player = _follower()
    for commit in (0, 1, TRANSFER_CAMPAIGN - 1):
        assert not player.take(Request(VOTE, 3, 1, 2, 9, 9, commit)).accepted


def test_lease_is_not_remembered_by_a_restarted_follower() -> None:
    """It does not know a leader; its vote is all it may give, once."""
    player = _follower()
    player.crash()
    assert player.ask_vote(2, (9, 9), source=3).accepted


def test_restarted_leader_is_replaced_once_its_followers_lease_is_over() -> None:
    stage = Stage([], [], [], extensions=ALL)
    stage.elect(1, 2, 3)
    stage.settle(1, 2, 3)
    for player in stage.players.values():
        player.random = 180
    stage[1].wait(50)
    stage.deliver(1, 2, 3)
    stage[1].crash()
    assert stage[1].node.role is Role.FOLLOWER
    for voter in (2, 3):
        assert not stage[voter].ask_vote(2, (9, 9), source=1).accepted  # even of the leader that was
    stage[2].wait(180)
    stage[3].wait(110)
    stage.deliver(2, 3)  # the poll
    stage.deliver(2, 3)  # the vote
    assert (stage[2].node.role, stage[2].node.term) == (Role.LEADER, 2)


def test_removed_member_that_hears_nobody_does_not_disturb_those_who_do() -> None:
    """Thesis 4.2.3: it polls or stands again and again, in later and later terms."""
    player = _follower()
    for term in range(2, 12):
        player.wait(40)
        player.append(1)
        response = player.ask_vote(term, (9, 9), source=9)
        assert (response.accepted, response.term) == (False, 1)
    assert player.node.leader == 2


def test_member_of_higher_priority_stands_first_and_is_elected() -> None:
    stage = Stage([1], [1], [1])
    for member, priority in ((1, 1), (2, 4), (3, 1)):
        player = stage[member]
        player.config = type(player.config)(
            id=member,
            election_timeout_min_ms=100,
            election_timeout_max_ms=200,
            heartbeat_ms=50,
            priority=priority,
        )
        player.random = 10**6  # all draw the longest
        player.crash()
    for player in stage.players.values():
        player.wait(130)
    assert [player.node.role for player in stage.players.values()] == [
        Role.FOLLOWER,
        Role.CANDIDATE,
        Role.FOLLOWER,
    ]
    stage.deliver(2, 1, 3)
    stage.deliver(2, 1, 3)
    assert stage[2].node.role is Role.LEADER


def test_highest_priority_is_no_claim_a_log_behind_loses_all_the_same() -> None:
    stage = Stage([1, 1], [1])
    stage[2].wait(100)
    stage.deliver(2, 1)
    stage.deliver(2, 1)
    assert (stage[2].node.role, stage[2].node.term) == (Role.FOLLOWER, 2)
