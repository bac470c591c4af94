"""Schedules that random search does not find: two majorities that need not meet, since a Configuration
takes force when it is committed (D7), and JRaft's way through figure 8."""

from __future__ import annotations

import pytest

from garlicfarm.errors import ProposalDropped
from garlicfarm.raft import Change, Role
from garlicfarm.refusals import Refusal
from tests.raft.playbook import ALL, Stage


def _grown(extensions: frozenset[str]) -> Stage:
    """{1,2,3} grew by 4 and by 5, both committed. Member 3 holds both Configurations and has not heard that
    the one with 5 is committed; of the one with 4 it heard only by the message that brought the other."""
    stage = Stage([], [], [], extensions=extensions)
    stage.elect(1, 2, 3)
    stage.settle(1, 2, 3)
    for joining, told in ((4, (2, 4)), (5, (2, 4, 5))):
        stage.join(joining)
        before = len(stage[1].terms)
        stage[1].change(Change.ADD, joining, token=joining)
        while len(stage[1].terms) == before:
            stage.deliver(1, 2, joining)  # it catches up
        stage[1].wait(50)
        for _, seq, request in stage[1].sent(3):  # holds the Configuration, whose commit it is not told
            stage[1].hear(seq, stage[3].take(request))
        stage[1].sent(3)
        stage.settle(1, *told)
        assert stage[1].outcomes[joining] == (len(stage[1].terms), 1)
    assert stage[2].member_ids == [1, 2, 3, 4, 5]
    assert stage[3].terms == stage[1].terms
    return stage


@pytest.mark.parametrize("crashed", [False, True], ids=["", "crashed"])
@pytest.mark.parametrize("extensions", [frozenset(), ALL], ids=["jraft", "all"])
def test_growth_by_two_servers_leaves_no_two_majorities_that_do_not_meet(
    extensions: frozenset[str], crashed: bool
) -> None:
    """etcd-io/raft 456 and 469: one who has applied both changes could win a term by {2,4,5}, and one who
    has applied neither the same term by {1,3}. Here that one has, durably, the first of them in force: the
    second is not appended before the first is committed, nor taken without a word of that."""
    stage = _grown(extensions)
    if crashed:
        stage[3].crash()
    assert stage[3].member_ids == [1, 2, 3, 4]
    stage[1].crash()
    stage.elect(2, 4, 5)
    for player in (stage[1], stage[3]):
        player.doubt()
    for _ in range(3):
        for peer, seq, request in stage[3].campaign():
            if peer == 1:
                stage[3].hear(seq, stage[1].take(request))
    assert stage[3].node.role is Role.CANDIDATE  # {1,3} is no majority of {1,2,3,4}
    assert stage[2].node.role is Role.LEADER


def test_growth_in_one_step_by_a_leader_that_had_not_heard_of_the_first_is_refused() -> None:
    """Two changes from one Configuration, by leaders of two terms: the defect of 2015."""
    stage = Stage([], [], [], [], extensions=ALL)
    stage.elect(1, 2, 3)
    stage.settle(1, 2, 3, 4)
    stage.join(5)
    stage[1].change(Change.REMOVE, 4)
    stage[1].lose()  # only 1 holds it
    stage.elect(2, 3, 4)
    stage[2].lose(1)
    with pytest.raises(ProposalDropped, match=Refusal.NOTHING_COMMITTED_YET):
        stage[2].change(Change.REMOVE, 3)
    stage.settle(2, 3, 4)  # its own entry is committed by {2,3,4}: 1 cannot win any more
    stage[2].change(Change.REMOVE, 3)
    stage.settle(2, 3, 4)
    stage[1].doubt()
    for _ in range(3):
        for peer, seq, request in stage[1].campaign():
            stage[1].hear(seq, stage[peer].take(request))
    assert stage[1].node.role is not Role.LEADER


@pytest.mark.parametrize("crash", [False, True], ids=["", "crashed"])
def test_shrinking_step_by_step_ends_with_one_that_leads_alone(crash: bool) -> None:
    stage = Stage([], [], [], [], [], extensions=ALL)
    stage.elect(1, 2, 3)
    stage.settle(1, 2, 3, 4, 5)
    for gone in (5, 4, 3, 2):
        stage[1].change(Change.REMOVE, gone)
        stage.settle(1, *range(2, gone + 1))
        assert stage[1].member_ids == list(range(1, gone))
        if crash and gone > 2:
            stage[1].crash()
            stage.elect(1, *range(2, gone))
            stage.settle(1, *range(2, gone))
    assert stage[1].node.role is Role.LEADER
    stage[1].propose(b"x", token=9)
    assert stage[1].outcomes[9][0] == len(stage[1].terms)


def test_jrafts_way_through_figure_8_commits_nothing_that_is_overwritten() -> None:
    """JRaft counts entries of any term and begins a term without an entry; S1 would answer its client in
    step (c), and S5 would overwrite the entry in step (d)."""
    stage = Stage(*[[1]] * 5, batch_bytes=1, max_inflight_messages=1)
    stage.elect(1, 2, 3)
    stage[1].post(b"two")
    client = stage[1].token
    for _ in range(3):
        stage.deliver(1, 2)
    stage.elect(5, 3, 4)
    stage[5].post(b"three")
    stage[5].lose()
    stage.elect(1, 2, 3)
    assert stage[1].responses[client] is None  # unknown, since S1 stepped down meanwhile
    while stage[3].terms != [1, 2, 2]:  # all of term 2 gets to S3, nothing of the own term
        for _, seq, request in stage[1].sent(3)[:1]:
            stage[1].hear(seq, stage[3].take(request))
    stage.deliver(1, 2)
    assert stage[1].commit == 0
    stage.elect(5, 3, 4)
    stage.settle(5, 1, 2, 3, 4)
    assert {tuple(player.terms) for player in stage.players.values()} == {tuple(stage[5].terms)}
    assert 2 not in stage[5].terms
