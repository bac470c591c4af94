"""Where numbers end: the highest term there is, and what a leader takes that is not committed."""

from __future__ import annotations

import pytest

from garlicfarm.errors import LocalProtocolError, ProposalDropped, RemoteProtocolError
from garlicfarm.raft import Change, Role
from garlicfarm.raft.state import MAX_TERM
from garlicfarm.refusals import Refusal
from garlicfarm.wire.messages import MessageType, Request, Response
from tests.raft.playbook import ALL, Player, leader_of


@pytest.mark.parametrize("kind", [1, 3, 5, 16, 20, 28])
def test_request_of_a_term_that_no_store_can_hold_is_refused_and_changes_nothing(kind: int) -> None:
    player = Player()
    before = player.picture
    with pytest.raises(RemoteProtocolError, match="no election made"):
        player.take(Request(MessageType(kind), 2, 1, MAX_TERM + 1))
    assert player.picture == before


def test_answer_of_a_term_that_no_store_can_hold_is_not_believed() -> None:
    player = Player().lead()
    player.answer_each(player.sent(), 2, term=MAX_TERM + 1)
    assert (player.node.term, player.node.role, player.commit) == (1, Role.LEADER, 0)


def test_member_in_the_highest_term_follows_but_never_stands() -> None:
    player = Player(extensions=ALL, term=MAX_TERM)
    player.append(MAX_TERM)
    for _ in range(5):
        player.wait(200)
    assert player.node.role is Role.FOLLOWER
    player.append(MAX_TERM)
    assert not player.order(MAX_TERM).accepted
    assert player.node.term == MAX_TERM


def test_last_term_can_still_be_voted_in_and_led() -> None:
    player = Player(1, term=MAX_TERM - 1)
    player.lead()
    player.accept()
    assert (player.node.term, player.commit) == (MAX_TERM, 1)
    player.crash()
    assert player.node.term == MAX_TERM


def test_proposal_of_nothing_is_the_callers_fault() -> None:
    player = Player(members=(1,)).lead()
    with pytest.raises(LocalProtocolError):
        player.propose()


def test_bound_of_uncommitted_bytes_frees_what_is_committed_and_no_more() -> None:
    player = leader_of(max_uncommitted_bytes=100)
    for token in (1, 2):
        player.propose(b"x" * 30, token=token)
    with pytest.raises(ProposalDropped, match=Refusal.TOO_MUCH_UNCOMMITTED):
        player.propose(b"x" * 30, token=3)
    (_, seq, request), *_ = player.sent(2)
    player.answer(seq, request, 3)
    player.propose(b"x" * 30, token=3)
    with pytest.raises(ProposalDropped, match=Refusal.TOO_MUCH_UNCOMMITTED):
        player.propose(b"x" * 30, token=4)
    player.accept()
    player.accept()
    assert player.outcomes == {1: (2, 1), 2: (3, 1), 3: (4, 1)}


def test_bound_of_uncommitted_bytes_begins_anew_with_each_leadership() -> None:
    player = leader_of(max_uncommitted_bytes=100)
    player.propose(b"x" * 60)
    player.wait(201)
    player.lead()
    player.propose(b"x" * 60, token=2)
    assert player.outcomes == {1: None}


def test_changes_of_the_configuration_are_not_held_up_by_uncommitted_bytes() -> None:
    player = leader_of(max_uncommitted_bytes=100)
    player.propose(b"x" * 200)
    player.change(Change.REMOVE, 3, token=2)
    player.accept()
    assert player.outcomes == {1: (2, 1), 2: (3, 1)}


def test_answer_that_names_another_index_than_it_accepts_is_taken_for_what_was_sent() -> None:
    player = Player().lead()
    player.accept(peer=3)
    player.accept(peer=3)
    player.propose(b"x")
    for _, seq, request in player.sent(3):
        player.hear(seq, Response(MessageType.APPEND_ENTRIES_RESPONSE, 3, 1, 1, 99, True))
        assert request.last_log_index <= 1
    assert player.node.status().peers[3].match_index == 2
