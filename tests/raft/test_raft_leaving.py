"""A member that its leader tells to leave (LeaveCluster) disturbs nobody: it stands for no election, and
otherwise goes on. JRaft's leaders tell it before they append the Configuration without it, and send it
nothing more after the commit, whether it heard of that or not."""

from __future__ import annotations

import pytest

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.raft import Role
from garlicfarm.wire.messages import MessageType, Request, Response
from tests.raft.playbook import ALL, Player, Stage, application, configuration_entry

LEAVE = MessageType.LEAVE_CLUSTER_REQUEST


def _tell(player: Player, term: int, source: int = 2) -> Response | None:
    """Member ``source``, as the leader of ``term``, tells it to leave."""
    last = player.node.status().last_index
    return player.take(Request(LEAVE, source, player.id, term, 0, last))


def _told(extensions: frozenset[str] = ALL) -> Player:
    """A member that the leader of term 2 told to leave."""
    player = Player(1, [1, 1], extensions=extensions)
    player.append(2, (2, 1))
    response = _tell(player, 2)
    assert (response.accepted, response.next_index) == (True, 3)
    return player


def _stands(player: Player) -> bool:
    """Whether it asks for votes, or polls, within ten election timeouts."""
    player.sent()
    player.wait(2000)
    return bool(player.sent())


@pytest.mark.parametrize("extensions", [ALL, frozenset()], ids=["extensions", "jraft"])
def test_member_that_is_told_to_leave_does_not_stand(extensions: frozenset[str]) -> None:
    player = _told(extensions)
    assert not _stands(player)
    assert (player.node.role, player.node.term, player.node.leader) == (Role.FOLLOWER, 2, 0)


def test_member_that_is_told_to_leave_acknowledges_and_commits_as_before() -> None:
    player = _told()
    response = player.append(2, (2, 1), [application(2)], commit=3)
    assert (response.accepted, response.next_index) == (True, 4)
    assert player.commit == 3
    assert not _stands(player)


def test_member_that_is_told_to_leave_votes_as_before() -> None:
    player = _told()
    player.doubt()
    for response in (player.poll(3, (2, 1), source=3), player.ask_vote(3, (2, 1), source=3)):
        assert response.accepted
    assert not _stands(player)


def test_member_that_is_told_to_leave_refuses_to_stand_at_once() -> None:
    player = _told()
    assert not player.order(2).accepted
    assert (player.node.role, player.node.term) == (Role.FOLLOWER, 2)


def test_member_that_is_told_to_leave_stands_again_once_a_leader_of_a_later_term_sends_it_an_append() -> None:
    player = _told()
    player.append(3, (2, 1), source=3)
    assert _stands(player)


def test_member_that_is_told_to_leave_is_not_held_by_it_after_a_restart() -> None:
    player = _told()
    player.crash()
    assert _stands(player)


@pytest.mark.parametrize("what", ["append", "vote"])
def test_neither_an_append_of_the_same_leader_nor_a_later_term_alone_has_it_stand_again(what: str) -> None:
    player = _told()
    if what == "append":
        player.append(2, (2, 1))
    else:
        player.doubt()
        player.ask_vote(5, (2, 1), source=3)
        assert player.node.term == 5
    assert not _stands(player)


def test_candidate_that_is_told_to_leave_gives_up() -> None:
    player = Player(1, [1, 1])
    player.campaign()
    _tell(player, 2)
    assert not _stands(player)


def test_leader_that_is_told_to_leave_by_a_later_one_steps_down_and_does_not_stand() -> None:
    player = Player(1, [1, 1]).lead()
    _tell(player, 3)
    assert not _stands(player)


def test_word_of_an_earlier_leader_is_refused_and_keeps_nobody_from_standing() -> None:
    player = Player(1, [1, 1])
    player.append(3, (2, 1), source=3)
    assert not _tell(player, 2).accepted
    assert _stands(player)


def test_member_that_is_told_to_leave_is_none_once_the_configuration_without_it_is_committed() -> None:
    player = _told()
    player.append(2, (2, 1), [configuration_entry(2, 3, 0, (2, 3))], commit=3)
    player.append(3, (3, 2), source=3)
    assert player.node.configuration.log_index == 3
    assert not _stands(player)


def test_order_of_a_server_that_is_no_member_is_refused() -> None:
    """It passes for the leader of a term; did it silence all members, no one could be elected."""
    stage = Stage([1], [1], [1])
    stage.elect(1, 2, 3)
    stage.settle(1, 2, 3)
    term = stage[1].node.term + 1
    for player in stage.players.values():
        with pytest.raises(RemoteProtocolError, match="a server that is no member"):
            _tell(player, term, source=9)
    assert [player.node.term for player in stage.players.values()] == [term - 1] * 3
    stage[2].append(term, (1, 1), source=9)
    with pytest.raises(RemoteProtocolError, match="a server that is no member"):
        _tell(stage[2], term, source=9)
    assert not stage[2].node.is_leaving


def test_member_that_missed_its_removal_deposes_nobody() -> None:
    """As under a JRaft leader: told first, then not sent the commit."""
    stage = Stage([1], [1], [1])
    stage.elect(1, 2, 3)
    stage.settle(1, 2, 3)
    term = stage[1].node.term
    _tell(stage[3], term, source=1)
    for _ in range(40):
        stage[1].wait(60)
        stage.deliver(1, 2)
        stage[3].wait(60)
        assert not stage[3].requests  # JRaft's members would take a later term from it
    assert (stage[1].node.role, stage[1].node.term) == (Role.LEADER, term)


def test_removal_that_never_was_committed_is_forgotten_with_its_leader() -> None:
    stage = Stage([1], [1], [1])
    stage.elect(1, 2, 3)
    stage.settle(1, 2, 3)
    _tell(stage[3], stage[1].node.term, source=1)
    stage.elect(2, 3)  # 1 is gone; the vote of 3 is needed, and given
    stage.settle(2, 3)
    stage.elect(3, 2)
    assert stage[3].node.role is Role.LEADER
