"""Evidence that the leader's process is gone: it ends that leader's mark of being alive, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from garlicfarm.raft import Role
from garlicfarm.wire.messages import MessageType, Request
from tests.raft.playbook import ALL, POLL, VOTE, Player, Stage

SPREAD_MS = 10
"""A tenth of the lower election timeout of `Player`."""


def _follower(**options: Any) -> Player:
    """It heard leader 2 of term 1 at 0 ms, and would stand at 200 ms."""
    player = Player(extensions=ALL, **options)
    player.random = 200
    player.append(1)
    return player


def _farm(size: int) -> Stage:
    """All follow 1 in term 1, and heard it this moment."""
    stage = Stage(*[[]] * size, extensions=ALL)
    others = range(2, size + 1)
    stage.elect(1, *others)
    stage.settle(1, *others)
    _beat(stage)
    return stage


def _beat(stage: Stage) -> None:
    """50 ms pass, and whatever leads is heard."""
    for player in stage.players.values():
        player.wait(50)
    for player in stage.players.values():
        if player.node.role is Role.LEADER:
            stage.deliver(player.id, *[other for other in stage.players if other != player.id])


def _terms(stage: Stage) -> set[int]:
    return {player.node.term for player in stage.players.values()}


def _leaders(stage: Stage) -> list[int]:
    return [player.node.leader for player in stage.players.values()]


# What it does


def test_follower_whose_leader_is_gone_polls_within_a_tenth_of_the_lower_election_timeout() -> None:
    player = _follower()
    player.miss(2, 1)
    player.wait(SPREAD_MS - 1)
    assert (player.node.role, player.sent()) == (Role.FOLLOWER, [])
    player.wait(1)
    assert (player.node.role, player.node.term) == (Role.CANDIDATE, 1)
    assert [request.type for _, _, request in player.sent()] == [POLL, POLL]


@pytest.mark.parametrize("waited_ms", [0, 30, 99])
def test_pre_vote_that_the_lease_would_withhold_is_granted_when_the_leader_is_gone(waited_ms: int) -> None:
    player = _follower()
    player.wait(waited_ms)
    refused = player.poll(2, source=3)
    player.miss(2, 1)
    granted = player.poll(2, source=3)
    assert not refused.accepted
    assert granted.accepted
    assert player.node.term == 1


def test_poll_of_the_turn_in_which_the_evidence_came_is_granted() -> None:
    player = _follower()
    player.node.report_leader_gone(2, 1)
    assert player.poll(2, source=3).accepted


def test_vote_that_the_lease_would_withhold_is_given_when_the_leader_is_gone() -> None:
    player = _follower()
    player.miss(2, 1)
    response = player.ask_vote(2, source=3)
    assert (response.accepted, response.term) == (True, 2)


def test_priority_narrows_the_wait_of_the_first_attempt() -> None:
    player = _follower(priority=5)
    player.miss(2, 1)
    player.wait(SPREAD_MS // 5)
    assert player.node.role is Role.CANDIDATE


def test_wait_is_drawn_anew_by_each_member() -> None:
    begun = set()
    for number in range(SPREAD_MS + 1):
        player = _follower()
        player.random = number
        player.miss(2, 1)
        deadline = player.node.deadline_ms
        assert deadline is not None
        begun.add(deadline)
    assert begun == set(range(SPREAD_MS + 1))


def test_time_in_which_the_process_stood_still_does_not_shorten_the_wait() -> None:
    """The core last heard the time long ago: the wait begins with the next tick."""
    player = _follower()
    player.wait(20)
    player.now += 60
    player.miss(2, 1)
    player.wait(SPREAD_MS - 1)
    assert player.node.role is Role.FOLLOWER
    player.wait(1)
    assert player.node.role is Role.CANDIDATE


def test_evidence_again_and_again_does_not_put_the_poll_off() -> None:
    player = _follower()
    for _ in range(SPREAD_MS - 1):
        player.miss(2, 1)
        player.wait(1)
    player.miss(2, 1)
    player.wait(1)
    assert player.node.role is Role.CANDIDATE


def test_poll_that_fails_is_followed_by_whole_election_timeouts() -> None:
    player = _follower()
    player.miss(2, 1)
    player.wait(SPREAD_MS)
    player.sent()
    for _ in range(10):
        player.miss(2, 1)  # it knows no leader any more
    player.wait(199)
    assert not player.sent()
    player.wait(1)
    assert len(player.sent()) == 2


def test_five_members_elect_one_soon_once_a_majority_has_the_evidence() -> None:
    stage = _farm(5)
    for member in (2, 3, 4):
        stage[member].random = 0 if member == 3 else SPREAD_MS
        stage[member].miss(1, 1)
    stage[3].wait(0)
    stage.deliver(3, 2, 4, 5)
    assert (stage[3].node.role, stage[3].node.term) == (Role.CANDIDATE, 2)
    stage.deliver(3, 2, 4, 5)
    assert (stage[3].node.role, stage[3].node.term) == (Role.LEADER, 2)


# What it does not


@pytest.mark.parametrize(("leader", "term"), [(3, 1), (2, 0), (2, 2), (0, 1), (1, 1), (9, 1)])
def test_evidence_about_another_leader_or_term_changes_nothing(leader: int, term: int) -> None:
    player = _follower()
    before = player.picture
    player.miss(leader, term)
    assert player.picture == before
    assert not player.poll(2, source=3).accepted


def test_evidence_about_the_leader_of_a_term_that_is_over_says_nothing_of_its_next_term() -> None:
    """It came back as another process and was elected again."""
    player = _follower()
    player.append(2)
    before = player.picture
    player.miss(2, 1)
    assert player.picture == before


@pytest.mark.parametrize("leader", [0, 1, 2])
def test_leader_takes_no_evidence_about_itself_or_others(leader: int) -> None:
    player = Player().lead()
    before = player.picture
    player.miss(leader, 1)
    assert player.picture == before


def test_member_that_knows_no_leader_campaigns_no_sooner() -> None:
    player = Player()
    player.random = 200
    player.wait(1)
    before = player.picture
    player.miss(0, 0)
    player.miss(2, 0)
    assert player.picture == before


def test_term_vote_and_log_stay_as_they_are() -> None:
    player = _follower()
    written = player.disk.initial_state()
    status = player.node.status()
    player.miss(2, 1)
    assert player.node.status() == status
    player.wait(SPREAD_MS)
    assert player.disk.initial_state() == written


@pytest.mark.parametrize(("last", "granted"), [((2, 1), True), ((1, 1), False), ((9, 0), False)])
def test_logs_are_compared_as_ever(last: tuple[int, int], granted: bool) -> None:
    for ask, kind in (
        (Player.poll, MessageType.PRE_VOTE_RESPONSE),
        (Player.ask_vote, MessageType.REQUEST_VOTE_RESPONSE),
    ):
        player = _follower(terms=[1, 1])
        player.miss(2, 1)
        response = ask(player, 2, last, source=3)
        assert (response.type, response.accepted) == (kind, granted)


def test_term_that_has_a_leader_gets_no_other_though_that_one_is_gone() -> None:
    player = _follower()
    player.miss(2, 1)
    assert not player.ask_vote(1, (9, 9), source=3).accepted


def test_leader_that_is_heard_again_is_alive_again() -> None:
    player = _follower()
    player.miss(2, 1)
    player.append(1)
    assert not player.poll(2, source=3).accepted
    player.wait(199)
    assert player.node.role is Role.FOLLOWER


def test_append_of_the_turn_in_which_the_evidence_came_makes_the_leader_alive_again() -> None:
    player = _follower()
    player.node.report_leader_gone(2, 1)
    player.append(1)
    player.wait(199)
    assert player.node.role is Role.FOLLOWER


def test_member_whose_disk_hangs_does_not_campaign_for_it() -> None:
    player = _follower()
    player.slow_disk = True
    player.hang(True)
    player.miss(2, 1)
    player.wait(SPREAD_MS)
    assert (player.node.role, player.sent()) == (Role.FOLLOWER, [])


def test_member_that_is_told_to_leave_does_not_campaign_for_it() -> None:
    stage = _farm(3)
    player = stage[3]
    player.take(Request(MessageType.LEAVE_CLUSTER_REQUEST, 1, 3, 1))
    player.miss(1, 1)
    player.wait(SPREAD_MS)
    assert (player.node.role, player.sent()) == (Role.FOLLOWER, [])


# Evidence that is wrong


@pytest.mark.parametrize(("size", "wrong"), [(3, [2]), (5, [3, 5])])
def test_living_leader_that_a_minority_takes_for_gone_is_not_deposed(size: int, wrong: list[int]) -> None:
    stage = _farm(size)
    for _ in range(10):
        for member in wrong:
            stage[member].miss(1, 1)
            stage[member].wait(SPREAD_MS)
        for member in wrong:
            stage.deliver(member, *[other for other in stage.players if other != member])
        _beat(stage)
        assert _terms(stage) == {1}
        assert set(_leaders(stage)) == {1}


@pytest.mark.parametrize(("size", "wrong"), [(3, [2, 3]), (5, [2, 3, 4, 5])])
def test_living_leader_that_a_majority_takes_for_gone_costs_one_election(size: int, wrong: list[int]) -> None:
    stage = _farm(size)
    for member in wrong:
        stage[member].random = SPREAD_MS
        stage[member].miss(1, 1)
    stage[2].wait(SPREAD_MS)
    for _ in range(2):  # the poll, then the vote
        stage.deliver(2, *[other for other in stage.players if other != 2])
    assert (stage[2].node.role, stage[2].node.term) == (Role.LEADER, 2)
    for _ in range(10):
        for member in stage.players:
            stage[member].miss(1, 1)
        _beat(stage)
    assert _terms(stage) == {2}
    assert set(_leaders(stage)) == {2}


def test_leader_that_was_deposed_by_mistake_answers_no_read_though_it_was_heard_a_moment_ago() -> None:
    """No time has passed since a majority answered it: a read that rested on a lease would be answered now,
    and miss what the new leader commits."""
    stage = _farm(3)
    old, new = stage[1], stage[2]
    heard_at = old.now
    for member in (2, 3):
        stage[member].random = SPREAD_MS
        stage[member].miss(1, 1)
    new.wait(SPREAD_MS)
    stage.deliver(2, 3)
    stage.deliver(2, 3)
    assert new.node.role is Role.LEADER
    new.propose(b"newer")
    for _ in range(2):
        stage.deliver(2, 3)
    assert new.commit > old.commit
    assert old.now == heard_at
    old.read(token=7)
    assert (old.node.role, old.reads) == (Role.LEADER, {})
    stage.deliver(1, 2, 3)
    assert (old.node.role, old.reads) == (Role.FOLLOWER, {7: None})


def test_jraft_peers_know_no_pre_vote_and_elect_once_for_evidence_that_is_wrong() -> None:
    player = Player(term=1)
    player.random = 200
    player.append(1)
    player.miss(2, 1)
    player.wait(SPREAD_MS)
    player.answer_each(player.sent(), accepted=False, term=1)
    assert player.node.term == 2
    assert {request.type for _, _, request in player.sent()} == {VOTE}
    player.append(3)
    for _ in range(10):
        player.miss(2, 1)
        player.wait(SPREAD_MS)
    assert (player.node.role, player.node.term) == (Role.FOLLOWER, 3)
