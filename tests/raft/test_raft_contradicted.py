"""What a member does that most others contradict (D26), and how it is repaired."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from garlicfarm.digests import Contradicted
from garlicfarm.levels import COMPARING
from garlicfarm.raft import HardState, Persist, Role
from garlicfarm.wire import decode_snapshot_sync_request
from garlicfarm.wire.messages import Request
from tests.raft.playbook import ALL, APPEND, SNAPSHOT, TIMEOUT, Player, application, leader_of

_leader = partial(leader_of, extensions=ALL)


def contradict(player: Player, what: Contradicted) -> None:
    player.node.report_contradicted(what)
    player.node.tick(player.now)
    player.turn()


def at_level(player: Player) -> Player:
    """The same member, started in a farm in which members compare what they hold."""
    genesis = player.disk.initial_state()[1]
    player.disk = type(player.disk)(msgspec.structs.replace(genesis, level=COMPARING))
    player.disk.write(Persist(0, HardState(1, 0, 0)))
    player.start()
    return player


@pytest.mark.parametrize("what", ["state", "chain"])
def test_contradicted_leader_hands_over_and_leads_no_longer_than_another_election_timeout(
    what: Contradicted,
) -> None:
    leader = _leader()
    leader.accept()
    contradict(leader, what)
    assert [peer for peer, _, request in leader.sent() if request.type is TIMEOUT] == [2]
    for _ in range(4):
        leader.wait(50)
        leader.refuse(3)  # it is heard
    assert leader.node.role is Role.FOLLOWER


@pytest.mark.parametrize("what", ["state", "chain"])
def test_contradicted_member_never_campaigns(what: Contradicted) -> None:
    player = Player(terms=(1,), extensions=ALL)
    player.wait(250)
    assert player.node.role is Role.CANDIDATE
    contradict(player, what)
    assert player.node.role is Role.FOLLOWER
    player.sent()
    player.wait(2_000)
    player.order(1)
    assert (player.node.role, player.sent(), player.node.term) == (Role.FOLLOWER, [], 1)
    contradict(player, "")
    player.wait(250)
    assert player.node.role is Role.CANDIDATE


@pytest.mark.parametrize(("what", "votes"), [("", True), ("state", True), ("chain", False)])
def test_member_votes_unless_its_chain_is_contradicted(what: Contradicted, votes: bool) -> None:
    player = Player(terms=(1,), extensions=ALL)
    contradict(player, what)
    polled, asked = player.poll(2, (1, 1)), player.ask_vote(2, (1, 1))
    assert polled is not None
    assert asked is not None
    assert (polled.accepted, asked.accepted) == (votes, votes)


def test_contradicted_member_takes_entries_and_acknowledges_them() -> None:
    player = Player(terms=(1,))
    contradict(player, "chain")
    answer = player.append(1, (1, 1), [application(1)], commit=2)
    assert answer is not None
    assert (answer.accepted, answer.next_index, player.node.status().commit) == (True, 3, 2)


def test_member_that_wants_a_snapshot_takes_no_entries_until_it_has_waited() -> None:
    player = Player(terms=(1,))
    player.node.request_snapshot(player.now + 300)
    for _ in range(2):
        answer = player.append(1, (1, 1), [application(1)])
        assert answer is not None
        assert (answer.accepted, answer.next_index) == (False, 0)
    assert player.node.status().last_index == 1
    player.wait(300)
    answer = player.append(1, (1, 1), [application(1)])
    assert answer is not None
    assert answer.accepted


def _pieces(leader: Player, peer: int) -> list[tuple[int, int, Request]]:
    return [sent for sent in leader.sent(peer) if sent[2].type is SNAPSHOT]


def test_leader_sends_a_snapshot_of_more_than_the_member_holds_and_replaces_its_log() -> None:
    leader = at_level(Player()).lead()
    leader.accept()
    leader.propose(b"x")
    leader.accept()
    old = leader.take_snapshot(keep=5)  # of no more than member 2 holds
    leader.sent()
    leader.wait(50)
    leader.answer_each(leader.sent(2), 0, accepted=False)
    assert leader.node.snapshot_wanted == old.index
    assert _pieces(leader, 2) == []
    leader.propose(b"y")
    leader.accept(peer=3)
    assert _pieces(leader, 2) == []
    meta = leader.take_snapshot(keep=5)
    assert meta.index > old.index
    assert leader.node.snapshot_wanted == 0
    leader.turn()
    ((_, seq, request),) = _pieces(leader, 2)
    piece = decode_snapshot_sync_request(request.entries[0].value)
    assert piece.last_log_index == meta.index

    wrong = at_level(Player(2))
    wrong.append(leader.node.term, entries=[application(1, b"w"), application(1, b"w")], commit=2, source=1)
    wrong.node.request_snapshot(wrong.now + 300)
    answer = wrong.take(request)
    assert answer is not None
    assert (answer.accepted, [each.index for each in wrong.restored]) == (True, [meta.index])
    assert (wrong.node.status().commit, wrong.node.status().last_index) == (meta.index, meta.index)
    assert wrong.state == leader.state
    assert not wrong.node.wants_snapshot

    leader.hear(seq, answer)
    leader.propose(b"z")
    ((_, _, request), *_) = [sent for sent in leader.sent(2) if sent[2].entries]
    assert (request.type, request.last_log_index) == (APPEND, meta.index)


def test_each_piece_of_the_snapshot_grants_as_much_time_again() -> None:
    leader = at_level(Player(batch_bytes=8)).lead()
    leader.accept()
    leader.propose(b"x" * 40)
    leader.accept(peer=2)
    leader.take_snapshot(keep=5)
    leader.answer_each(leader.sent(3), 0, accepted=False)
    wrong = at_level(Player(3))
    wrong.append(leader.node.term, source=1)
    wrong.node.request_snapshot(wrong.now + 60)
    pieces = 0
    while not wrong.restored:
        wrong.wait(40)
        assert wrong.node.wants_snapshot
        for _, seq, request in leader.sent(3):
            answer = wrong.take(request)
            assert answer is not None
            leader.hear(seq, answer)
            pieces += request.type is SNAPSHOT
    assert pieces > 3


def test_leader_below_the_level_takes_the_answer_for_a_hint() -> None:
    leader = _leader()
    leader.accept()
    leader.wait(50)
    leader.answer_each(leader.sent(2), 0, accepted=False)
    assert leader.node.snapshot_wanted == 0
