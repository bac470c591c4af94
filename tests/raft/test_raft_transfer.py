"""Handing over the leadership (thesis 3.10)."""

from __future__ import annotations

from functools import partial

import pytest

from garlicfarm.errors import ProposalDropped
from garlicfarm.extensions import TIMEOUT_NOW
from garlicfarm.raft import Change, Role
from garlicfarm.raft.votes import TRANSFER_CAMPAIGN
from garlicfarm.refusals import Refusal
from garlicfarm.wire.messages import MessageType, Request
from tests.raft.playbook import ALL, APPEND, TIMEOUT, VOTE, Player, Stage, configuration_entry, leader_of

_leader = partial(leader_of, extensions=ALL)


def _kinds(player: Player, peer: int) -> list[MessageType]:
    return [request.type for _, _, request in player.sent(peer)]


# The leader


def test_transfer_to_a_member_that_holds_all_tells_it_to_stand_at_once() -> None:
    player = _leader()
    player.transfer(3)
    assert not player.sent(2)
    ((_, _, request),) = player.sent(3)
    assert request == Request(TIMEOUT, 1, 3, 1, 1, 1, 1)
    assert player.node.role is Role.LEADER  # until it hears of the later term


def test_transfer_to_a_member_that_lags_first_brings_it_up_to_date() -> None:
    player = _leader()
    player.propose(b"x")
    player.transfer(3)
    sent = player.sent(3)
    assert [request.type for _, _, request in sent] == [APPEND]
    _, seq, request = sent[0]
    player.answer(seq, request, 3)
    assert TIMEOUT in _kinds(player, 3)


def test_transfer_to_a_member_that_needs_a_snapshot_sends_it_first() -> None:
    stage = _stage_with_one_that_needs_a_snapshot()
    stage[1].transfer(3)
    while stage[3].node.role is Role.FOLLOWER:
        stage[1].wait(50)
        stage.deliver(1, 2, 3)
    stage.deliver(3, 1, 2)
    assert stage[3].node.role is Role.LEADER
    assert stage[3].restored


def _stage_with_one_that_needs_a_snapshot() -> Stage:
    stage = Stage([], [], [], extensions=ALL, watched=False)
    stage.elect(1, 2)
    stage[1].lose(3)
    stage[1].propose(b"a", b"b")
    stage.settle(1, 2)
    stage[1].take_snapshot()
    return stage


def test_new_leader_hands_over_to_a_member_that_has_answered_it() -> None:
    player = Player(members=(1, 2, 3), extensions=ALL)
    player.answer_each(player.campaign())
    player.transfer(0)
    assert TIMEOUT not in _kinds(player, 2)
    player.accept(peer=3)
    assert TIMEOUT in _kinds(player, 3)
    assert TIMEOUT not in _kinds(player, 2)


def test_member_that_was_told_is_told_once() -> None:
    player = _leader()
    player.transfer(3)
    assert _kinds(player, 3) == [TIMEOUT]
    player.wait(60)
    assert TIMEOUT not in _kinds(player, 3)


def test_nothing_is_appended_while_it_hands_over() -> None:
    player = _leader()
    player.transfer(3)
    before = player.terms
    response = player.post(b"x")
    assert response is not None
    assert (response.accepted, response.destination) == (False, 1)
    assert response.next_index == Refusal.LEADERSHIP_IN_TRANSFER.number
    with pytest.raises(ProposalDropped, match=Refusal.LEADERSHIP_IN_TRANSFER):
        player.propose(b"x")
    with pytest.raises(ProposalDropped, match=Refusal.LEADERSHIP_IN_TRANSFER):
        player.change(Change.REMOVE, 3)
    with pytest.raises(ProposalDropped, match=Refusal.LEADERSHIP_IN_TRANSFER):
        player.transfer(2)
    assert player.terms == before


def test_entries_that_wait_already_are_committed_while_it_hands_over() -> None:
    player = _leader()
    player.propose(b"x", token=7)
    player.transfer(3)
    player.accept(peer=2)
    assert player.outcomes == {7: (2, 1)}


def test_empty_client_request_and_reads_are_served_while_it_hands_over() -> None:
    player = _leader()
    player.transfer(3)
    assert player.post().accepted
    player.sent()
    player.read(token=5)
    player.accept(peer=2)
    assert player.reads == {5: 1}


def test_transfer_that_takes_longer_than_the_upper_election_timeout_is_given_up() -> None:
    player = _leader()
    player.transfer(3)
    for _ in range(4):
        with pytest.raises(ProposalDropped, match=Refusal.LEADERSHIP_IN_TRANSFER):
            player.propose(b"x")
        player.wait(50)
        player.accept(peer=2)
    assert player.node.role is Role.LEADER
    player.propose(b"x")
    player.accept(peer=2)
    assert player.outcomes == {1: (2, 1)}
    player.transfer(2)  # another one may begin


@pytest.mark.parametrize("answered", [True, False])
def test_member_that_refuses_or_does_not_answer_is_told_again_with_the_next_heartbeat(answered: bool) -> None:
    """A follower stands only once it has applied the Configuration that it knows is committed."""
    player = _leader()
    player.transfer(3)
    for _ in range(2):
        ((_, seq, request),) = [each for each in player.sent(3) if each[2].type is TIMEOUT]
        if answered:
            player.answer(seq, request, accepted=False)
        else:
            player.node.report_unreachable(3, seq)
        assert TIMEOUT not in _kinds(player, 3)
        with pytest.raises(ProposalDropped, match=Refusal.LEADERSHIP_IN_TRANSFER):
            player.propose(b"x")
        player.wait(60)


def test_transfer_that_the_member_always_refuses_is_given_up() -> None:
    player = _leader()
    player.transfer(3)
    for _ in range(10):
        for _, seq, request in player.sent():
            player.answer(seq, request, accepted=request.type is not TIMEOUT)
        player.wait(30)
    player.propose(b"x")
    assert player.terms == [1, 1]


def test_transfer_that_the_member_obeys_goes_on_until_it_is_heard_of() -> None:
    player = _leader()
    player.transfer(3)
    ((_, seq, request),) = player.sent(3)
    player.answer(seq, request)
    with pytest.raises(ProposalDropped, match=Refusal.LEADERSHIP_IN_TRANSFER):
        player.propose(b"x")
    assert player.ask_vote(2, (1, 1), source=3, ordered=True).accepted
    assert player.node.role is Role.FOLLOWER


def test_transfer_to_a_dead_member_times_out_and_the_leader_goes_on() -> None:
    player = _leader()
    player.transfer(3)
    for _ in range(5):
        player.lose(3)
        player.wait(50)
        player.accept(peer=2)
    assert player.node.role is Role.LEADER
    player.propose(b"x")


@pytest.mark.parametrize("to", [1, 4, 99])
def test_transfer_to_itself_or_to_no_member_is_refused(to: int) -> None:
    player = _leader()
    with pytest.raises(ProposalDropped, match=Refusal.NO_SUCH_MEMBER):
        player.transfer(to)
    player.propose(b"x")


def test_transfer_of_a_leader_alone_is_refused() -> None:
    with pytest.raises(ProposalDropped, match=Refusal.NO_SUCH_MEMBER):
        _leader(1).transfer()


def test_transfer_by_one_that_does_not_lead_is_refused() -> None:
    player = Player(extensions=ALL)
    with pytest.raises(ProposalDropped, match=Refusal.NOT_LEADER):
        player.transfer(2)
    player.append(1)
    with pytest.raises(ProposalDropped, match=Refusal.NOT_LEADER):
        player.transfer(2)


def test_transfer_to_a_member_that_is_removed_meanwhile_ends() -> None:
    player = _leader()
    player.change(Change.REMOVE, 3)
    player.transfer(3)
    player.accept(peer=2)
    assert player.outcomes == {1: (2, 1)}
    player.propose(b"x")
    assert TIMEOUT not in _kinds(player, 3)


def test_transfer_that_is_under_way_when_leadership_is_lost_is_forgotten() -> None:
    player = _leader()
    player.propose(b"x")
    player.transfer(3)
    player.append(2, (1, 1), source=2)
    player.doubt()
    player.lead()
    player.accept()
    assert TIMEOUT not in _kinds(player, 3)
    player.propose(b"y")


def test_transfer_to_nobody_in_particular_goes_to_the_one_that_holds_most() -> None:
    player = _leader(5)
    player.propose(b"x")
    player.accept(peer=4)
    player.sent()
    player.transfer()
    assert _kinds(player, 4) == [TIMEOUT]


def test_transfer_to_nobody_in_particular_passes_over_one_that_was_not_heard_of_late() -> None:
    player = _leader()
    player.propose(b"x")
    player.accept(peer=3)
    for _ in range(5):
        player.lose(3)
        player.wait(50)
        player.refuse(2)
    player.transfer()
    player.wait(50)
    player.accept(peer=2)
    assert TIMEOUT in _kinds(player, 2)


def test_transfer_to_nobody_in_particular_prefers_one_that_can_be_told() -> None:
    player = _leader(extensions=frozenset())
    player.node.set_extensions(3, ALL)
    player.transfer()
    assert _kinds(player, 3) == [TIMEOUT]


# The member that is told


def test_member_that_is_told_to_stand_asks_for_votes_without_a_poll() -> None:
    player = Player(1, [1], extensions=frozenset({TIMEOUT_NOW}))
    player.append(1, (1, 1))
    assert player.order(1).accepted
    assert (player.node.role, player.node.term) == (Role.CANDIDATE, 2)
    assert [request for _, _, request in player.sent()] == [
        Request(VOTE, 1, peer, 2, 1, 1, TRANSFER_CAMPAIGN) for peer in (2, 3)
    ]


def test_mark_of_an_ordered_election_goes_only_to_peers_that_know_it() -> None:
    player = Player(1, [1])
    player.append(1, (1, 1))
    player.node.set_extensions(2, frozenset({TIMEOUT_NOW}))
    player.order(1)
    assert [request.commit_index for _, _, request in player.sent()] == [TRANSFER_CAMPAIGN, 0]


@pytest.mark.parametrize(("term", "source"), [(0, 2), (2, 2), (1, 3)])
def test_order_of_one_that_does_not_lead_is_refused_and_changes_nothing(term: int, source: int) -> None:
    player = Player(1, [1])
    player.append(1, (1, 1))
    before = player.picture
    assert not player.order(term, source).accepted
    assert player.picture == before


def test_order_is_refused_by_a_candidate_and_by_a_leader() -> None:
    for player in (Player().lead(), Player()):
        if player.node.role is not Role.LEADER:
            player.campaign()
        before = player.picture
        assert not player.order(1).accepted
        assert player.picture == before


def test_order_is_refused_by_one_outside_its_configuration() -> None:
    player = Player(4, members=(1, 2, 3))
    player.append(1)
    assert not player.order(1).accepted
    assert player.node.role is Role.FOLLOWER


def test_order_is_refused_while_a_committed_configuration_is_not_applied() -> None:
    """D7: it could lead by one Configuration and lose another."""
    player = Player()
    player.slow_disk = True
    player.append(1, (0, 0), [configuration_entry(1, 1, 0, (1, 2, 3, 4))], commit=1)
    player.order(1)
    player.sync_all()
    assert not player.responses[player.token].accepted
    assert player.order(1)  # applied by now.accepted


def test_ordered_election_that_fails_is_followed_by_an_ordinary_one() -> None:
    player = Player(1, [1], extensions=ALL)
    player.append(1, (1, 1))
    player.order(1)
    player.lose()
    player.wait(100)
    assert {request.type for _, _, request in player.sent()} == {MessageType.PRE_VOTE_REQUEST}
    assert player.node.term == 2


# Both


def test_leadership_changes_hands_within_a_round_though_all_hear_the_leader() -> None:
    stage = Stage([], [], [], extensions=ALL)
    stage.elect(1, 2)
    stage.settle(1, 2, 3)
    stage[1].transfer(3)
    stage.deliver(1, 2, 3)
    stage.deliver(3, 1, 2)
    assert stage[3].node.role is Role.LEADER
    stage.settle(3, 1, 2)
    assert {player.node.leader for player in stage.players.values()} == {3}
    assert {player.node.term for player in stage.players.values()} == {2}


def test_leadership_goes_back_and_forth() -> None:
    stage = Stage([], [], [], extensions=ALL)
    stage.elect(1, 2, 3)
    stage.settle(1, 2, 3)
    for term, (old, new) in enumerate([(1, 2), (2, 3), (3, 1), (1, 3)], 2):
        stage[old].transfer(new)
        stage.deliver(old, *({1, 2, 3} - {old}))
        stage.deliver(new, *({1, 2, 3} - {new}))
        stage.settle(new, *({1, 2, 3} - {new}))
        assert {(p.node.leader, p.node.term) for p in stage.players.values()} == {(new, term)}


@pytest.mark.parametrize("lagging", [False, True])
def test_transfer_to_a_jraft_peer_steps_down_when_it_holds_all_and_rests(lagging: bool) -> None:
    player = _leader(extensions=frozenset())
    if lagging:
        player.propose(b"x", token=7)
    player.transfer(3)
    if lagging:
        assert player.node.role is Role.LEADER
        player.accept(peer=3)
        assert player.outcomes == {7: (2, 1)}
    assert player.node.role is Role.FOLLOWER
    player.sent()
    player.wait(100 + 400 - 1)  # the others draw at most 200
    assert player.node.role is Role.FOLLOWER
    player.wait(1)
    assert player.node.role is Role.CANDIDATE


def test_one_that_rests_votes_and_follows_like_any_other() -> None:
    player = _leader(extensions=frozenset())
    player.transfer(3)
    assert player.ask_vote(2, (1, 1), source=3).accepted
    player.append(2, (1, 1), source=3)
    player.sent()
    player.doubt()
    assert player.node.role is Role.CANDIDATE  # it rests no more than once


def test_member_that_is_ordered_to_stand_begins_a_timeout_of_its_own() -> None:
    player = Player(extensions=ALL)
    player.append(1)
    player.wait(90)
    player.order(1)
    assert player.node.role is Role.CANDIDATE
    assert player.node.deadline_ms == 190
