"""What clients are told (D8), and the Configuration with which a leader begins (D7)."""

from __future__ import annotations

import pytest

from garlicfarm.errors import ProposalDropped, RemoteProtocolError
from garlicfarm.raft import Role
from garlicfarm.refusals import Refusal
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import NO_LEADER, Configuration, MessageType, Request, Response, ValueType
from tests.raft.playbook import Player, application, configuration, configuration_entry, leader_of


def _answer(destination: int, term: int, next_index: int, accepted: bool) -> Response:
    return Response(MessageType.APPEND_ENTRIES_RESPONSE, 1, destination, term, next_index, accepted)


def test_d8_client_request_is_answered_after_its_commit_with_the_index_behind_its_last_entry() -> None:
    player = leader_of()
    assert player.post(b"a", b"b") is None
    player.accept(peer=2)
    assert player.responses[player.token] == _answer(1, 1, 4, True)


def test_d8_client_requests_are_answered_each_at_its_own_commit() -> None:
    player = leader_of()
    player.post(b"a")
    first = player.token
    player.post(b"b")
    (_, seq, request), *_ = player.sent(2)
    player.answer(seq, request, 3)
    assert player.responses.get(first) == _answer(1, 1, 3, True)
    assert player.token not in player.responses


def test_d8_follower_redirects_to_the_leader_with_next_index_0() -> None:
    player = Player()
    assert player.post(b"x") == _answer(NO_LEADER, 0, 0, False)
    player.append(1, source=3)
    assert player.post(b"x") == _answer(3, 1, 0, False)
    assert player.post() == _answer(3, 1, 0, False)
    player.campaign()
    assert player.post(b"x") == _answer(NO_LEADER, 2, 0, False)
    assert player.terms == []


def test_d8_empty_request_to_the_leader_is_answered_at_once_without_an_entry() -> None:
    player = leader_of()
    assert player.post() == _answer(1, 1, 2, True)
    assert player.terms == [1]


def test_d8_too_much_uncommitted_is_refused_by_the_leader_itself() -> None:
    player = leader_of(max_uncommitted_bytes=100)
    assert player.post(b"x" * 60) is None
    before = player.terms
    assert player.post(b"x" * 60) == _answer(1, 1, Refusal.TOO_MUCH_UNCOMMITTED.number, False)
    assert player.terms == before
    with pytest.raises(ProposalDropped, match=Refusal.TOO_MUCH_UNCOMMITTED):
        player.node.propose((b"x" * 60,), 1)
    player.accept(peer=2)
    assert player.post(b"x" * 60) is None


def test_d8_one_request_larger_than_the_bound_is_taken_while_nothing_else_waits() -> None:
    player = leader_of(max_uncommitted_bytes=100)
    assert player.post(b"x" * 1000) is None
    player.accept(peer=2)
    assert player.responses[player.token] == _answer(1, 1, 3, True)


def test_uncommitted_entries_without_bytes_are_bounded_too() -> None:
    player = leader_of(max_uncommitted_bytes=1000)
    assert player.post(*[b""] * 70) is None
    assert player.post(*[b""] * 70) == _answer(1, 1, Refusal.TOO_MUCH_UNCOMMITTED.number, False)


@pytest.mark.parametrize("message", ["append", "vote", "answer"])
def test_d8_outcome_is_unknown_when_the_leader_steps_down(message: str) -> None:
    player = leader_of()
    player.post(b"client")
    player.node.propose((b"own",), 77)
    player.turn()
    if message == "append":
        player.append(2, (1, 1))
    elif message == "vote":
        player.ask_vote(2, (9, 9), ordered=True)
    else:
        player.hear(0, Response(MessageType.APPEND_ENTRIES_RESPONSE, 2, 1, 2, 1, False))
    assert player.node.role is Role.FOLLOWER
    assert player.responses[1] is None
    assert player.outcomes == {77: None}


def test_outcome_once_unknown_is_not_told_again_when_the_entry_commits_after_all() -> None:
    player = leader_of()
    player.node.propose((b"own",), 77)
    player.turn()
    player.ask_vote(2, (9, 9), ordered=True)
    player.outcomes.clear()
    player.append(2, (2, 1), (), commit=2)
    assert player.applied[-1].value == b"own"
    assert not player.outcomes


def test_proposal_to_a_member_that_does_not_lead_is_certainly_not_appended() -> None:
    player = Player()
    with pytest.raises(ProposalDropped, match=Refusal.NOT_LEADER):
        player.node.propose((b"x",), 1)
    assert player.node.ready().persist is None


def test_several_proposals_of_one_turn_are_one_write_and_one_message_per_peer() -> None:
    player = leader_of()
    for token in range(5):
        player.node.propose((b"x",), token)
    ready = player.node.ready()
    assert len(ready.persist.entries) == 5
    assert [(sent.peer, len(sent.request.entries)) for sent in ready.requests] == [(2, 5), (3, 5)]


# D7


def _first_of(player: Player) -> Configuration:
    (_, _, request), *_ = player.requests
    (entry,) = request.entries
    assert entry.value_type is ValueType.CONFIGURATION
    assert entry.term == player.node.term
    return decode_configuration(entry.value)


def test_d7_first_leaders_configuration_repeats_the_genesis_at_index_1() -> None:
    assert _first_of(Player().lead()) == configuration(1, 0)


def test_d7_each_leaders_configuration_points_at_the_one_before() -> None:
    player = Player()
    player.append(1, (0, 0), [configuration_entry(1, 1, 0), application(1)], commit=2)
    assert _first_of(player.lead()) == configuration(3, 1)
    player.append(4, (3, 2))
    player.requests.clear()
    assert _first_of(player.lead()) == configuration(4, 3)


@pytest.mark.parametrize("commit", [1, 2])
@pytest.mark.parametrize("restart", [False, True])
def test_d7_newest_configuration_is_repeated_committed_or_not(commit: int, restart: bool) -> None:
    player = Player()
    entries = [configuration_entry(1, 1, 0), configuration_entry(1, 2, 1, (1, 2, 3, 4))]
    player.append(1, (0, 0), entries, commit=commit)
    if restart:
        player.crash()
    assert _first_of(player.lead()) == configuration(3, 2, (1, 2, 3, 4))


def test_d7_configuration_that_was_overwritten_is_not_repeated() -> None:
    player = Player()
    player.append(1, (0, 0), [configuration_entry(1, 1, 0), configuration_entry(1, 2, 1, (1, 2, 3, 4))])
    player.append(2, (1, 1), [application(2)], source=3)
    assert _first_of(player.lead()) == configuration(3, 1)


def test_d7_configuration_takes_force_when_it_is_committed() -> None:
    player = Player()
    player.append(1, (0, 0), [configuration_entry(1, 1, 0, (1, 2))])
    assert player.node.configuration == configuration()
    player.slow_disk = True
    player.append(1, (1, 1), commit=1)
    assert player.node.configuration == configuration(1, 0, (1, 2))
    player.crash()
    assert player.node.configuration == configuration()
    player.slow_disk = False
    assert [peer for peer, _, _ in player.campaign()] == [2, 3]


def test_d7_commit_of_a_configuration_is_durable_at_once() -> None:
    """Who is removed by it may be gone then: nobody may ask for its vote after a restart."""
    player = Player()
    player.append(1, (0, 0), [configuration_entry(1, 1, 0, (1, 2))])
    player.append(1, (1, 1), commit=1)
    player.crash()
    assert player.node.configuration == configuration(1, 0, (1, 2))


def test_d7_leader_follows_the_members_of_the_configurations_in_force_and_to_come() -> None:
    player = Player()
    player.append(1, (0, 0), [configuration_entry(1, 1, 0, (1, 2, 4))])
    player.lead()
    assert set(player.node.status().peers) == {2, 3, 4}
    player.accept(peer=4)  # who does not count yet
    assert player.commit == 0
    player.accept(peer=2)
    assert set(player.node.status().peers) == {2, 4}
    assert player.node.configuration.servers == configuration(members=(1, 2, 4)).servers


# What a peer may not say


def test_second_leader_in_one_term_is_refused_and_changes_nothing() -> None:
    leading, following = leader_of(), Player()
    following.append(1, source=2)
    for player in (leading, following):
        before = player.picture
        with pytest.raises(RemoteProtocolError, match="second leader"):
            player.append(1, (0, 0), [application(1)], source=3)
        assert player.picture == before
        assert player.node.ready().persist is None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0" * 15, id="cut"),
        pytest.param(b"\0" * 16, id="nobody"),
        pytest.param(configuration_entry(9, 1, 0).value[:-1], id="cut-endpoint"),
    ],
)
def test_malformed_configuration_is_refused_and_changes_nothing(value: bytes) -> None:
    player = Player(1, [1])
    before = player.picture
    entry = configuration_entry(9, 2, 0)
    bad = type(entry)(9, ValueType.CONFIGURATION, value)
    with pytest.raises(RemoteProtocolError):
        player.append(9, (1, 1), [application(9), bad], commit=1)
    assert player.picture == before
    assert player.node.ready().persist is None


@pytest.mark.parametrize(
    ("previous", "terms"), [((1, 3), (2,)), ((1, 1), (3, 2)), ((1, 1), (2, 5)), ((1, 1), (5,))]
)
def test_log_whose_terms_fall_or_are_of_the_future_is_refused(
    previous: tuple[int, int], terms: tuple[int, ...]
) -> None:
    player = Player(1, [1])
    before = player.picture
    with pytest.raises(RemoteProtocolError, match="never fall"):
        player.append(4, previous, [application(term) for term in terms])
    assert player.picture == before


@pytest.mark.parametrize("kind", [k for k in MessageType if k not in (1, 3, 5, 12, 14, 20, 28, 30)])
def test_message_that_is_no_request_of_the_core_is_refused_and_changes_nothing(kind: MessageType) -> None:
    player = Player(1, [1])
    before = player.picture
    with pytest.raises(RemoteProtocolError, match=kind.name):
        player.take(Request(kind, 2, 1, 9))
    assert player.picture == before
