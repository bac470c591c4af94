"""A leader that no majority answers steps down (thesis 6.2), and says so to those who wait for it."""

from __future__ import annotations

import pytest

from garlicfarm.errors import ProposalDropped
from garlicfarm.raft import Change, Role
from garlicfarm.refusals import Refusal
from tests.raft.playbook import Player, leader_of


def _beat(player: Player, *answering: int, rounds: int) -> None:
    for _ in range(rounds):
        player.wait(50)
        for peer, seq, request in player.sent():
            if peer in answering:
                player.answer(seq, request, request.last_log_index + len(request.entries) + 1)


def test_leader_that_nobody_answers_steps_down_after_the_upper_election_timeout() -> None:
    player = leader_of()
    player.wait(200)
    assert player.node.role is Role.LEADER
    player.wait(1)
    assert (player.node.role, player.node.term, player.node.leader) == (Role.FOLLOWER, 1, 0)
    assert player.disk.initial_state()[0].term == 1


@pytest.mark.parametrize(
    ("size", "answering", "leads"),
    [
        (2, (), False),
        (2, (2,), True),
        (3, (), False),
        (3, (3,), True),
        (4, (2,), False),
        (4, (2, 3), True),
        (5, (2,), False),
        (5, (3, 5), True),
    ],
)
def test_leader_stays_as_long_as_a_majority_answers(
    size: int, answering: tuple[int, ...], leads: bool
) -> None:
    player = leader_of(size)
    _beat(player, *answering, rounds=12)
    assert (player.node.role is Role.LEADER) is leads


def test_majority_that_a_change_of_the_members_made_silent_does_not_keep_the_leader() -> None:
    player = leader_of()
    player.slow_disk = True
    player.change(Change.REMOVE, 3)
    player.accept(peer=2)  # it is silent from now on
    _beat(player, 3, rounds=5)  # 250 ms
    assert player.node.role is Role.LEADER
    player.sync()
    assert player.member_ids == [1, 2]
    player.wait(1)
    assert player.node.role is Role.FOLLOWER


def test_removal_waits_for_a_majority_of_those_that_stay() -> None:
    player = leader_of()
    player.change(Change.REMOVE, 2, force=True)
    for _ in range(8):  # member 3 is silent
        player.wait(50)
        player.accept(peer=2)
    assert player.member_ids == [1, 2, 3]
    assert player.node.role is Role.LEADER
    player.accept(peer=3)
    assert player.member_ids == [1, 3]


def test_different_majorities_answering_in_turn_keep_the_leader() -> None:
    player = leader_of(5)
    for pair in ((2, 3), (3, 4), (4, 5), (5, 2)) * 3:
        _beat(player, *pair, rounds=2)
    assert player.node.role is Role.LEADER


def test_any_answer_counts_a_refusal_too() -> None:
    player = leader_of()
    for _ in range(10):
        player.wait(50)
        for peer, seq, request in player.sent():
            if peer == 2:
                player.answer(seq, request, 1, accepted=False)
    assert player.node.role is Role.LEADER


def test_leader_alone_needs_nobody() -> None:
    player = leader_of(1)
    player.wait(100_000)
    assert player.node.role is Role.LEADER


def test_new_leader_has_the_whole_timeout_to_be_answered() -> None:
    player = Player(1, [1]).lead()
    player.wait(200)
    assert player.node.role is Role.LEADER
    player.wait(1)
    assert player.node.role is Role.FOLLOWER


def test_what_clients_wait_for_is_unknown_and_what_comes_after_is_refused() -> None:
    player = leader_of()
    player.post(b"client")
    waiting = player.token
    player.propose(b"own", token=70)
    player.read(token=71)
    player.wait(201)
    assert player.responses[waiting] is None
    assert player.outcomes == {70: None}
    assert player.reads == {71: None}
    with pytest.raises(ProposalDropped, match=Refusal.NOT_LEADER):
        player.propose(b"late")
    late = player.post(b"late")
    assert (late.accepted, late.next_index) == (False, 0)
    assert player.terms == [1, 1, 1]  # what was appended stays, and may be committed yet


def test_leader_that_was_paused_steps_down_at_once() -> None:
    """It cannot know what happened meanwhile; the deadline is told late."""
    player = leader_of()
    _beat(player, 2, 3, rounds=2)
    player.now += 10_000
    player.node.tick(player.now)
    player.turn()
    assert player.node.role is Role.FOLLOWER
    assert not player.sent()


def test_answer_that_was_waiting_while_the_leader_was_paused_keeps_no_old_leadership() -> None:
    player = leader_of()
    player.wait(50)
    (_, seq, request), *_ = player.sent(2)
    player.now += 10_000  # the answer comes first, as `tick` asks for
    player.answer(seq, request, request.last_log_index + 1)
    assert player.node.role is Role.FOLLOWER


def test_leader_that_stepped_down_stands_again_after_a_poll() -> None:
    player = leader_of()
    player.wait(201)
    player.sent()
    player.campaign()
    assert (player.node.role, player.node.term) == (Role.CANDIDATE, 2)


def test_leader_that_stepped_down_follows_the_next_one() -> None:
    player = leader_of()
    player.wait(201)
    assert player.append(2, (1, 1), source=3).accepted
    assert player.node.leader == 3


def test_leader_wants_to_be_woken_when_it_has_to_step_down_though_no_heartbeat_is_due() -> None:
    player = Player(heartbeat_ms=150).lead()
    led_since = player.now
    player.wait(150)
    assert player.node.deadline_ms == led_since + 201
