"""Linearizable reads without an entry (Raft §8, thesis 6.4)."""

from __future__ import annotations

import pytest

from garlicfarm.errors import ProposalDropped
from garlicfarm.raft import Change, Role
from tests.raft.playbook import Player


def _leader(size: int = 3) -> Player:
    """A leader of term 1 whose first entry is committed and known everywhere."""
    player = Player(members=range(1, size + 1))
    for _, seq, request in player.campaign():
        player.answer(seq, request)
    while player.requests:
        player.accept()
    return player


def test_read_is_answered_with_the_commit_index_once_a_majority_confirms() -> None:
    player = _leader()
    player.read(token=5)
    assert not player.reads
    assert [(peer, request.entries) for peer, _, request in player.requests] == [(2, ()), (3, ())]
    player.accept(peer=3)
    assert player.reads == {5: 1}


@pytest.mark.parametrize(("size", "confirming", "answered"), [(2, 0, False), (2, 1, True), (5, 1, False)])
def test_read_waits_for_a_majority(size: int, confirming: int, answered: bool) -> None:
    player = _leader(size)
    player.read(token=5)
    for peer in range(2, 2 + confirming):
        player.accept(peer=peer)
    assert (player.reads == {5: 1}) is answered


def test_read_of_a_member_alone_is_answered_at_once() -> None:
    player = _leader(1)
    player.read(token=5)
    assert player.reads == {5: 1}


def test_one_member_that_answers_twice_is_no_majority() -> None:
    player = _leader(5)
    player.read(token=5)
    player.accept(peer=2)
    player.wait(50)
    player.accept(peer=2)
    assert not player.reads


def test_answer_to_a_request_that_was_sent_before_the_read_confirms_nothing() -> None:
    player = _leader()
    player.propose(b"x")
    before = player.sent()
    player.read(token=5)
    for _, seq, request in before:
        player.answer(seq, request, request.last_log_index + 2)
    assert not player.reads
    player.accept(peer=2)
    assert player.reads == {5: 1}


def test_refusal_of_entries_confirms_the_leader_all_the_same() -> None:
    player = _leader()
    player.read(token=5)
    player.refuse(2)
    assert player.reads == {5: 1}


def test_read_index_is_the_commit_index_of_the_moment_it_was_asked_in() -> None:
    player = _leader()
    player.propose(b"x")
    player.read(token=5)  # 2 is not committed yet
    player.accept(peer=2)
    player.accept(peer=2)
    assert player.commit == 2
    assert player.reads == {5: 1}


def test_read_sees_every_write_that_was_acknowledged_before_it() -> None:
    player = _leader()
    player.propose(b"x", token=7)
    player.accept(peer=2)
    assert player.outcomes == {7: (2, 1)}
    player.sent()
    player.read(token=5)
    player.wait(50)
    player.accept(peer=3)
    assert player.reads == {5: 2}


def test_read_of_a_new_leader_waits_for_its_first_commit() -> None:
    """What earlier leaders committed it knows for certain only with an entry of its own term."""
    player = Player(1, [1, 1], commit=0).lead()
    player.read(token=5)
    assert player.commit == 0
    player.refuse(2)  # confirmed, at an index that is not committed yet
    player.accept(peer=2)
    assert player.commit == 3
    player.wait(50)
    player.accept(peer=2)
    assert player.reads == {5: 3}


def test_reads_that_wait_together_cost_one_round() -> None:
    player = _leader()
    for token in range(10):
        player.node.read_index(token)
    player.turn()
    assert len(player.requests) == 2
    player.accept(peer=2)
    assert player.reads == dict.fromkeys(range(10), 1)


def test_reads_that_are_asked_one_after_another_are_confirmed_each_by_its_own_round() -> None:
    player = _leader()
    player.read(token=5)
    first = player.sent(2)
    player.read(token=6)
    for _, seq, request in first:
        player.answer(seq, request, 2)
    assert player.reads == {5: 1}
    player.accept(peer=2)
    assert player.reads == {5: 1, 6: 1}


def test_read_is_confirmed_by_entries_that_go_out_anyway() -> None:
    player = _leader()
    player.node.read_index(5)
    player.propose(b"x")
    ((_, _, request),) = player.sent(2)
    assert len(request.entries) == 1
    player.accept(peer=3)
    assert player.reads == {5: 1}


def test_lost_confirmation_is_repeated_at_the_next_heartbeat() -> None:
    player = _leader()
    player.read(token=5)
    player.lose()
    assert not player.requests
    player.wait(50)
    player.accept(peer=2)
    assert player.reads == {5: 1}


def test_minority_leader_never_answers_a_read_and_says_so_when_it_steps_down() -> None:
    player = _leader(5)
    player.read(token=5)
    for _ in range(3):
        player.wait(50)
        player.accept(peer=2)
    assert not player.reads
    player.wait(101)
    assert player.node.role is Role.FOLLOWER
    assert player.reads == {5: None}


def test_read_is_not_answered_by_a_leader_that_another_one_replaced() -> None:
    player = _leader()
    player.read(token=5)
    waiting = player.sent()
    player.append(2, (1, 1), source=3)
    assert player.reads == {5: None}
    for _, seq, request in waiting:
        player.answer(seq, request, 2)
    assert player.reads == {5: None}


def test_answer_in_an_earlier_term_confirms_nothing() -> None:
    player = Player(1, [1], term=4).lead()
    player.accept()
    player.accept()
    player.read(token=5)
    for _, seq, request in player.sent(2):
        player.answer(seq, request, 3, accepted=False, term=4)
    assert not player.reads


def test_read_asked_of_one_that_does_not_lead_is_refused() -> None:
    player = Player()
    with pytest.raises(ProposalDropped, match="not-leader"):
        player.read()
    player.campaign()
    with pytest.raises(ProposalDropped, match="not-leader"):
        player.read()


def test_read_that_waits_for_a_member_is_answered_when_that_is_removed() -> None:
    """The majority is another one then; nobody else would ever answer."""
    player = _leader(2)
    player.change(Change.REMOVE, 2)
    change = player.sent(2)
    player.read(token=5)
    (_, seq, request), *_ = change
    player.answer(seq, request, 3)
    assert [s.id for s in player.node.configuration.servers] == [1]
    assert player.reads == {5: 1}


def test_joining_server_confirms_no_read() -> None:
    player = _leader()
    player.add(4)
    player.sent()
    player.read(token=5)
    player.wait(50)
    assert player.requests[-1][0] == 4
    player.accept(peer=4)
    assert not player.reads
    player.accept(peer=3)
    assert player.reads == {5: 1}
