"""Defects of JRaft that must not come back here; the numbers are those of the list of them.

S1 commits what was not verified; S2 commits earlier terms by counting; S3 judges candidates by an
empty log; S4 dies of one packet; S5 waits for an answer for ever; C1 keeps match indexes of an
earlier leadership; C2 appends after stepping down; C4 lets the term fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from garlicfarm.errors import ProposalDropped, RemoteProtocolError
from garlicfarm.raft import Entry, HardState, RaftConfig, RawNode, Role, SnapshotMeta
from garlicfarm.wire.messages import Configuration, MessageType, Request, Response
from tests.raft.playbook import TIMEOUT, VOTE, Player, Stage, application, configuration


def test_s1_heartbeat_commits_only_what_it_verified() -> None:
    player = Player(1, [1, 1, 1], commit=1)
    response = player.append(2, (1, 1), commit=3)
    assert (response.accepted, response.next_index) == (True, 2)
    assert player.commit == 1
    player.append(2, (1, 1), [application(2), application(2)], commit=3)
    assert player.commit == 3
    assert [entry.term for entry in player.applied] == [1, 2, 2]


def test_s1_entries_commit_up_to_the_last_of_them() -> None:
    player = Player(1, [1, 1, 1, 1])
    player.append(1, (0, 0), [application(1)], commit=9)
    assert player.commit == 1


def test_s1_refused_message_commits_nothing() -> None:
    player = Player(1, [1, 1])
    player.append(2, (2, 2), commit=2)
    player.append(2, (5, 2), commit=2)
    assert player.commit == 0


def test_s2_old_entries_on_all_disks_are_not_committed_without_one_of_the_own_term() -> None:
    stage = Stage([1, 1], [1, 1], [1, 1], batch_bytes=1)
    stage.elect(1, 2)
    leader = stage[1]
    leader.slow_disk = True
    for peer, seq, request in leader.sent():
        leader.answer(seq, request, request.last_log_index + 1, accepted=False)
        assert peer in (2, 3)
    for _, seq, request in leader.sent():
        assert request.last_log_index < 3
        leader.answer(seq, request, request.last_log_index + 2)
    assert leader.commit == 0


class _Compacted:
    """A store whose log is empty above its snapshot."""

    def initial_state(self) -> tuple[HardState, Configuration]:
        return HardState(5, 0, 100), configuration()

    def entries(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry]:
        raise AssertionError("there are none")

    def term(self, index: int) -> int:
        assert index == 100
        return 5

    def first_index(self) -> int:
        return 101

    def last_index(self) -> int:
        return 100

    def snapshot(self) -> SnapshotMeta:
        return SnapshotMeta(100, 5, configuration())


@pytest.mark.parametrize(
    ("last", "granted"), [((1, 1), False), ((101, 4), False), ((99, 5), False), ((100, 5), True)]
)
def test_s3_empty_log_is_as_up_to_date_as_the_snapshot_below_it(last: tuple[int, int], granted: bool) -> None:
    store: Any = _Compacted()
    node = RawNode(RaftConfig(id=1), store, lambda low, high: low)
    node.step(Request(VOTE, 2, 1, 6, last[1], last[0]), 1)
    persist = node.ready().persist
    node.report_persisted(persist.token)
    (answer,) = node.ready().responses
    assert answer.response.accepted is granted


@pytest.mark.parametrize("role", Role)
def test_s4_no_message_type_stops_a_member(role: Role) -> None:
    player = Player()
    if role is Role.CANDIDATE:
        player.campaign()
    elif role is Role.LEADER:
        player.lead()
    for kind in MessageType:
        before = player.picture
        try:
            # Nobody's order to stand for election, but for that of one who leads, is obeyed.
            player.take(Request(kind, 3 if kind is TIMEOUT else 2, 1))
        except RemoteProtocolError:
            assert player.picture == before
    assert player.node.role is role


def test_s4_answer_to_nothing_is_ignored() -> None:
    player = Player().lead()
    before = player.picture
    for kind in MessageType:
        if kind.name.endswith("RESPONSE"):
            player.hear(12345, Response(kind, 2, 1, 1, 99, True))
    assert player.picture == before
    assert player.commit == 0


def test_s5_peer_that_never_answers_is_asked_again_once_its_deadline_passed() -> None:
    """The deadline is the node's; it reports the request as unreachable."""
    player = Player().lead()
    ((_, seq, first),) = player.sent(2)
    player.node.report_unreachable(2, seq)
    player.turn()
    player.wait(50)
    ((_, _, again),) = player.sent(2)
    assert again.entries == first.entries


def test_s5_vote_request_without_an_answer_is_repeated_in_the_next_election() -> None:
    player = Player()
    for peer, seq, _ in player.campaign():
        player.node.report_unreachable(peer, seq)
    assert [request.term for _, _, request in player.campaign()] == [2, 2]


def test_c1_match_indexes_of_an_earlier_leadership_do_not_count() -> None:
    player = Player().lead()
    while player.requests:
        player.accept()
    player.node.propose((b"x",), 1)
    player.turn()
    player.accept()
    assert player.commit == 2
    player.append(2, (1, 1), source=3)
    player.lead()
    assert [peer.match_index for peer in player.node.status().peers.values()] == [0, 0]
    assert player.commit == 2
    assert player.terms == [1, 1, 3]


def test_c2_nothing_is_appended_after_stepping_down() -> None:
    player = Player().lead()
    before = player.terms
    player.ask_vote(9, (9, 9), ordered=True)
    assert not player.post(b"x").accepted
    with pytest.raises(ProposalDropped):
        player.node.propose((b"x",), 1)
    assert player.terms == before


def test_c4_term_never_falls_and_the_vote_in_it_stays() -> None:
    player = Player()
    player.ask_vote(7, source=3)
    for term in (0, 1, 6):
        player.append(term, source=2)
        player.ask_vote(term, (9, 9), source=2)
        player.take(Request(MessageType.CLIENT_REQUEST, 0, 1, term))
    for kind in (MessageType.JOIN_CLUSTER_REQUEST, MessageType.LEAVE_CLUSTER_REQUEST):
        response = player.take(Request(kind, 2, 1, 1))
        assert (response.accepted, response.term) == (False, 7)
    player.crash()
    status = player.node.status()
    assert (status.term, status.vote) == (7, 3)


def test_c4_commit_index_never_falls() -> None:
    player = Player()
    player.append(1, (0, 0), [application(1), application(1)], commit=2)
    player.append(1, (2, 1), commit=0)
    player.append(2, (1, 1), commit=1, source=3)
    assert player.commit == 2
