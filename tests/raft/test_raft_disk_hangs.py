"""What a member does whose disk completes no write any more."""

from __future__ import annotations

from functools import partial

import pytest

from garlicfarm.errors import DiskHangs
from garlicfarm.raft import Change, Role
from garlicfarm.refusals import Refusal
from tests.raft.playbook import ALL, POLL, TIMEOUT, Player, leader_of

_leader = partial(leader_of, extensions=ALL)


def _orders(player: Player) -> list[int]:
    return [peer for peer, _, request in player.sent() if request.type is TIMEOUT]


def test_leader_whose_disk_hangs_hands_over_to_a_member_that_holds_all() -> None:
    leader = _leader()
    leader.slow_disk = True
    leader.propose(b"x")
    leader.sent(2)
    leader.accept(peer=3)
    leader.hang(True)
    assert _orders(leader) == [3]


@pytest.mark.parametrize("extensions", [ALL, frozenset[str]()])
def test_leader_whose_disk_hangs_leads_no_longer_than_another_election_timeout(
    extensions: frozenset[str],
) -> None:
    leader = _leader(extensions=extensions)
    leader.slow_disk = True
    leader.propose(b"x", token=7)
    leader.hang(True)
    for _ in range(4):
        leader.wait(50)
        leader.refuse(2)  # it is heard, and lacks entries: nobody can take over
    assert leader.node.role is Role.FOLLOWER
    assert leader.outcomes == {7: None}
    assert not leader.node.leader


def test_leader_whose_disk_hangs_refuses_what_would_be_written_and_says_why() -> None:
    leader = _leader()
    leader.hang(True)
    with pytest.raises(DiskHangs):
        leader.propose(b"x")
    with pytest.raises(DiskHangs):
        leader.change(Change.REMOVE, 3)


def test_client_of_a_member_whose_disk_hangs_is_refused_or_sent_on_without_waiting_for_the_disk() -> None:
    leader = _leader()
    leader.slow_disk = True
    leader.propose(b"x")
    leader.hang(True)
    refused = leader.post(b"y")
    assert (refused.accepted, refused.next_index) == (False, Refusal.LEADERSHIP_IN_TRANSFER.number)
    assert leader.append(2, (2, 1)) is None  # what a leader hears has to be durable
    sent_on = leader.post(b"y")
    assert (sent_on.accepted, sent_on.destination) == (False, 2)


def test_leader_goes_on_where_its_disk_answers_in_time_and_no_member_took_over() -> None:
    leader = _leader()
    leader.hang(True)
    leader.sent()
    leader.hang(False)
    for _ in range(8):
        leader.wait(50)
        leader.accept()
    assert leader.node.role is Role.LEADER
    leader.propose(b"x", token=7)
    leader.accept()
    assert leader.outcomes == {7: (2, 1)}


def test_member_alone_whose_disk_hangs_ceases_to_lead_and_leads_again_when_it_answers() -> None:
    alone = Player(members=[1]).lead()
    alone.wait(10_000)
    alone.hang(True)
    alone.wait(100)
    assert alone.node.role is Role.LEADER
    alone.wait(101)
    assert alone.node.role is Role.FOLLOWER
    alone.wait(10_000)
    assert (alone.node.role, alone.node.term) == (Role.FOLLOWER, 1)
    alone.hang(False)
    alone.wait(200)
    assert (alone.node.role, alone.node.term) == (Role.LEADER, 2)


def test_member_whose_disk_hangs_neither_polls_nor_stands_and_its_term_stays() -> None:
    follower = Player(extensions=ALL, term=3)
    follower.hang(True)
    follower.wait(10_000)
    assert (follower.node.term, follower.node.role, list(follower.requests)) == (3, Role.FOLLOWER, [])
    assert follower.append(3).accepted  # it follows
    assert not follower.order(3).accepted
    follower.hang(False)
    follower.wait(200)
    assert {request.type for _, _, request in follower.sent()} == {POLL}


def test_candidate_whose_disk_hangs_gives_up() -> None:
    candidate = Player(extensions=ALL)
    candidate.wait(100)
    polls = candidate.sent()
    assert {request.type for _, _, request in polls} == {POLL}
    candidate.hang(True)
    assert candidate.node.role is Role.FOLLOWER
    candidate.answer_each(polls)
    assert (candidate.node.term, list(candidate.requests)) == (0, [])


def test_member_whose_disk_hangs_promises_no_vote() -> None:
    """It could not give it: whoever stands because of it raises its term in vain, again and again."""
    member = Player(extensions=ALL)
    member.hang(True)
    assert not member.poll(1).accepted
