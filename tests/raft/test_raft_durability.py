"""Nothing is said before what it rests on is durable; a restart gives back what was."""

from __future__ import annotations

from typing import Any

import pytest

from garlicfarm.raft import Entry, HardState, Persist, RaftConfig, RawNode, Role
from garlicfarm.testing.memory_storage import MemoryStorage
from garlicfarm.wire.messages import Request
from tests.raft.playbook import APPEND, VOTE, Player, application, configuration, leader_of, log


def _slow(terms: tuple[int, ...] = (), **options: Any) -> Player:
    player = Player(1, terms, **options)
    player.slow_disk = True
    return player


def test_vote_does_not_leave_before_it_is_durable() -> None:
    player = _slow()
    assert player.ask_vote(1) is None
    assert player.writes[0].hard_state.vote == 2
    player.sync()
    assert player.responses[player.token].accepted


def test_refused_vote_of_a_new_term_does_not_leave_before_the_term_is_durable() -> None:
    player = _slow((1,))
    assert player.ask_vote(5, (0, 0)) is None
    player.sync()
    response = player.responses[player.token]
    assert (response.accepted, response.term) == (False, 5)


def test_vote_requests_and_the_own_vote_wait_until_they_are_durable() -> None:
    player = _slow(members=(1,))
    player.wait(100)
    assert (player.node.role, player.node.term) == (Role.CANDIDATE, 1)
    player.sync()
    assert player.node.role is Role.LEADER
    player = _slow()
    player.wait(100)
    assert not player.requests
    player.sync()
    assert [request.type for _, _, request in player.requests] == [VOTE, VOTE]


def test_vote_request_of_a_term_that_is_over_is_not_sent_any_more() -> None:
    player = _slow()
    player.wait(100)
    player.append(2)
    player.sync()
    player.sync()
    assert not player.requests


def test_own_vote_of_a_term_that_is_over_does_not_elect() -> None:
    player = _slow(members=(1,))
    player.wait(100)
    player.append(2, source=9)
    player.sync_all()
    assert player.node.role is Role.FOLLOWER


def test_accepted_append_does_not_leave_before_its_entries_are_durable() -> None:
    player = _slow()
    assert player.append(1, (0, 0), [application(1)]) is None
    assert player.append(1, (1, 1), [application(1)]) is None
    assert player.append(1, (2, 1)) is None  # a heartbeat confirms both
    player.sync()
    assert list(player.responses) == [1]
    player.sync()
    assert list(player.responses) == [1, 2, 3]


def test_answer_that_rests_on_nothing_new_leaves_at_once() -> None:
    player = _slow((1,), term=3)
    assert player.append(3, (1, 1)).accepted
    assert not player.disk.pending


def test_term_vote_and_entries_of_one_input_are_one_write() -> None:
    player = _slow((1, 1))
    player.append(4, (1, 1), [application(3, b"new")], commit=1)
    (persist,) = player.writes
    assert persist.hard_state == HardState(4, 0, 1)
    assert persist.truncate_from == 2
    assert persist.entries == (Entry(2, 3, application(3).value_type, b"new"),)


def test_append_entries_go_out_before_the_leaders_own_write() -> None:
    player = leader_of()
    player.slow_disk = True
    player.node.propose((b"x",), 1)
    ready = player.turn()
    assert ready.persist is not None
    assert [(sent.peer, sent.request.type, len(sent.request.entries)) for sent in ready.requests] == [
        (2, APPEND, 1),
        (3, APPEND, 1),
    ]


@pytest.mark.parametrize(("acknowledging", "committed"), [(1, False), (2, True)])
def test_leaders_own_log_counts_only_when_it_is_durable(acknowledging: int, committed: bool) -> None:
    player = leader_of()
    player.slow_disk = True
    player.node.propose((b"x",), 1)
    player.turn()
    for peer in range(2, 2 + acknowledging):
        player.accept(peer=peer)
    assert (player.commit == 2) is committed
    assert (player.outcomes == {1: (2, 1)}) is committed
    assert len(player.applied) == 1  # it is not durable here in any case
    player.sync()
    assert player.commit == 2
    assert len(player.applied) == 2


def test_follower_applies_only_what_is_durable_here() -> None:
    player = _slow()
    player.append(1, (0, 0), [application(1), application(1)], commit=2)
    assert player.commit == 2
    assert not player.applied
    player.sync()
    assert [entry.index for entry in player.applied] == [1, 2]


def test_writes_reported_together_release_all_that_waited() -> None:
    player = _slow()
    player.append(1, (0, 0), [application(1)])
    player.append(1, (1, 1), [application(1)])
    tokens = [player.disk.sync().token for _ in range(2)]
    player.node.report_persisted(tokens[-1])
    player.turn()
    assert list(player.responses) == [1, 2]


def test_restart_begins_with_what_was_durable_and_nothing_else() -> None:
    player = Player()
    player.append(2, (0, 0), [application(1), application(2)], commit=1)
    player.slow_disk = True
    player.append(3, (2, 2), [application(3)])
    player.ask_vote(4, (3, 3), source=3, ordered=True)
    player.crash()
    status = player.node.status()
    assert (status.term, status.vote, status.commit, status.last_index) == (2, 0, 1, 2)
    assert (status.role, status.leader) == (Role.FOLLOWER, 0)
    assert [entry.index for entry in player.applied] == [1]
    player.append(3, (2, 2), [application(3)])
    player.ask_vote(4, (3, 3), source=3, ordered=True)
    player.crash(writes=2)
    status = player.node.status()
    assert (status.term, status.vote, status.last_index) == (4, 3, 3)


def test_restarted_member_goes_on_as_one_that_never_stopped() -> None:
    steps = [
        lambda player: player.append(1, (0, 0), [application(1, b"a"), application(1, b"b")], commit=1),
        lambda player: player.ask_vote(2, (2, 1), source=3, ordered=True),
        lambda player: player.append(3, (1, 1), [application(3, b"c")], commit=1, source=3),
        lambda player: player.append(3, (2, 3), commit=2, source=3),
    ]
    steady, restarted = Player(), Player()
    for step in steps:
        first, second = step(steady), step(restarted)
        assert first == second
        restarted.crash()
    steady.crash()
    assert steady.node.status() == restarted.node.status()
    assert steady.disk.contents == restarted.disk.contents


def _aba(player: Player) -> None:
    """Entry 1 is written in term 1, replaced in term 2, and again in term 3, while the disk sleeps."""
    player.slow_disk = True
    player.append(1, (0, 0), [application(1, b"A"), application(1, b"A2")])
    player.append(2, (0, 0), [application(2, b"B")], source=3)
    player.append(3, (0, 0), [application(3, b"C")], source=2)


def test_pending_write_does_not_bring_back_what_a_later_one_replaces() -> None:
    player = Player()
    _aba(player)
    for _ in range(2):
        player.sync()
        assert player.node.status().stable == 0
        assert player.terms == [3]
    player.sync()
    assert player.node.status().stable == 1
    assert [entry.value for entry in player.disk.contents] == [b"C"]
    player.append(3, (1, 3), commit=1)
    assert [entry.value for entry in player.applied] == [b"C"]


@pytest.mark.parametrize("writes", range(4))
def test_crash_in_the_middle_of_replacements_leaves_one_of_the_logs_that_were(writes: int) -> None:
    player = Player()
    _aba(player)
    player.crash(writes)
    assert player.terms == [[], [1, 1], [2], [3]][writes]
    assert player.node.term == writes


def test_entries_appended_and_replaced_before_they_were_handed_out_are_never_written() -> None:
    player = Player(1, [1])
    for term, terms in ((2, (2, 2)), (3, (3,))):
        entries = tuple(application(each) for each in terms)
        player.node.step(Request(APPEND, term, 1, term, 1, 1, 0, entries), term)
    persist = player.node.ready().persist
    assert [entry.term for entry in persist.entries] == [3]
    assert persist.truncate_from is None


def test_single_member_leads_with_a_synchronous_driver() -> None:
    storage = MemoryStorage(configuration(members=(1,)))
    node = RawNode(RaftConfig(id=1), storage, lambda low, high: low)
    node.tick(0)
    node.tick(3000)
    for _ in range(4):
        ready = node.ready()
        if ready.persist is not None:
            storage.write(ready.persist)
            node.report_persisted(ready.persist.token)
        if ready.committed:
            node.report_applied(ready.committed[-1].index)
    assert node.role is Role.LEADER
    assert (node.status().commit, node.status().applied) == (1, 1)


def test_storage_read_back_in_pages_gives_the_whole_log() -> None:
    storage = MemoryStorage(configuration())
    storage.write(Persist(1, entries=log(1, 1, 2)))
    assert [len(storage.entries(1, 4, size)) for size in (1, 6, 9)] == [1, 2, 3]
