"""Changes of the Configuration: which are taken, when they take force, and what becomes of them (thesis
4.1 to 4.3; D7)."""

from __future__ import annotations

import msgspec
import pytest

from garlicfarm.errors import ProposalDropped, RemoteProtocolError
from garlicfarm.levels import HIGHEST
from garlicfarm.raft import Change, ConfChange, Role
from garlicfarm.refusals import Refusal
from garlicfarm.wire import decode_configuration, encode_configuration
from garlicfarm.wire.messages import Configuration, LogEntry, ValueType
from tests.raft.playbook import (
    ALL,
    Player,
    Stage,
    application,
    configuration,
    configuration_entry,
    leader_of,
    server,
)


def _newest(player: Player) -> Configuration:
    """The last Configuration in its log."""
    entries = player.disk.contents
    return decode_configuration(
        next(e for e in reversed(entries) if e.value_type is ValueType.CONFIGURATION).value
    )


# What is refused, and that it is certainly not done


def test_change_asked_of_one_that_does_not_lead_is_refused() -> None:
    player = Player()
    for _ in range(2):
        with pytest.raises(ProposalDropped, match=Refusal.NOT_LEADER):
            player.change(Change.REMOVE, 3)
        player.append(1)


def test_change_before_the_first_commit_of_the_term_is_refused() -> None:
    """The defect of 2015: two leaders could change one Configuration by majorities that do not meet."""
    player = Player(1, [1], term=1).lead()
    with pytest.raises(ProposalDropped, match=Refusal.NOTHING_COMMITTED_YET):
        player.change(Change.REMOVE, 3)
    player.accept()
    player.accept()
    player.change(Change.REMOVE, 3)
    assert player.terms == [1, 2, 2]


def test_change_before_the_first_entry_of_the_term_is_applied_is_one_of_a_new_leader() -> None:
    """Whoever asks waits for it: no other change is in flight."""
    player = Player()
    (_, seq, request), *_ = player.campaign()
    player.slow_disk = True
    player.answer(seq, request)
    for peer in (2, 3):
        player.accept(peer=peer)
        player.accept(peer=peer)
    assert player.node.status().commit > player.node.status().applied
    change = ConfChange(Change.REMOVE, server(3))
    with pytest.raises(ProposalDropped, match=Refusal.NOTHING_COMMITTED_YET):
        player.node.propose_conf_change(change, 7)
    player.node.check_conf_change(change)
    player.sync()
    player.change(Change.REMOVE, 3)


@pytest.mark.parametrize(
    ("what", "member", "at", "reason"),
    [
        (Change.ADD, 3, "", Refusal.A_MEMBER_ALREADY),
        (Change.ADD, 1, "", Refusal.A_MEMBER_ALREADY),
        (Change.REMOVE, 4, "", Refusal.NO_SUCH_MEMBER),
        (Change.SET, 4, "", Refusal.NO_SUCH_MEMBER),
        (Change.ADD, 4, "tcp://m2:1", Refusal.ENDPOINT_OF_ANOTHER_MEMBER),
        (Change.SET, 3, "tcp://m2:1", Refusal.ENDPOINT_OF_ANOTHER_MEMBER),
    ],
)
def test_change_that_makes_no_sense_is_refused(what: Change, member: int, at: str, reason: str) -> None:
    player = leader_of()
    for force in (False, True):
        with pytest.raises(ProposalDropped, match=reason):
            player.change(what, member, at=at, force=force)
    assert player.terms == [1]
    assert not player.requests
    player.change(Change.REMOVE, 3)  # nothing is left of what was refused


def test_last_member_is_not_removed() -> None:
    with pytest.raises(ProposalDropped, match=Refusal.THE_LAST_MEMBER):
        leader_of(1).change(Change.REMOVE, 1, force=True)


@pytest.mark.parametrize("what", [Change.REMOVE, Change.SET, Change.ADD])
def test_second_change_while_one_is_in_flight_is_refused(what: Change) -> None:
    player = leader_of()
    player.change(Change.REMOVE, 3, token=1)
    with pytest.raises(ProposalDropped, match=Refusal.ANOTHER_CHANGE_IN_FLIGHT):
        player.change(what, 4 if what is Change.ADD else 2, token=2, at="tcp://new:1")
    player.accept(peer=2)
    assert player.outcomes == {1: (2, 1)}


def test_change_while_a_server_joins_is_refused() -> None:
    player = leader_of()
    player.change(Change.ADD, 4)
    with pytest.raises(ProposalDropped, match=Refusal.ANOTHER_CHANGE_IN_FLIGHT):
        player.change(Change.REMOVE, 3)


def test_change_while_one_of_an_earlier_leader_is_pending_is_refused() -> None:
    """Its entry and the repeat of it are committed with one of this term only; then it is no longer."""
    player = Player()
    player.append(1, (0, 0), [configuration_entry(1, 1, 0), configuration_entry(1, 2, 1, (1, 2))], commit=1)
    player.lead()
    with pytest.raises(ProposalDropped, match=Refusal.NOTHING_COMMITTED_YET):
        player.change(Change.REMOVE, 3)
    player.accept(peer=2)
    assert player.member_ids == [1, 2]


def test_change_before_the_one_before_is_applied_is_refused() -> None:
    player = leader_of(5)
    player.slow_disk = True
    player.change(Change.REMOVE, 5, token=1)
    for peer in (2, 3, 4):  # its own write is not durable, so nothing of it is applied
        player.accept(peer=peer)
    assert player.outcomes == {1: (2, 1)}
    assert player.member_ids == [1, 2, 3, 4]
    with pytest.raises(ProposalDropped, match=Refusal.ANOTHER_CHANGE_IN_FLIGHT):
        player.change(Change.SET, 2, at="tcp://new:1")
    player.sync()
    player.change(Change.SET, 2, at="tcp://new:1")


@pytest.mark.parametrize(
    ("size", "heard", "what", "member", "taken"),
    [
        (2, (), Change.REMOVE, 2, False),  # 2 → 1 only with both
        (2, (2,), Change.REMOVE, 2, True),
        (3, (2,), Change.REMOVE, 3, True),  # the dead one
        (3, (2,), Change.REMOVE, 2, False),  # would leave one of two
        (3, (2,), Change.REMOVE, 1, False),
        (3, (2, 3), Change.REMOVE, 1, True),
        (4, (2, 3), Change.REMOVE, 4, True),
        (4, (2, 3), Change.REMOVE, 2, True),
        (4, (2,), Change.REMOVE, 4, False),
        (5, (2, 3), Change.REMOVE, 2, False),
        (5, (2, 3), Change.REMOVE, 5, True),
        (3, (2,), Change.SET, 3, True),
        (3, (), Change.SET, 3, False),
        (3, (2,), Change.ADD, 6, True),
        (3, (), Change.ADD, 6, False),
    ],
)
def test_change_is_taken_only_where_a_majority_is_heard_before_and_after(
    size: int, heard: tuple[int, ...], what: Change, member: int, taken: bool
) -> None:
    player = leader_of(size)
    player.wait(40)  # all were heard then
    for _ in range(3):
        player.wait(50)
        for peer in heard:
            player.refuse(peer)
    player.wait(20)  # the others are silent for more than the upper timeout now
    if len(heard) + 1 < size // 2 + 1:
        assert player.node.role is Role.FOLLOWER  # check-quorum was faster
    elif taken:
        player.change(what, member, at=f"tcp://new{member}:1")
    else:
        with pytest.raises(ProposalDropped, match=Refusal.TOO_FEW_MEMBERS_HEARD):
            player.change(what, member, at=f"tcp://new{member}:1")
        player.change(what, member, at=f"tcp://new{member}:1", force=True)


def test_member_that_never_answered_this_leader_is_not_heard() -> None:
    """A new leader gives all the time to answer; that is no sign of life."""
    player = Player(1, [1], term=1).lead()
    player.accept(peer=2)
    player.accept(peer=2)
    with pytest.raises(ProposalDropped, match=Refusal.TOO_FEW_MEMBERS_HEARD):
        player.change(Change.REMOVE, 2)
    player.change(Change.REMOVE, 3)


# What is done


def test_removal_of_a_follower_takes_force_when_it_is_committed() -> None:
    player = leader_of(4)
    player.change(Change.REMOVE, 4, token=9)
    assert _newest(player) == configuration(2, 1, (1, 2, 3))
    player.accept(peer=2)
    assert (player.member_ids, player.outcomes) == ([1, 2, 3, 4], {})
    player.accept(peer=4)  # it counts until then
    assert (player.member_ids, player.outcomes) == ([1, 2, 3], {9: (2, 1)})


def test_removed_follower_hears_of_the_commit_and_of_nothing_after() -> None:
    player = leader_of(4)
    player.change(Change.REMOVE, 4)
    player.accept(peer=2)
    player.accept(peer=4)
    last = player.sent(4)
    assert [(request.commit_index, request.entries) for _, _, request in last] == [(2, ())]
    player.propose(b"x")
    player.wait(60)
    assert not player.sent(4)
    _, seq, request = last[0]
    player.answer(seq, request, 3)  # its answer is heard by nobody
    assert set(player.node.status().peers) == {2, 3}


def test_removed_follower_that_still_owes_answers_hears_of_the_commit_too() -> None:
    player = leader_of(4)
    player.change(Change.REMOVE, 4)
    player.accept(peer=2)
    player.accept(peer=3)
    assert [request.commit_index for _, _, request in player.sent(4)] == [1, 2]


def test_removed_follower_gets_the_change_with_the_commit_if_it_was_not_needed_for_it() -> None:
    player = leader_of()
    player.change(Change.REMOVE, 3)
    player.propose(b"x")
    assert not player.sent(3)
    player.accept(peer=2)
    ((_, _, request),) = player.sent(3)
    assert (request.last_log_index, request.commit_index) == (1, 2)
    assert [entry.value_type for entry in request.entries] == [ValueType.CONFIGURATION]


def test_follower_that_is_to_be_removed_gets_only_what_a_majority_of_the_others_holds() -> None:
    """With more its log would outdo those of the members that may need its vote."""
    player = leader_of(4)
    player.change(Change.REMOVE, 4)
    player.propose(b"x")
    player.slow_disk = True
    player.propose(b"y")
    player.wait(60)  # a heartbeat brings nothing more
    assert not [request for _, _, request in player.sent(4) if request.entries]
    for _, seq, request in player.sent(2):
        player.answer(seq, request, request.last_log_index + len(request.entries) + 1)
    assert [request.last_log_index + len(request.entries) for _, _, request in player.sent(4)][-1] == 3
    player.sync()
    assert player.sent(4)[0][2].last_log_index == 3


def test_follower_hears_of_its_removal_once_the_leader_cannot_forget_it() -> None:
    player = leader_of(2)
    player.change(Change.REMOVE, 2)
    player.slow_disk = True
    player.accept(peer=2)
    assert player.member_ids == [1]
    assert not player.sent(2)
    player.sync()
    assert [request.commit_index for _, _, request in player.sent(2)] == [2]


def test_leader_that_forgot_that_it_is_alone_is_elected_by_the_member_that_it_removed() -> None:
    """Twice it dies before its disk has what it sent or knew: the other one never has more than that disk."""
    stage = Stage([], [], extensions=ALL)
    stage.elect(1, 2)
    stage.settle(1, 2)
    stage[1].change(Change.REMOVE, 2)
    stage[1].slow_disk = True
    stage[1].propose(b"x")
    for _ in range(3):
        stage.deliver(1, 2)
    assert stage[1].member_ids == [1]
    stage[1].crash()
    assert stage[1].member_ids == [1, 2]
    stage[1].slow_disk = False
    stage[2].doubt()
    votes = stage[1].campaign()
    stage[1].slow_disk = True  # the first entry of its term is lost too
    for _, seq, request in votes:
        stage[1].hear(seq, stage[2].take(request))
    assert stage[1].node.role is Role.LEADER
    stage[1].wait(60)
    stage.deliver(1, 2)
    stage[1].crash()
    stage[1].slow_disk = False
    stage.elect(1, 2)
    stage.settle(1, 2)
    assert [player.member_ids for player in stage.players.values()] == [[1]] * 2


def test_dead_member_is_removed_by_the_others() -> None:
    stage = Stage([], [], [], extensions=ALL)
    stage.elect(1, 2)
    for _ in range(6):
        stage.settle(1, 2)
    stage[1].change(Change.REMOVE, 3)
    stage.settle(1, 2)
    assert [stage[member].member_ids for member in (1, 2)] == [[1, 2]] * 2
    assert not stage[1].sent(3)


def test_endpoint_is_set_without_a_change_of_who_is_a_member() -> None:
    player = leader_of()
    player.change(Change.SET, 2, at="tcp://elsewhere:1")
    player.accept(peer=3)
    assert player.node.configuration == Configuration(
        2, 1, (server(1), server(2, "tcp://elsewhere:1"), server(3))
    )
    assert player.node.servers == player.node.configuration.servers
    assert player.outcomes == {1: (2, 1)}


def test_own_endpoint_of_the_leader_is_set() -> None:
    player = leader_of()
    player.change(Change.SET, 1, at="tcp://elsewhere:1")
    player.accept()
    assert player.node.configuration.servers[0] == server(1, "tcp://elsewhere:1")
    assert player.node.role is Role.LEADER


def test_two_members_become_one_only_when_both_hold_the_change() -> None:
    player = leader_of(2)
    player.change(Change.REMOVE, 2)
    assert player.member_ids == [1, 2]
    player.accept(peer=2)
    assert (player.member_ids, player.outcomes) == ([1], {1: (2, 1)})
    player.propose(b"x", token=3)
    assert player.outcomes[3] == (3, 1)
    player.wait(10_000)
    assert player.node.role is Role.LEADER


def test_forced_change_commits_nothing_that_a_majority_does_not_hold() -> None:
    player = leader_of(2)
    player.wait(201)
    player.sent()
    player.campaign()
    player.lead()
    player.accept()
    player.accept()
    player.change(Change.REMOVE, 2, force=True)
    player.lose()
    player.wait(201)
    assert player.member_ids == [1, 2]
    assert player.outcomes == {1: None}


def test_entries_behind_a_change_are_committed_by_the_majority_that_it_makes() -> None:
    """Those who hold them are a majority only since the change is in force: nobody answers any more."""
    player = leader_of(4)
    player.change(Change.REMOVE, 4, token=1)
    player.propose(b"x", token=2)
    requests = {peer: player.sent(peer) for peer in (2, 3, 4)}
    player.slow_disk = True  # nothing but the answers tells it
    for peer, count in ((2, 2), (3, 1)):
        for _, seq, request in requests[peer][:count]:
            player.answer(seq, request, request.last_log_index + 2)
    assert player.outcomes == {1: (2, 1), 2: (3, 1)}


def test_entries_behind_the_change_to_one_member_are_committed_with_it() -> None:
    player = leader_of(2)
    player.change(Change.REMOVE, 2, token=1)
    player.propose(b"x", token=2)
    (_, seq, request), *_ = player.sent(2)
    player.answer(seq, request, 3)
    assert player.outcomes == {1: (2, 1), 2: (3, 1)}


# A leader that is removed


def test_leader_that_is_removed_leads_until_the_commit_and_steps_down_then() -> None:
    player = leader_of()
    player.change(Change.REMOVE, 1, token=9)
    assert player.node.role is Role.LEADER
    player.accept(peer=2)
    assert player.outcomes == {9: (2, 1)}
    assert (player.node.role, player.member_ids) == (Role.FOLLOWER, [2, 3])
    player.sent()
    player.wait(10_000)
    assert (player.node.role, player.node.deadline_ms) == (Role.FOLLOWER, None)


def test_leader_that_is_removed_needs_a_majority_with_itself_until_then() -> None:
    player = leader_of(4)
    player.change(Change.REMOVE, 1)
    player.accept(peer=2)
    assert player.commit == 1
    player.accept(peer=3)
    assert player.commit == 2


def test_all_others_hear_of_the_commit_that_removes_their_leader() -> None:
    player = leader_of()
    player.change(Change.REMOVE, 1)
    player.accept(peer=2)  # 3 still owes its answer
    for peer in (2, 3):
        assert max(request.commit_index for _, _, request in player.sent(peer)) == 2


def test_leader_that_is_to_be_removed_takes_no_more_entries() -> None:
    """Behind its Configuration its log would outdo those of the members that may need its vote."""
    player = leader_of(2)
    player.change(Change.REMOVE, 1)
    with pytest.raises(ProposalDropped, match=Refusal.LEADERSHIP_IN_TRANSFER):
        player.propose(b"x")
    assert not player.post(b"x").accepted
    assert len(player.terms) == 2


def test_farm_goes_on_without_the_leader_that_was_removed() -> None:
    stage = Stage([], [], [], extensions=ALL)
    stage.elect(1, 2, 3)
    stage.settle(1, 2, 3)
    stage[1].change(Change.REMOVE, 1)
    stage.deliver(1, 2, 3)
    stage.deliver(1, 2, 3)
    assert [player.member_ids for player in stage.players.values()] == [[2, 3]] * 3
    stage.elect(2, 3)
    stage.settle(2, 3)
    stage[2].propose(b"x")
    stage.settle(2, 3)
    assert stage[2].outcomes == {1: (len(stage[2].terms), stage[2].node.term)}
    assert stage[1].node.term == 1  # it stands no more


def test_two_members_go_on_without_their_leader_though_its_last_word_is_lost() -> None:
    """The other does not know that it is alone: it needs, and gets, the vote of the removed one."""
    stage = Stage([], [], extensions=ALL)
    stage.elect(1, 2)
    stage.settle(1, 2)
    stage[1].change(Change.REMOVE, 1)
    stage.deliver(1, 2)
    stage[1].lose()
    assert (stage[1].node.role, stage[2].member_ids) == (Role.FOLLOWER, [1, 2])
    stage.elect(2, 1)
    stage.settle(2, 1)
    assert stage[2].member_ids == [2]


def test_member_outside_its_committed_configuration_never_stands() -> None:
    player = Player(3)
    player.append(1, (0, 0), [configuration_entry(1, 1, 0, (1, 2))], commit=1)
    assert player.node.deadline_ms is not None  # it hears a leader
    player.wait(10_000)
    assert (player.node.role, player.node.term, player.node.deadline_ms) == (Role.FOLLOWER, 1, None)
    player.crash()
    player.wait(10_000)
    assert player.node.role is Role.FOLLOWER


def test_member_that_is_to_be_removed_stands_until_that_is_committed() -> None:
    player = Player(3)
    player.append(1, (0, 0), [configuration_entry(1, 1, 0, (1, 2))])
    player.doubt()
    assert player.node.role is Role.CANDIDATE


# D6: votes and entries are not refused because of a Configuration


def test_vote_and_entries_of_one_outside_the_configuration_are_taken() -> None:
    player = Player(1, [1])
    assert player.ask_vote(2, (9, 9), source=7).accepted
    assert player.append(2, (1, 1), [application(2)], source=7).accepted
    assert player.node.leader == 7


# What a new leader inherits


def test_new_leader_repeats_the_pending_change_and_completes_it() -> None:
    player = Player(1)
    player.append(1, (0, 0), [configuration_entry(1, 1, 0), configuration_entry(1, 2, 1, (1, 2))], commit=1)
    player.lead()
    assert _newest(player) == configuration(3, 2, (1, 2))
    assert player.member_ids == [1, 2, 3]
    player.accept(peer=3)
    player.accept(peer=2)
    assert player.member_ids == [1, 2]
    assert not player.outcomes


def test_new_leader_that_does_not_hold_the_change_takes_it_back() -> None:
    stage = Stage([], [], [], extensions=ALL)
    stage.elect(1, 2, 3)
    stage.settle(1, 2, 3)
    stage[1].change(Change.REMOVE, 3, token=9)
    stage[1].lose()
    stage.elect(3, 2)
    stage.settle(3, 1, 2)
    assert stage[1].outcomes == {9: None}
    assert [player.member_ids for player in stage.players.values()] == [[1, 2, 3]] * 3
    assert stage[1].terms == stage[3].terms


def test_configuration_that_was_overwritten_never_takes_force() -> None:
    player = Player(1)
    player.append(1, (0, 0), [configuration_entry(1, 1, 0), configuration_entry(1, 2, 1, (1, 2))], commit=1)
    player.append(2, (1, 1), [application(2)], commit=2, source=3)
    assert player.member_ids == [1, 2, 3]


@pytest.mark.parametrize("stage_lost", ["sent", "held", "committed"])
def test_outcome_of_a_removal_is_told_however_leadership_ends(stage_lost: str) -> None:
    player = leader_of(4)
    player.change(Change.REMOVE, 4, token=9)
    if stage_lost != "sent":
        player.accept(peer=2)
    if stage_lost == "committed":
        player.accept(peer=3)
    player.append(2, (1, 1), source=3)
    assert player.outcomes == {9: (2, 1) if stage_lost == "committed" else None}


def test_outcome_is_told_once() -> None:
    player = leader_of()
    player.change(Change.REMOVE, 3, token=9)
    player.accept(peer=2)
    player.outcomes.clear()
    player.wait(50)
    player.accept()
    player.append(2, (2, 1), source=2)
    assert not player.outcomes


# What is durable with it (D7)


def test_change_is_written_with_a_commit_index_that_covers_those_before() -> None:
    player = leader_of()
    player.slow_disk = True
    player.change(Change.REMOVE, 3)
    (persist,) = player.writes
    assert [entry.value_type for entry in persist.entries] == [ValueType.CONFIGURATION]
    assert persist.hard_state.commit == 1


def test_follower_writes_a_change_with_a_commit_index_that_covers_those_before() -> None:
    player = Player(2)
    player.append(1, (0, 0), [configuration_entry(1, 1, 0)], source=1)
    player.slow_disk = True
    player.append(1, (1, 1), [configuration_entry(1, 2, 1, (1, 2))], commit=1, source=1)
    (persist,) = player.writes
    assert persist.hard_state.commit == 1
    player.crash(writes=1)
    assert player.node.configuration == configuration(1, 0)
    assert player.commit == 1


def test_restart_gives_back_the_configuration_in_force_and_those_to_come() -> None:
    player = Player(2)
    entries = [configuration_entry(1, 1, 0), configuration_entry(1, 2, 1, (1, 2)), application(1)]
    player.append(1, (0, 0), entries, commit=1, source=1)
    player.crash()
    assert player.node.configuration == configuration(1, 0)
    player.append(1, (3, 1), commit=3, source=1)
    assert player.node.configuration == configuration(2, 1, (1, 2))


def test_member_that_has_not_applied_its_configuration_does_not_stand() -> None:
    player = Player(2)
    player.slow_disk = True
    player.append(1, (0, 0), [configuration_entry(1, 1, 0, (1, 2, 3, 4))], commit=1, source=1)
    player.wait(1000)
    assert player.node.role is Role.FOLLOWER
    player.sync()
    assert player.applied
    player.wait(200)
    assert player.node.role is Role.CANDIDATE


def test_check_of_a_change_refuses_what_the_change_would_and_changes_nothing() -> None:
    player = Player().lead()
    player.accept(peer=2)
    player.accept(peer=2)
    change = ConfChange(Change.REMOVE, server(2))
    picture = player.picture
    for refused in (player.node.check_conf_change, lambda each: player.node.propose_conf_change(each, 7)):
        with pytest.raises(ProposalDropped, match=Refusal.TOO_FEW_MEMBERS_HEARD):
            refused(change)
    player.node.check_conf_change(ConfChange(Change.REMOVE, server(3)))
    assert player.picture == picture


# The level


def raise_level(player: Player, level: int, token: int = 1) -> None:
    player.node.propose_conf_change(ConfChange(Change.RAISE, level=level), token)
    player.turn()


def test_raised_level_is_in_force_once_committed_and_stays_in_every_later_configuration() -> None:
    player = leader_of(3)
    raise_level(player, 1)
    assert (_newest(player).level, player.node.configuration.level) == (1, 0)
    assert _newest(player).servers == player.node.configuration.servers
    player.accept()
    assert player.node.configuration.level == 1
    player.change(Change.REMOVE, 3)
    player.accept()
    assert (player.node.configuration.level, player.member_ids) == (1, [1, 2])
    player.append(player.node.term + 1, source=2)
    player.lead()
    assert _newest(player).level == 1, "a leader's first entry"


@pytest.mark.parametrize("level", [0, 1])
def test_level_only_rises(level: int) -> None:
    player = leader_of(3)
    raise_level(player, 1)
    player.accept()
    with pytest.raises(ProposalDropped, match=Refusal.LEVEL_REACHED):
        raise_level(player, level)


def test_level_is_raised_beside_no_other_change_and_by_a_majority_only() -> None:
    player = leader_of(3)
    player.add(4)
    with pytest.raises(ProposalDropped, match=Refusal.ANOTHER_CHANGE_IN_FLIGHT):
        raise_level(player, 1)
    alone = Player().lead()
    alone.accept(peer=2)
    alone.accept(peer=2)
    raise_level(alone, 1)
    with pytest.raises(ProposalDropped, match=Refusal.ANOTHER_CHANGE_IN_FLIGHT):
        alone.add(4)


def test_follower_takes_no_level_that_it_cannot_nor_a_lower_one_than_in_force() -> None:
    player = Player(2)

    def entry(index: int, level: int) -> LogEntry:
        raised = msgspec.structs.replace(configuration(index, index - 1), level=level)
        return LogEntry(1, ValueType.CONFIGURATION, encode_configuration(raised))

    with pytest.raises(RemoteProtocolError, match=f"the farm is at level {HIGHEST + 1}, and this program"):
        player.append(1, (0, 0), [entry(1, HIGHEST + 1)], source=1)
    player.append(1, (0, 0), [entry(1, 1)], commit=1, source=1)
    assert player.node.configuration.level == 1
    with pytest.raises(RemoteProtocolError, match="a lower level than the one in force"):
        player.append(1, (1, 1), [entry(2, 0)], commit=1, source=1)
    player.append(1, (0, 0), [entry(1, 0)], commit=1, source=1)  # what is committed is not looked at again
    assert player.node.configuration.level == 1
