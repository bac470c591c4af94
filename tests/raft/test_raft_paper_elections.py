"""Sentences of the Raft paper (extended version) on terms and elections: §5.1, §5.2, §5.4.1."""

from __future__ import annotations

import random

import pytest

from garlicfarm.raft import HardState, Role
from garlicfarm.wire.messages import MessageType, Response
from tests.raft.playbook import ALL, APPEND, VOTE, Player, Stage


def _in_role(role: Role) -> Player:
    """A member in this role in term 1 (a follower: of member 2)."""
    player = Player()
    if role is Role.FOLLOWER:
        player.append(1)
    elif role is Role.CANDIDATE:
        player.campaign()
    else:
        player.lead()
    assert (player.node.role, player.node.term) == (role, 1)
    return player


@pytest.mark.parametrize("role", Role)
def test_5_1_current_term_smaller_than_the_others_is_updated_to_the_larger_value(role: Role) -> None:
    for message in ("append", "vote", "answer"):
        player = _in_role(role)
        if message == "append":
            player.append(3)
        elif message == "vote":
            player.ask_vote(3, ordered=True)
        else:
            player.hear(0, Response(MessageType.APPEND_ENTRIES_RESPONSE, 2, 1, 3, 1, False))
        assert (player.node.term, player.node.role) == (3, Role.FOLLOWER)
        assert player.disk.initial_state()[0].term == 3


@pytest.mark.parametrize("role", Role)
def test_5_1_request_with_a_stale_term_number_is_rejected(role: Role) -> None:
    player = _in_role(role)
    player.ask_vote(5, ordered=True)  # to term 5
    player.requests.clear()
    before = player.picture
    append = player.append(4, source=3)
    vote = player.ask_vote(4, (9, 4), source=3)
    assert (append.accepted, append.term) == (False, 5)
    assert (vote.accepted, vote.term) == (False, 5)
    assert player.picture == before


def test_5_2_when_servers_start_up_they_begin_as_followers() -> None:
    assert Player().node.role is Role.FOLLOWER
    assert Player(1, [1, 1], term=4, vote=1).node.role is Role.FOLLOWER


def test_5_2_leader_sends_periodic_heartbeats_to_all_followers() -> None:
    player = Player().lead()
    player.accept()
    player.accept()  # the commit notice
    for _ in range(3):
        player.wait(50)
        beats = player.sent()
        assert [peer for peer, _, _ in beats] == [2, 3]
        assert all(request.type is APPEND and not request.entries for _, _, request in beats)
        for _, seq, request in beats:
            player.answer(seq, request, request.last_log_index + 1)


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE])
def test_5_2_no_communication_over_an_election_timeout_begins_an_election(role: Role) -> None:
    """It increments its term, votes for itself, and asks all others in parallel."""
    player = _in_role(role)
    requests = player.campaign()
    assert player.node.role is Role.CANDIDATE
    assert player.node.term == 2
    assert player.disk.initial_state()[0] == HardState(2, 1, 0)
    assert [(peer, request.type, request.term) for peer, _, request in requests] == [
        (2, VOTE, 2),
        (3, VOTE, 2),
    ]


def test_5_2_follower_that_hears_a_leader_does_not_begin_an_election() -> None:
    player = Player()
    for _ in range(10):
        player.wait(90)
        player.append(1)
    assert (player.node.role, player.node.term) == (Role.FOLLOWER, 1)


@pytest.mark.parametrize(
    ("size", "votes", "elected"),
    [(1, 0, True), (2, 0, False), (2, 1, True), (3, 0, False), (3, 1, True), (5, 1, False), (5, 2, True)],
)
def test_5_2_votes_of_a_majority_in_one_term_win_the_election(size: int, votes: int, elected: bool) -> None:
    player = Player(members=range(1, size + 1))
    requests = player.campaign()
    player.answer_each(requests[:votes])
    player.answer_each(requests[votes:], accepted=False)
    assert (player.node.role is Role.LEADER) is elected


def test_5_2_vote_of_one_server_counts_once_and_that_of_an_earlier_term_not_at_all() -> None:
    player = Player(members=(1, 2, 3, 4, 5))
    old = player.campaign()
    (_, seq, request), *_ = player.campaign()
    player.answer(seq, request)
    player.answer(seq, request)
    for _, old_seq, old_request in old:
        player.answer(old_seq, old_request, term=2)
    assert player.node.role is Role.CANDIDATE


def test_5_2_server_votes_for_at_most_one_candidate_in_a_term_first_come_first_served() -> None:
    player = Player()
    votes = [player.ask_vote(1, source=source) for source in (2, 3, 2)]
    assert [vote.accepted for vote in votes if vote] == [True, False, True]
    player.crash()
    votes = [player.ask_vote(1, source=source) for source in (3, 2)]
    assert [vote.accepted for vote in votes if vote] == [False, True]


def test_5_2_vote_that_names_an_earlier_term_is_none() -> None:
    player = Player(term=1)
    player.answer_each(player.campaign(), term=1)
    assert (player.node.role, player.node.term) == (Role.CANDIDATE, 2)


@pytest.mark.parametrize("poll", [True, False])
@pytest.mark.parametrize(("size", "denials"), [(2, 1), (3, 2), (4, 2), (5, 3)])
def test_5_2_candidate_that_cannot_win_any_more_is_a_follower_and_keeps_its_timeout(
    size: int, denials: int, poll: bool
) -> None:
    player = Player(members=range(1, size + 1), extensions=ALL)
    player.random = 170
    if poll:
        player.wait(100)
        requests = player.sent()
    else:
        requests = player.campaign()
    term, deadline, vote = player.node.term, player.node.deadline_ms, player.node.status().vote
    assert deadline == player.now + 170
    player.random = 180  # a new timeout would be another one
    for _, seq, request in requests[:denials]:
        assert player.node.role is Role.CANDIDATE
        player.answer(seq, request, accepted=False)
    assert (player.node.role, player.node.leader, player.node.term) == (Role.FOLLOWER, 0, term)
    assert (player.node.deadline_ms, player.node.status().vote) == (deadline, vote)
    player.answer_each(requests[denials:])
    assert player.node.role is Role.FOLLOWER
    player.wait(169)
    assert not player.requests
    player.wait(1)
    assert (player.node.role, player.node.term) == (Role.CANDIDATE, term)
    assert player.node.deadline_ms == player.now + 180


def test_5_2_candidate_that_is_not_answered_goes_on_until_its_timeout() -> None:
    player = Player(extensions=ALL)
    (_, seq, request), _ = player.campaign()
    player.answer(seq, request, accepted=False)
    player.answer(seq, request, accepted=False)
    player.lose()
    assert player.node.role is Role.CANDIDATE


def test_5_2_denials_of_the_poll_do_not_count_in_the_election() -> None:
    player = Player(members=(1, 2, 3, 4, 5), extensions=ALL)
    player.wait(100)
    for position, (_, seq, request) in enumerate(player.sent()):
        player.answer(seq, request, accepted=position > 1)
    requests = player.sent()
    assert {request.type for _, _, request in requests} == {VOTE}
    _, seq, request = requests[-1]
    player.answer(seq, request, accepted=False)
    assert player.node.role is Role.CANDIDATE


@pytest.mark.parametrize("term", [1, 2])
def test_5_2_candidate_that_hears_a_legitimate_leader_returns_to_follower(term: int) -> None:
    player = _in_role(Role.CANDIDATE)
    assert player.append(term).accepted
    assert (player.node.role, player.node.leader, player.node.term) == (Role.FOLLOWER, 2, term)


def test_5_2_election_timeouts_are_chosen_randomly_from_a_fixed_interval() -> None:
    rng = random.Random(1)
    seen = set()
    for _ in range(400):
        player = Player()
        player.randint = rng.randint
        player.append(1)  # draws anew
        player.doubt()
        seen.add(player.now)
    assert min(seen) in range(100, 110)
    assert max(seen) in range(190, 201)
    assert len(seen) > 60


def test_5_2_candidate_restarts_its_randomized_timeout_at_the_start_of_each_election() -> None:
    player = Player()
    for drawn in (170, 130):
        player.random = drawn
        player.campaign()
        stood, term = player.now, player.node.term
        assert player.node.deadline_ms == stood + drawn
        player.wait(drawn - 1)
        assert not player.requests
        player.wait(1)  # the next one begins, with its poll
        assert player.requests
        assert (player.node.role, player.node.term) == (Role.CANDIDATE, term)


def test_5_2_member_of_higher_priority_draws_from_a_narrower_range() -> None:
    player = Player(priority=4)
    player.random = 10**6
    player.append(1)
    player.doubt()
    assert player.now == 125


def test_5_2_candidate_of_higher_priority_that_was_not_elected_draws_from_the_whole_range() -> None:
    """Or two of them, with narrow ranges, would get in each other's way again and again."""
    player = Player(priority=4)
    player.random = 10**6
    player.campaign()
    assert player.node.deadline_ms == player.now + 200
    player.append(player.node.term)
    begun = player.now
    player.doubt()
    assert player.now == begun + 125, "it has heard a leader since"


def test_5_2_split_vote_is_resolved_by_a_new_election() -> None:
    stage = Stage([], [])
    stage[2].random = 150
    one, two = stage[1], stage[2]
    two.campaign()
    one.campaign()
    assert (one.node.term, two.node.term) == (1, 1)
    answers = [one.ask_vote(1, source=2), two.ask_vote(1, source=1)]
    assert [answer.accepted for answer in answers if answer] == [False, False]
    stage.elect(1, 2)
    assert one.node.term == 2


def test_5_2_server_outside_its_configuration_never_begins_an_election() -> None:
    player = Player(4, members=(1, 2, 3))
    assert player.node.deadline_ms is None
    player.wait(10_000)
    assert player.node.term == 0
    assert player.append(1).accepted


def test_5_4_1_vote_request_says_how_up_to_date_the_candidates_log_is() -> None:
    for terms in ([1], [1, 1, 2], []):
        requests = Player(1, terms, commit=len(terms)).campaign()
        last = (len(terms), terms[-1] if terms else 0)
        # Of what is committed nothing is said, as JRaft's candidates do.
        assert {(r.last_log_index, r.last_log_term, r.commit_index) for _, _, r in requests} == {(*last, 0)}


@pytest.mark.parametrize(
    ("mine", "candidate", "granted"),
    [
        ([], (0, 0), True),
        ([1], (0, 0), False),
        ([1], (1, 1), True),
        ([1, 1], (1, 1), False),
        ([1, 1], (3, 1), True),
        ([1, 1], (1, 2), True),  # a later last term beats length
        ([1, 2], (9, 1), False),
        ([1, 1, 2], (2, 2), False),
    ],
)
def test_5_4_1_voter_denies_its_vote_if_its_own_log_is_more_up_to_date(
    mine: list[int], candidate: tuple[int, int], granted: bool
) -> None:
    response = Player(1, mine).ask_vote(3, candidate)
    assert response.accepted is granted
    assert (response.source, response.destination, response.next_index) == (1, 2, 0)


def test_5_2_denied_candidate_does_not_keep_the_voter_from_its_own_election() -> None:
    player = Player(1, [1])
    deadline = player.node.deadline_ms
    player.wait(50)
    player.ask_vote(2, (0, 0))
    assert player.node.deadline_ms == deadline
    player.ask_vote(3, (1, 1))
    assert player.node.deadline_ms == player.now + 100


@pytest.mark.parametrize("candidates", [False, True])
def test_5_2_timeouts_are_spread_so_that_in_most_cases_only_a_single_server_times_out(
    candidates: bool,
) -> None:
    rng = random.Random(2)
    members, rounds, conflicts = range(1, 6), 200, 0
    for _ in range(rounds):
        ends = []
        for member in members:
            player = Player(member, members=members)
            player.randint = rng.randint
            if candidates:
                player.campaign()
            else:
                player.append(1, source=member % 5 + 1)
            start, deadline = player.now, None
            while not player.sent():
                deadline = player.node.deadline_ms
                assert deadline is not None
                player.wait(deadline - player.now)
            assert deadline is not None
            ends.append(deadline - start)
        first, second, *_ = sorted(ends)
        conflicts += second == first
    assert conflicts / rounds < 0.15  # of five, each drawing one of a hundred milliseconds
