"""The poll before an election (thesis 9.6), and what it is towards peers that know no PreVote."""

from __future__ import annotations

import pytest

from garlicfarm.extensions import PRE_VOTE
from garlicfarm.raft import Role
from garlicfarm.wire.messages import MessageType, Request
from tests.raft.playbook import ALL, POLL, VOTE, Player, Stage


@pytest.mark.parametrize(
    ("term", "last", "granted"),
    [
        (4, (2, 2), True),
        (9, (2, 2), True),
        (4, (1, 2), False),  # a shorter log
        (4, (9, 1), False),  # an earlier last term
        (4, (1, 3), True),
        (3, (2, 2), False),  # no later term than ours
        (0, (2, 2), False),
    ],
)
def test_pre_vote_is_granted_by_term_and_log_and_changes_nothing(
    term: int, last: tuple[int, int], granted: bool
) -> None:
    player = Player(1, [1, 2], term=3, vote=1)
    before = player.picture
    response = player.poll(term, last)
    assert (response.type, response.term) == (MessageType.PRE_VOTE_RESPONSE, 3)
    assert response.accepted is granted
    assert player.picture == before
    assert player.disk.initial_state()[0].vote == 1


def test_pre_vote_is_granted_to_several_in_one_term() -> None:
    player = Player()
    answers = [player.poll(1, source=source) for source in (2, 3, 2)]
    assert [answer.accepted for answer in answers if answer] == [True] * 3


def test_pre_vote_is_refused_while_a_leader_is_heard_and_granted_after() -> None:
    player = Player()
    player.random = 200
    player.append(1)
    player.wait(99)
    refused = player.poll(2, source=3)
    player.wait(1)
    granted = player.poll(2, source=3)
    assert not refused.accepted
    assert granted.accepted


def test_pre_vote_is_refused_by_a_leader() -> None:
    player = Player().lead()
    before = player.picture
    assert not player.poll(2, (9, 9)).accepted
    assert player.picture == before


def test_pre_vote_is_granted_by_a_candidate_and_by_one_that_polls() -> None:
    for polls_only in (True, False):
        player = Player(extensions=ALL)
        if polls_only:
            player.wait(100)
        else:
            player.campaign()
        assert player.node.role is Role.CANDIDATE
        assert player.poll(2).accepted


def test_poll_asks_for_the_next_term_and_raises_none() -> None:
    player = Player(1, [1, 2], term=3, extensions=ALL)
    player.wait(100)
    assert (player.node.role, player.node.term) == (Role.CANDIDATE, 3)
    assert [request for _, _, request in player.sent()] == [
        Request(POLL, 1, peer, 4, 2, 2) for peer in (2, 3)
    ]
    assert player.disk.initial_state()[0].term == 3


@pytest.mark.parametrize(("size", "granting", "stands"), [(3, 0, False), (3, 1, True), (5, 1, False)])
def test_poll_that_a_majority_grants_is_followed_by_the_vote(size: int, granting: int, stands: bool) -> None:
    player = Player(members=range(1, size + 1), extensions=ALL)
    player.wait(100)
    polls = player.sent()
    player.answer_each(polls[:granting])
    player.answer_each(polls[granting:], accepted=False)
    assert (player.node.term == 1) is stands
    assert {request.type for _, _, request in player.sent()} == ({VOTE} if stands else set())


def test_poll_answered_twice_by_one_member_counts_once() -> None:
    player = Player(members=(1, 2, 3, 4, 5), extensions=ALL)
    player.wait(100)
    (_, seq, request), *_ = player.sent()
    for _ in range(3):
        player.answer(seq, request)
    assert player.node.term == 0


def test_poll_answered_in_a_later_term_brings_that_term_and_no_candidacy() -> None:
    player = Player(1, term=3, extensions=ALL)
    player.wait(100)
    (_, seq, request), *_ = player.sent()
    player.answer(seq, request, accepted=False, term=7)
    assert (player.node.role, player.node.term) == (Role.FOLLOWER, 7)
    player.campaign()
    assert player.node.term == 8


def test_poll_of_the_attempt_before_does_not_count_in_this_one() -> None:
    player = Player(extensions=ALL)
    player.wait(100)
    old = player.sent()
    player.wait(100)
    player.answer_each(old)
    assert player.node.term == 0


def test_granted_poll_is_no_vote() -> None:
    player = Player(members=(1, 2, 3, 4, 5), extensions=ALL)
    player.wait(100)
    polls = player.sent()
    player.answer_each(polls)
    votes = player.sent()
    player.answer(votes[0][1], votes[0][2])
    player.answer_each(polls)
    assert player.node.role is Role.CANDIDATE
    player.answer(votes[1][1], votes[1][2])
    assert player.node.role is Role.LEADER


def test_poll_ends_when_a_leader_is_heard() -> None:
    player = Player(1, term=1, extensions=ALL)
    player.wait(100)
    polls = player.sent()
    player.append(1)
    player.answer_each(polls)
    assert (player.node.role, player.node.term) == (Role.FOLLOWER, 1)


# Peers without the extension


def test_jraft_peer_is_asked_in_a_term_that_is_over_whether_it_can_be_reached() -> None:
    player = Player(1, [1, 2], term=3)
    player.extensions[3] = frozenset({PRE_VOTE})
    player.crash()
    player.wait(100)
    assert [request for _, _, request in player.sent()] == [
        Request(VOTE, 1, 2, 2, 2, 2),
        Request(POLL, 1, 3, 4, 2, 2),
    ]


@pytest.mark.parametrize("accepted", [False, True])
def test_jraft_peers_answer_of_any_kind_lets_it_stand(accepted: bool) -> None:
    player = Player(1, term=3)
    player.wait(100)
    (_, seq, request), *_ = player.sent()
    player.answer(seq, request, accepted=accepted, term=3)
    assert (player.node.role, player.node.term) == (Role.CANDIDATE, 4)


def test_refusal_of_a_peer_with_the_extension_is_none_that_any_answer_outweighs() -> None:
    player = Player(1, term=3)
    player.extensions[2] = frozenset({PRE_VOTE})
    player.crash()
    player.wait(100)
    for peer, seq, request in player.sent():
        if peer == 2:
            player.answer(seq, request, accepted=False)
    assert player.node.term == 3
    player.wait(100)
    for peer, seq, request in player.sent():
        if peer == 3:
            player.answer(seq, request, accepted=False)
    assert player.node.term == 4


@pytest.mark.parametrize("term", [0, 1, 2, 3])
def test_probe_of_a_term_that_is_over_changes_nothing(term: int) -> None:
    player = Player(1, term=term)
    before = player.picture
    for probed in range(term):
        response = player.ask_vote(probed, (9, 9))
        assert (response.accepted, response.term) == (False, term)
    assert player.picture == before


def test_vote_is_never_given_in_term_0_which_nobody_leads() -> None:
    player = Player()
    before = player.picture
    assert not player.ask_vote(0, (9, 9)).accepted
    assert player.picture == before


def test_jraft_peers_in_term_0_cannot_be_probed_and_are_asked_for_their_vote() -> None:
    player = Player()
    player.wait(100)
    assert player.node.term == 1
    assert [request.term for _, _, request in player.sent()] == [1, 1]


def test_poll_in_term_0_counts_jraft_peers_but_waits_for_the_others() -> None:
    player = Player(members=(1, 2, 3, 4, 5))
    for peer in (3, 4, 5):
        player.extensions[peer] = frozenset({PRE_VOTE})
    player.crash()
    player.wait(100)
    assert player.node.term == 0
    (_, seq, request), *_ = player.sent()
    player.answer(seq, request)
    assert player.node.term == 1


# What it is good for


@pytest.mark.parametrize("extensions", [frozenset(), ALL], ids=["jraft", "all"])
def test_isolated_member_never_raises_its_term(extensions: frozenset[str]) -> None:
    player = Player(1, [1], extensions=extensions)
    for _ in range(50):
        player.wait(100)
        player.lose()
    assert player.node.term == 1
    assert player.disk.initial_state()[0].term == 1


def _follow(stage: Stage, leader: int, *others: int, beats: int = 10) -> None:
    """The leader beats, which others alone hear; the time of the rest passes too."""
    for _ in range(beats):
        for player in stage.players.values():
            player.wait(50)
        stage.deliver(leader, *others)


def test_member_that_returns_from_a_partition_does_not_depose_the_leader() -> None:
    stage = Stage([], [], [], extensions=ALL)
    stage.elect(1, 2)
    stage.settle(1, 2, 3)
    _follow(stage, 1, 2)
    assert stage[3].node.role is Role.CANDIDATE
    stage.deliver(3, 1, 2)  # its poll: both hear a leader
    _follow(stage, 1, 2, 3, beats=1)
    assert [player.node.leader for player in stage.players.values()] == [1, 1, 1]
    assert {player.node.term for player in stage.players.values()} == {1}


def test_two_members_that_are_cut_off_from_each_other_wait_in_their_term() -> None:
    stage = Stage([], [], extensions=ALL)
    stage.elect(1, 2)
    stage.settle(1, 2)
    for player in stage.players.values():
        for _ in range(20):
            player.wait(50)
            player.lose()
    assert [player.node.role for player in stage.players.values()] == [Role.CANDIDATE] * 2
    assert {player.node.term for player in stage.players.values()} == {1}
    stage.elect(2, 1)
    assert stage[2].node.term == 2


def test_member_alone_needs_no_poll() -> None:
    player = Player(members=(1,), extensions=ALL)
    player.wait(100)
    assert (player.node.role, player.node.term) == (Role.LEADER, 1)


def test_candidate_behind_in_the_log_wins_no_poll_and_disturbs_nobody() -> None:
    stage = Stage([1, 1], [1, 1], [1], extensions=ALL)
    three = stage[3]
    three.wait(100)
    stage.deliver(3, 1, 2)
    assert {player.node.term for player in stage.players.values()} == {1}
    stage.elect(1, 3)


def test_member_that_was_stuck_in_a_later_term_is_freed_by_the_leaders_next_message() -> None:
    """Its refusal brings the term to the leader, which stands again (etcd's FreeStuckCandidate)."""
    stage = Stage([], [], [], extensions=ALL)
    stage.elect(1, 2)
    stage.settle(1, 2, 3)
    stage[3].ask_vote(5, (1, 1), ordered=True)
    stage[1].wait(50)
    stage.deliver(1, 2, 3)
    assert (stage[1].node.role, stage[1].node.term) == (Role.FOLLOWER, 5)
    stage.elect(1, 2, 3)
    stage.settle(1, 2, 3)
    assert [player.node.leader for player in stage.players.values()] == [1, 1, 1]


def test_poll_won_at_once_is_no_word_of_a_term_that_a_crash_may_forget() -> None:
    """Two of three know no poll in term 0: it stands in the turn in which it asks the third."""
    stage = Stage([], [], [])
    player = stage[2]
    player.node.set_extensions(1, ALL)
    player.slow_disk = True
    player.wait(100)
    assert player.node.term == 1
    assert [request.type for _, _, request in player.requests] == [POLL]
    player.crash()
    assert player.node.term == 0


def test_what_a_candidate_asks_in_vain_is_asked_again_once_the_peer_is_connected() -> None:
    """Between followers a path may break unnoticed: it shows when the leader is dead."""
    player = Player(extensions=ALL)

    def asked(peer: int) -> list[tuple[MessageType, int]]:
        player.node.set_extensions(peer, ALL)
        player.turn()
        return [(request.type, request.term) for _, _, request in player.requests]

    player.wait(100)
    assert asked(2) == [(POLL, 1)] * 2, "what is under way is not asked again"
    player.lose()
    assert asked(3) == [(POLL, 1)]
    assert asked(3) == [(POLL, 1)]
    player.accept()
    assert asked(3) == [(VOTE, 1)] * 2
    player.lose()
    assert asked(2) == [(VOTE, 1)]
    player.accept()
    assert player.node.role is Role.LEADER


def test_poll_that_got_no_answer_is_not_followed_by_a_vote_of_its_own() -> None:
    player = Player(extensions=ALL)
    player.wait(100)
    player.lose(2)
    player.accept(peer=3)
    assert player.node.term == 1
    votes = player.sent()
    player.node.set_extensions(2, ALL)
    player.turn()
    assert [request.type for _, _, request in votes] == [VOTE] * 2
    assert player.sent() == []
