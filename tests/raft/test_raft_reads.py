"""Linearizable reads without an entry, at the leader and at followers (Raft §8, thesis 6.4, D5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from garlicfarm.errors import ProposalDropped
from garlicfarm.extensions import READ_INDEX
from garlicfarm.raft import Change, Role
from garlicfarm.refusals import Refusal
from garlicfarm.wire.messages import NO_LEADER, MessageType, Request, Response
from tests.raft.playbook import ALL, APPEND, READ, Player, leader_of

READ_RESPONSE = MessageType.READ_INDEX_RESPONSE


def test_read_is_answered_with_the_commit_index_once_a_majority_confirms() -> None:
    player = leader_of()
    player.read(token=5)
    assert not player.reads
    assert [(peer, request.entries) for peer, _, request in player.requests] == [(2, ()), (3, ())]
    player.accept(peer=3)
    assert player.reads == {5: 1}


@pytest.mark.parametrize(("size", "confirming", "answered"), [(2, 0, False), (2, 1, True), (5, 1, False)])
def test_read_waits_for_a_majority(size: int, confirming: int, answered: bool) -> None:
    player = leader_of(size)
    player.read(token=5)
    for peer in range(2, 2 + confirming):
        player.accept(peer=peer)
    assert (player.reads == {5: 1}) is answered


def test_read_of_a_member_alone_is_answered_at_once() -> None:
    player = leader_of(1)
    player.read(token=5)
    assert player.reads == {5: 1}


def test_one_member_that_answers_twice_is_no_majority() -> None:
    player = leader_of(5)
    player.read(token=5)
    player.accept(peer=2)
    player.wait(50)
    player.accept(peer=2)
    assert not player.reads


def test_answer_to_a_request_that_was_sent_before_the_read_confirms_nothing() -> None:
    player = leader_of()
    player.propose(b"x")
    before = player.sent()
    player.read(token=5)
    for _, seq, request in before:
        player.answer(seq, request, request.last_log_index + 2)
    assert not player.reads
    player.accept(peer=2)
    assert player.reads == {5: 1}


def test_refusal_of_entries_confirms_the_leader_all_the_same() -> None:
    player = leader_of()
    player.read(token=5)
    player.refuse(2)
    assert player.reads == {5: 1}


def test_read_index_is_the_commit_index_of_the_moment_it_was_asked_in() -> None:
    player = leader_of()
    player.propose(b"x")
    player.read(token=5)  # 2 is not committed yet
    player.accept(peer=2)
    player.accept(peer=2)
    assert player.commit == 2
    assert player.reads == {5: 1}


def test_read_sees_every_write_that_was_acknowledged_before_it() -> None:
    player = leader_of()
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
    player = leader_of()
    for token in range(10):
        player.node.read_index(token)
    player.turn()
    assert len(player.requests) == 2
    player.accept(peer=2)
    assert player.reads == dict.fromkeys(range(10), 1)


def test_reads_that_are_asked_one_after_another_are_confirmed_each_by_its_own_round() -> None:
    player = leader_of()
    player.read(token=5)
    first = player.sent(2)
    player.read(token=6)
    player.answer_each(first, 2)
    assert player.reads == {5: 1}
    player.accept(peer=2)
    assert player.reads == {5: 1, 6: 1}


def test_read_is_confirmed_by_entries_that_go_out_anyway() -> None:
    player = leader_of()
    player.node.read_index(5)
    player.propose(b"x")
    ((_, _, request),) = player.sent(2)
    assert len(request.entries) == 1
    player.accept(peer=3)
    assert player.reads == {5: 1}


def test_lost_confirmation_is_repeated_at_the_next_heartbeat() -> None:
    player = leader_of()
    player.read(token=5)
    player.lose()
    assert not player.requests
    player.wait(50)
    player.accept(peer=2)
    assert player.reads == {5: 1}


def test_minority_leader_never_answers_a_read_and_says_so_when_it_steps_down() -> None:
    player = leader_of(5)
    player.read(token=5)
    for _ in range(3):
        player.wait(50)
        player.accept(peer=2)
    assert not player.reads
    player.wait(101)
    assert player.node.role is Role.FOLLOWER
    assert player.reads == {5: None}


def test_read_is_not_answered_by_a_leader_that_another_one_replaced() -> None:
    player = leader_of()
    player.read(token=5)
    waiting = player.sent()
    player.append(2, (1, 1), source=3)
    assert player.reads == {5: None}
    player.answer_each(waiting, 2)
    assert player.reads == {5: None}


def test_answer_in_an_earlier_term_confirms_nothing() -> None:
    player = Player(1, [1], term=4).lead()
    player.accept()
    player.accept()
    player.read(token=5)
    player.answer_each(player.sent(2), 3, accepted=False, term=4)
    assert not player.reads


def test_read_asked_of_one_that_does_not_lead_is_refused() -> None:
    player = Player()
    with pytest.raises(ProposalDropped, match=Refusal.NOT_LEADER):
        player.read()
    player.campaign()
    with pytest.raises(ProposalDropped, match=Refusal.NOT_LEADER):
        player.read()


def test_read_that_waits_for_a_member_is_answered_when_that_is_removed() -> None:
    """The majority is another one then; nobody else would ever answer."""
    player = leader_of(2)
    player.change(Change.REMOVE, 2)
    change = player.sent(2)
    player.read(token=5)
    (_, seq, request), *_ = change
    player.answer(seq, request, 3)
    assert player.member_ids == [1]
    assert player.reads == {5: 1}


def test_joining_server_confirms_no_read() -> None:
    player = leader_of()
    player.add(4)
    player.sent()
    player.read(token=5)
    player.wait(50)
    assert player.requests[-1][0] == 4
    player.accept(peer=4)
    assert not player.reads
    player.accept(peer=3)
    assert player.reads == {5: 1}


# ---------------------------------------------------------------------- a follower asks its leader


def _follower() -> Player:
    """Member 1 follows member 2 in term 1."""
    player = Player(extensions=ALL)
    player.append(1)
    return player


def _asked(player: Player) -> tuple[int, Request]:
    """The one request that the read led to, and its seq."""
    sent = player.sent()
    assert len(sent) == 1
    return sent[0][1], sent[0][2]


def test_follower_asks_its_leader_for_the_index() -> None:
    player = _follower()
    player.read(token=5)
    seq, request = _asked(player)
    assert request == Request(READ, 1, 2)
    assert not player.reads
    player.hear(seq, Response(READ_RESPONSE, 2, 2, 1, 8, True))
    assert player.reads == {5: 7}


def test_follower_with_a_slow_disk_asks_at_once() -> None:
    """The request says nothing that could be forgotten, no term in particular."""
    player = _follower()
    player.slow_disk = True
    player.append(2)
    player.read(token=5)
    assert [request.type for _, _, request in player.requests] == [READ]


def test_each_read_of_a_follower_has_a_request_of_its_own() -> None:
    """An index that was asked for before says nothing of what was committed since."""
    player = _follower()
    player.read(token=5)
    seq, _ = _asked(player)
    player.read(token=6)
    later, _ = _asked(player)
    player.hear(seq, Response(READ_RESPONSE, 2, 2, 1, 8, True))
    assert player.reads == {5: 7}
    player.hear(later, Response(READ_RESPONSE, 2, 2, 1, 9, True))
    assert player.reads == {5: 7, 6: 8}


def test_read_is_refused_where_the_leader_lacks_the_extension() -> None:
    player = _follower()
    player.node.set_extensions(2, ALL - {READ_INDEX})
    with pytest.raises(ProposalDropped, match=Refusal.NOT_LEADER):
        player.read()
    assert not player.requests
    player.append(2, source=3)  # the extensions are those of the leader, not of a former one
    player.read()
    assert [peer for peer, _, _ in player.requests] == [3]


def test_read_is_refused_where_no_leader_is_known() -> None:
    player = _follower()
    player.ask_vote(9, (9, 9), ordered=True)
    with pytest.raises(ProposalDropped, match=Refusal.NOT_LEADER):
        player.read()


def test_read_that_the_leader_refuses_has_no_index() -> None:
    player = _follower()
    player.read(token=5)
    seq, _ = _asked(player)
    player.hear(seq, Response(READ_RESPONSE, 2, NO_LEADER, 1, 0, False))
    assert player.reads == {5: None}


def test_read_whose_request_is_lost_has_no_index() -> None:
    player = _follower()
    player.read(token=5)
    player.lose()
    assert player.reads == {5: None}


def test_reads_of_a_follower_whose_leader_cannot_be_reached_at_all_have_no_index() -> None:
    player = _follower()
    player.read(token=5)
    player.read(token=6)
    player.node.report_unreachable(3, None)
    player.turn()
    assert not player.reads
    player.node.report_unreachable(2, None)
    player.turn()
    assert player.reads == {5: None, 6: None}


def _another_leads(player: Player) -> None:
    player.append(2, source=3)


def _the_same_leads_again(player: Player) -> None:
    player.append(2, source=2)


def _a_later_term_begins(player: Player) -> None:
    player.ask_vote(2, (9, 9), source=3, ordered=True)


def _the_leader_is_silent(player: Player) -> None:
    player.doubt()


def _it_is_told_to_stand(player: Player) -> None:
    player.order(1)


@pytest.mark.parametrize(
    "change",
    [
        _another_leads,
        _the_same_leads_again,
        _a_later_term_begins,
        _the_leader_is_silent,
        _it_is_told_to_stand,
    ],
)
def test_read_of_a_follower_ends_at_once_with_the_leader_that_was_asked(
    change: Callable[[Player], None],
) -> None:
    player = _follower()
    player.read(token=5)
    seq, _ = _asked(player)
    change(player)
    assert player.reads == {5: None}
    player.hear(seq, Response(READ_RESPONSE, 2, 2, 1, 8, True))
    assert player.reads == {5: None}


def test_index_of_an_earlier_term_does_not_count() -> None:
    """It comes with the news of the later term, in one turn."""
    player = _follower()
    player.read(token=5)
    seq, _ = _asked(player)
    player.node.step(Request(APPEND, 2, 1, 2), 1)
    player.node.step_response(seq, Response(READ_RESPONSE, 2, 2, 1, 8, True))
    player.turn()
    assert player.reads == {5: None}


def test_index_of_a_later_term_does_not_count() -> None:
    player = _follower()
    player.read(token=5)
    seq, _ = _asked(player)
    player.hear(seq, Response(READ_RESPONSE, 2, 2, 2, 8, True))
    assert player.reads == {5: None}
    assert (player.node.term, player.node.leader) == (2, 0)


# ---------------------------------------------------------------------- a leader is asked


def test_leader_answers_a_follower_once_a_majority_confirms() -> None:
    player = leader_of()
    player.propose(b"x")
    before = player.sent()
    assert player.ask_index() is None
    for _, seq, request in before[:1]:  # sent before it was asked: it commits, and confirms nothing
        player.answer(seq, request, 3)
    assert player.commit == 2
    assert player.token not in player.responses
    player.accept(peer=2)
    assert player.responses[player.token] == Response(READ_RESPONSE, 1, 1, 1, 2, True)
    assert not player.reads


def test_leader_answers_with_the_commit_index_of_the_moment_it_was_asked_in() -> None:
    player = leader_of()
    player.ask_index()
    token = player.token
    player.propose(b"x")
    player.accept(peer=2)
    player.accept(peer=2)
    assert player.commit == 2
    assert player.responses[token].next_index == 2


def test_new_leader_answers_only_once_an_entry_of_its_term_is_committed() -> None:
    player = Player(1, [1, 1], commit=0).lead()
    player.lose()
    player.ask_index(source=3)
    player.wait(50)
    player.refuse(2)  # that confirms that it leads
    assert player.token not in player.responses
    player.accept(peer=2)
    assert player.commit == 3
    assert player.responses[player.token] == Response(READ_RESPONSE, 1, 1, 2, 4, True)


def test_leader_without_a_majority_answers_an_empty_client_request_and_no_follower() -> None:
    player = leader_of(5)
    assert player.post().accepted
    player.ask_index()
    for _ in range(3):
        player.wait(50)
        player.accept(peer=2)
    assert player.token not in player.responses
    player.wait(101)
    assert player.node.role is Role.FOLLOWER
    assert player.responses[player.token] == Response(READ_RESPONSE, 1, NO_LEADER, 1, 0, False)


def test_leader_that_another_one_replaced_refuses_and_names_it() -> None:
    player = leader_of()
    player.ask_index()
    token, waiting = player.token, player.sent()
    player.append(2, (1, 1), source=3)
    assert player.responses[token] == Response(READ_RESPONSE, 1, 3, 2, 0, False)
    player.answer_each(waiting, 2)
    assert player.responses[token] == Response(READ_RESPONSE, 1, 3, 2, 0, False)


def test_member_that_does_not_lead_refuses_and_names_the_leader_that_it_knows() -> None:
    player = Player(extensions=ALL)
    assert player.ask_index() == Response(READ_RESPONSE, 1, NO_LEADER, 0, 0, False)
    player.append(1, source=3)
    assert player.ask_index() == Response(READ_RESPONSE, 1, 3, 1, 0, False)
    player.campaign()
    assert player.ask_index() == Response(READ_RESPONSE, 1, NO_LEADER, 2, 0, False)
