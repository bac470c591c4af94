"""A new server first catches up, in rounds (thesis 4.2.1), and counts only when its Configuration is
committed."""

from __future__ import annotations

from typing import Any

import pytest

from garlicfarm.errors import ProposalDropped
from garlicfarm.raft import Change, Role
from garlicfarm.raft.joiner import MAX_ROUNDS
from garlicfarm.refusals import Refusal
from garlicfarm.wire import decode_log_pack, encode_configuration
from garlicfarm.wire.messages import LogEntry, MessageType, Request, Response, ValueType
from tests.raft.playbook import ALL, JOIN, SNAPSHOT, Player, Stage, configuration, leader_of


def _stage(size: int = 3, **config: Any) -> Stage:
    """Member 1 leads; server 9 has an empty store."""
    stage = Stage(*[[] for _ in range(size)], extensions=ALL, **config)
    others = range(2, size + 1)
    if size == 1:
        stage[1].wait(100)
    else:
        stage.elect(1, *others)
        stage.settle(1, *others)
    stage.join(9)
    return stage


def test_server_that_is_added_catches_up_becomes_a_member_and_learns_it() -> None:
    stage = _stage()
    stage[1].propose(b"a", b"b")
    stage[1].change(Change.ADD, 9, token=5)
    assert stage[1].node.servers[-1].id == 9
    stage.settle(1, 2, 3, 9)
    assert {tuple(player.member_ids) for player in stage.players.values()} == {(1, 2, 3, 9)}
    assert {tuple(player.terms) for player in stage.players.values()} == {tuple(stage[1].terms)}
    index = len(stage[1].terms)
    assert stage[1].outcomes[5] == (index, 1)
    assert stage[9].state == stage[1].state == b"ab"


def test_server_without_a_configuration_waits_to_be_told_and_never_stands() -> None:
    player = Player(9, members=())
    assert player.node.deadline_ms is None
    player.wait(10_000)
    player.append(1, source=1)
    player.wait(10_000)
    assert (player.node.role, player.node.term) == (Role.FOLLOWER, 1)


def test_server_that_joins_counts_in_no_majority() -> None:
    player = leader_of()
    player.add(4)
    player.propose(b"x", token=7)
    player.accept(peer=4)
    player.accept(peer=4)
    assert player.node.status().peers[4].match_index >= 2
    assert 7 not in player.outcomes
    assert player.commit == 1


def test_configuration_is_appended_when_the_new_server_holds_all_of_the_round() -> None:
    player = leader_of()
    player.propose(b"x")
    player.accept()
    player.accept()
    player.add(4)
    assert len(player.terms) == 2
    ((_, seq, request),) = player.sent(4)
    assert (request.last_log_index, len(request.entries)) == (0, 2)
    player.answer(seq, request, 3)
    assert len(player.terms) == 3
    assert player.member_ids == [1, 2, 3]
    player.accept(peer=2)
    assert player.outcomes == {1: (2, 1)} | {1: (3, 1)}
    assert player.member_ids == [1, 2, 3, 4]


def test_configuration_is_not_appended_before_the_round_is_over() -> None:
    player = Player(batch_bytes=1).lead()
    player.accept()
    player.propose(b"a", b"b")
    while player.requests:
        player.accept()
    assert player.commit == 3
    player.add(4)
    waiting = []
    for held in (1, 2, 3):
        assert len(player.terms) == 3
        waiting += player.sent(4)
        _, seq, request = waiting.pop(0)
        player.answer(seq, request, held + 1)
    assert len(player.terms) == 4


def test_one_member_becomes_two_and_both_are_needed_from_then_on() -> None:
    stage = _stage(1)
    stage[1].change(Change.ADD, 9, token=5)
    stage.settle(1, 9)
    assert [stage[member].member_ids for member in (1, 9)] == [[1, 9]] * 2
    stage[1].propose(b"x", token=6)
    stage[1].lose()
    assert 6 not in stage[1].outcomes
    stage.settle(1, 9)
    assert stage[1].outcomes[6] == (len(stage[1].terms), 1)
    stage.elect(9, 1)
    assert stage[9].node.role is Role.LEADER


def test_slow_round_is_followed_by_another_one_over_what_came_meanwhile() -> None:
    player = leader_of()
    for index in range(1, MAX_ROUNDS):
        player.propose(b"x")
        if index == 1:
            player.add(4)
        requests = player.sent(4)
        for _ in range(3):  # a round of 120 ms, more than the lower election timeout
            player.wait(40)
            player.accept(peer=2)
            player.accept(peer=3)
        player.propose(b"meanwhile")
        for _, seq, request in requests:
            player.answer(seq, request, request.last_log_index + len(request.entries) + 1)
        assert player.disk.contents[-1].value_type is ValueType.APPLICATION
    player.accept(peer=2)
    for _ in range(3):
        player.accept(peer=4)  # a fast one
    assert player.disk.contents[-1].value_type is ValueType.CONFIGURATION
    player.accept()
    assert player.member_ids == [1, 2, 3, 4]


def test_server_that_is_too_slow_for_ten_rounds_is_refused() -> None:
    player = leader_of()
    player.propose(b"x")
    player.add(4, token=5)
    for _ in range(40):
        requests = player.sent(4)
        for _ in range(3):
            player.wait(40)
            player.accept(peer=2)
            player.accept(peer=3)
        player.propose(b"more", token=0)
        for _, seq, request in requests:
            player.answer(seq, request, request.last_log_index + len(request.entries) + 1)
        if 5 in player.outcomes:
            break
    assert player.outcomes[5] == Refusal.JOINER_DOES_NOT_CATCH_UP
    assert player.member_ids == [1, 2, 3]
    assert 4 not in player.node.status().peers
    player.sent(4)
    player.change(Change.REMOVE, 3)  # another change may begin
    player.wait(60)
    assert not player.sent(4)


def test_server_whose_only_round_was_slow_is_a_member_once_it_holds_all() -> None:
    """In an idle farm nothing else would ever end the next round."""
    player = leader_of()
    player.add(4)
    requests = player.sent(4)
    for _ in range(8):
        player.wait(40)
        player.accept(peer=2)
        player.accept(peer=3)
        player.sent(4)  # heartbeats
    ((_, seq, request),) = requests
    player.answer(seq, request, 2)
    assert len(player.terms) == 2
    player.accept(peer=2)
    assert player.member_ids == [1, 2, 3, 4]


def test_server_that_vanishes_while_it_joins_is_given_up() -> None:
    player = leader_of()
    player.change(Change.ADD, 4, token=5)
    for _ in range(60):
        player.wait(40)
        player.lose(4)
        player.accept()
        if player.outcomes:
            break
    assert player.outcomes == {5: Refusal.JOINER_DOES_NOT_ANSWER}
    assert 2000 < player.now <= 2000 + 100 + 100
    assert player.node.role is Role.LEADER
    assert set(player.node.status().peers) == {2, 3}
    assert [member.id for member in player.node.servers] == [1, 2, 3]


def test_server_that_answers_now_and_then_is_not_given_up() -> None:
    player = leader_of()
    player.propose(b"x")
    player.add(4, token=5)
    for beat in range(120):
        player.wait(40)
        if beat % 40 == 39:
            player.refuse(4)
        player.lose(4)
        player.accept()
    assert not [outcome for token, outcome in player.outcomes.items() if token == 5]


def test_server_that_refuses_its_invitation_is_given_up_at_once() -> None:
    player = leader_of()
    player.change(Change.ADD, 4, token=5)
    player.refuse(4)
    assert player.outcomes == {5: Refusal.JOINER_REFUSES}
    assert set(player.node.status().peers) == {2, 3}


def test_server_that_answers_its_invitation_in_a_later_term_deposes_nobody() -> None:
    player = leader_of()
    player.change(Change.ADD, 4, token=5)
    ((_, seq, request),) = player.sent(4)
    player.answer(seq, request, 1, accepted=False, term=9)
    assert (player.node.role, player.node.term) == (Role.LEADER, 1)
    assert player.outcomes == {5: Refusal.JOINER_REFUSES}


def test_member_is_not_invited_away() -> None:
    """JRaft's JoinCluster takes any member over, and lowers its term."""
    player = Player(1, [1], term=5, vote=3)
    before = player.picture
    for term in (1, 5, 9):
        value = encode_configuration(configuration(members=(7, 8)))
        entry = LogEntry(term, ValueType.CONFIGURATION, value)
        assert not player.take(Request(JOIN, 7, 1, term, 0, 0, 0, (entry,))).accepted
    assert player.picture == before


@pytest.mark.parametrize("moment", ["joining", "appended", "committed"])
def test_outcome_of_an_addition_is_told_however_leadership_ends(moment: str) -> None:
    player = leader_of()
    player.add(4, token=5)
    if moment != "joining":
        player.accept(peer=4)
        assert len(player.terms) == 2
    if moment == "committed":
        player.accept(peer=2)
    player.append(2, (1, 1), source=3)
    assert player.outcomes == {
        5: {
            "joining": Refusal.LEADERSHIP_LOST_MEANWHILE,
            "appended": None,
            "committed": (2, 1),
        }[moment]
    }


def test_outcome_of_an_addition_is_told_when_no_majority_answers() -> None:
    player = leader_of()
    player.change(Change.ADD, 4, token=5)
    player.wait(201)
    assert player.outcomes == {5: Refusal.LEADERSHIP_LOST_MEANWHILE}


def test_new_leader_follows_a_server_whose_addition_is_pending() -> None:
    stage = _stage()
    stage[1].change(Change.ADD, 9, token=5)
    while len(stage[1].terms) == 1:
        stage.deliver(1, 9)
    stage[1].wait(50)
    for _, _, request in stage[1].sent(2):
        stage[2].take(request)  # who holds the Configuration now, which the leader never hears
    assert len(stage[2].terms) == 2
    stage[1].crash()
    stage.elect(2, 3)
    stage.settle(2, 1, 3, 9)
    assert {tuple(player.member_ids) for player in stage.players.values()} == {(1, 2, 3, 9)}


def test_new_leader_knows_nothing_of_a_server_that_only_caught_up() -> None:
    stage = _stage()
    stage[1].change(Change.ADD, 9)
    assert len(stage[1].terms) == 1
    stage[1].crash()
    stage.elect(2, 3)
    assert set(stage[2].node.status().peers) == {1, 3}
    stage.settle(2, 1, 3)
    stage[2].change(Change.ADD, 9, token=6)
    stage.settle(2, 1, 3, 9)
    assert stage[9].member_ids == [1, 2, 3, 9]


def test_new_server_far_behind_gets_a_snapshot_and_the_rest_of_the_log() -> None:
    stage = _stage()
    stage[1].propose(*[b"%d" % n for n in range(20)])
    stage.settle(1, 2, 3)
    stage[1].take_snapshot()
    stage[1].propose(b"tail")
    stage[1].change(Change.ADD, 9, token=5)
    assert SNAPSHOT not in {request.type for _, _, request in stage[1].requests}  # it may hold them
    for _ in range(3):
        stage.settle(1, 2, 3, 9)
    assert [meta.index for meta in stage[9].restored] == [21]
    assert stage[9].state == stage[1].state
    assert stage[9].member_ids == [1, 2, 3, 9]


def test_forced_addition_still_waits_until_the_server_has_caught_up() -> None:
    player = leader_of()
    player.add(4, force=True)
    assert len(player.terms) == 1
    player.accept(peer=4)
    assert len(player.terms) == 2


def test_server_that_joins_is_no_target_of_a_transfer() -> None:
    player = leader_of()
    player.change(Change.ADD, 4)
    with pytest.raises(ProposalDropped, match=Refusal.NO_SUCH_MEMBER):
        player.transfer(4)


def test_member_that_was_removed_may_be_added_again_as_far_as_the_core_knows() -> None:
    """That ids never return is for who asks to know (D12)."""
    stage = _stage()
    stage[1].change(Change.REMOVE, 3)
    stage.settle(1, 2, 3)
    stage[1].change(Change.ADD, 3, token=8)
    stage.settle(1, 2, 3)
    assert {tuple(stage[member].member_ids) for member in (1, 2, 3)} == {(1, 2, 3)}


def test_entries_that_an_earlier_leader_lost_are_not_taken_for_committed_by_packs() -> None:
    """The server was invited before, by a leader whose last entries nobody else took; the next one sends
    what is committed in packs, which do not say the term before their first entry."""
    stage = _stage()
    stage[1].change(Change.ADD, 9)
    stage[1].propose(b"lost", b"lost too")
    for _ in range(4):
        stage.deliver(1, 9)
    assert len(stage[9].terms) == len(stage[1].terms) == stage[1].commit + 3
    stage[1].crash()
    stage.elect(2, 3)
    stage[2].propose(*[b"%d" % n for n in range(150)])
    stage.settle(2, 3)
    stage[2].node.set_extensions(9, ALL)  # so its invitation is taken for a resumption
    stage[2].change(Change.ADD, 9)
    for _ in range(3):
        stage.settle(2, 1, 3, 9)
    assert stage[9].member_ids == [1, 2, 3, 9]
    assert stage[9].terms == stage[2].terms
    assert stage[9].state == stage[2].state


@pytest.mark.parametrize("term", [1, 2])
@pytest.mark.parametrize("next_index", [500, 2**64 - 1])
def test_server_that_refuses_a_pack_and_names_more_than_there_is_does_not_end_the_leader(
    term: int, next_index: int
) -> None:
    """One that a later leader brings in too holds more, and says so in the later term."""
    player = Player(1, [1] * 150)
    player.lead()
    player.accept()
    player.accept()
    player.add(4)
    ((_, seq, request),) = player.sent(4)
    assert request.type is MessageType.SYNC_LOG_REQUEST
    player.answer(seq, request, next_index, accepted=False, term=term + 1)
    player.wait(50)
    assert player.node.role is Role.LEADER
    ((_, _, request),) = player.sent(4)
    assert request.last_log_index == player.commit


def test_answer_to_no_request_is_not_one_of_a_server_that_joins() -> None:
    player = Player(members=(1,)).lead()
    player.add(4)
    ((_, seq, request),) = player.sent(4)
    player.answer(seq, request, accepted=True)
    player.hear(0, Response(MessageType.SYNC_LOG_RESPONSE, 4, 1, 1, 2, True))
    assert player.node.role is Role.LEADER


def test_packs_carry_what_is_committed_and_nothing_else() -> None:
    player = Player(1, [1] * 150)
    player.lead()
    player.accept()
    player.accept()
    player.propose(b"not committed")
    player.add(4)
    ((_, _, request),) = player.sent(4)
    assert request.type is MessageType.SYNC_LOG_REQUEST
    pack = decode_log_pack(request.entries[0].value, 1 << 20, 1 << 20)
    assert request.last_log_index + len(pack.entries) == player.commit == len(player.terms) - 1


@pytest.mark.parametrize("entries", [20, 300])
def test_server_that_is_invited_again_goes_on_where_it_was_though_the_first_request_is_lost(
    entries: int,
) -> None:
    player = Player(1, [1] * 400)
    player.lead()
    player.accept()
    player.accept()
    player.node.set_extensions(4, ALL)
    player.change(Change.ADD, 4)
    ((_, seq, request),) = player.sent(4)
    player.answer(seq, request, 401 - entries)
    for _ in range(3):
        ((_, _, request),) = player.requests
        assert request.last_log_index == 400 - entries
        player.lose(4)
        player.wait(50)
        player.accept(peer=2)
        player.accept(peer=3)
