"""Election timeouts that are set while a member runs (D27): from the next one on, until two have passed in
vain, and safe where members have different ones. The configured ones are 100 to 200 ms."""

from __future__ import annotations

import pytest

from garlicfarm.raft import Role
from tests.raft.playbook import ALL, POLL, Player, Stage


def _follower(longest: bool = False, **options: object) -> Player:
    """It heard the leader 2 of term 1 at 0 ms, and has 50 to 80 ms."""
    player = Player(extensions=ALL)
    player.random = 10_000 if longest else None
    player.node.set_election_timeout(50, 80)
    player.append(1)
    return player


@pytest.mark.parametrize(("longest", "at_ms"), [(False, 50), (True, 80)])
def test_timeout_is_drawn_from_the_range_that_is_set(longest: bool, at_ms: int) -> None:
    player = _follower(longest)
    player.wait(at_ms - 1)
    assert player.node.leader == 2
    player.wait(1)
    assert player.node.leader == 0
    assert {request.type for _, _, request in player.sent()} == {POLL}


def test_timeout_that_runs_already_stays_as_it_was_drawn() -> None:
    player = Player(extensions=ALL)
    player.append(1)
    player.node.set_election_timeout(50, 80)
    player.wait(99)
    assert player.node.leader == 2
    player.append(1)
    player.wait(50)
    assert player.node.leader == 0


def test_leader_counts_as_alive_for_the_lower_one_that_is_set() -> None:
    player = _follower(longest=True)
    player.wait(49)
    assert not player.poll(2, source=3).accepted
    assert not player.ask_vote(2, source=3).accepted
    player.wait(1)
    assert player.poll(2, source=3).accepted
    assert player.ask_vote(2, source=3).accepted


def test_configured_range_is_in_force_once_two_have_passed_without_a_leader() -> None:
    """Where the shorter one is too short for this network, it must not keep the members from agreeing on
    longer ones."""
    player = _follower(longest=True)
    waited = []
    for _ in range(4):
        begun = player.now
        while not player.sent():
            player.wait(1)
        waited.append(player.now - begun)
    assert waited == [80, 80, 200, 200]
    player.append(1)
    player.wait(80)
    assert player.node.leader == 0


def test_leader_that_no_majority_answers_steps_down_as_configured() -> None:
    player = Player(extensions=ALL).lead()
    player.node.set_election_timeout(50, 80)
    player.wait(199)
    assert player.node.role is Role.LEADER
    player.wait(2)
    assert player.node.role is Role.FOLLOWER


def _disagreeing() -> Stage:
    """Member 1 leads; 2 waits for 50 to 80 ms, 3 as configured. Both hear it at this moment."""
    stage = Stage([1], [1], [1], extensions=ALL)
    stage.elect(1, 2, 3)
    stage[2].node.set_election_timeout(50, 80)
    for _ in range(2):
        stage[1].wait(50)
        stage.deliver(1, 2, 3)
    assert [player.node.leader for player in stage.players.values()] == [1, 1, 1]
    return stage


def _terms(stage: Stage) -> set[int]:
    return {player.node.term for player in stage.players.values()}


def test_member_with_a_shorter_timeout_deposes_no_leader_that_another_one_counts_as_alive() -> None:
    stage = _disagreeing()
    terms = _terms(stage)
    for _ in range(99):  # the leader is silent
        for member in (2, 3):
            stage[member].wait(1)
        assert not any(request.type is not POLL for _, _, request in stage[2].requests)
        stage.deliver(2, 3)
    assert stage[2].node.leader == 0
    stage[1].wait(50)
    stage.deliver(1, 2, 3)
    assert [player.node.leader for player in stage.players.values()] == [1, 1, 1]
    assert _terms(stage) == terms


def test_members_with_different_timeouts_elect_one_once_the_leader_is_gone_for_both() -> None:
    stage = _disagreeing()
    for _ in range(400):
        for member, other in ((2, 3), (3, 2)):
            stage[member].wait(1)
            stage.deliver(member, other)
    assert stage[2].node.leader == stage[3].node.leader in (2, 3)
