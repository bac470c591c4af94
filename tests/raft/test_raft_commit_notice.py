"""A new commit index rides on the next entries; it is sent alone only after a pause (`commit_notice_ms`)."""

from __future__ import annotations

import pytest

from garlicfarm.extensions import READ_INDEX
from garlicfarm.raft import Change
from tests.raft.playbook import Player, leader_of

PAUSE_MS = 20


def _leader(members: int = 3, **config: int) -> Player:
    """A leader of term 1 whose first entry is committed and known everywhere."""
    settings = {"commit_notice_ms": PAUSE_MS, "heartbeat_ms": 90, **config}
    return leader_of(members, extensions=frozenset({READ_INDEX}), **settings)


def _sent(player: Player) -> list[tuple[int, int, int]]:
    """To whom, how many entries, and which commit index."""
    return [(peer, len(request.entries), request.commit_index) for peer, _, request in player.sent()]


def _commit(player: Player, value: bytes = b"x", source: int = 0) -> None:
    player.post(value, source=source)
    player.accept()


def test_commit_index_waits_for_the_pause() -> None:
    player = _leader()
    _commit(player)
    assert player.commit == 2
    player.wait(PAUSE_MS - 1)
    assert _sent(player) == []
    player.wait(1)
    assert _sent(player) == [(2, 0, 2), (3, 0, 2)]


def test_commit_index_rides_on_the_next_entries() -> None:
    player = _leader()
    _commit(player)
    player.wait(PAUSE_MS - 1)
    _commit(player)
    assert player.commit == 3
    player.wait(PAUSE_MS - 1)  # the pause begins anew with what is new
    assert _sent(player) == []
    player.wait(1)
    assert _sent(player) == [(2, 0, 3), (3, 0, 3)]


def test_pause_ends_with_the_heartbeat_at_the_latest() -> None:
    player = _leader(commit_notice_ms=10_000, heartbeat_ms=50)
    _commit(player)
    player.wait(50)
    assert _sent(player) == [(2, 0, 2), (3, 0, 2)]


def test_member_that_posted_is_told_at_once() -> None:
    player = _leader()
    _commit(player, source=3)
    assert _sent(player) == [(3, 0, 2)]


def test_member_that_reads_is_told_at_once() -> None:
    player = _leader()
    _commit(player)
    player.ask_index(source=2)
    player.accept()  # the requests that confirm the leader carry it
    player.wait(PAUSE_MS - 1)
    assert _sent(player) == []
    assert player.responses[player.token].next_index == 3  # type: ignore[union-attr]


def test_member_that_was_answered_a_read_is_told_as_soon_as_it_can_be() -> None:
    player = _leader(5)
    player.post(b"x")
    ((_, seq, entries),) = player.sent(5)  # on its way before the commit
    for peer in (2, 3):
        player.accept(peer=peer)
    assert player.commit == 2
    player.ask_index(source=5)
    for peer in (2, 3):
        player.accept(peer=peer)
    assert player.responses[player.token].next_index == 3
    player.sent()
    player.answer(seq, entries, 3)
    assert _sent(player) == [(5, 0, 2)]


def test_configuration_is_told_at_once() -> None:
    player = _leader()
    player.change(Change.REMOVE, 3)
    player.accept(peer=2)
    assert player.commit == 2
    assert (2, 0, 2) in _sent(player)


def test_member_with_entries_on_their_way_is_told_when_it_has_answered() -> None:
    player = _leader()
    player.post(b"x")
    player.accept(peer=2)
    assert player.commit == 2
    player.wait(PAUSE_MS)
    assert _sent(player)[0] == (3, 1, 1)  # the entry, sent before the commit
    player.wait(1)
    assert _sent(player) == []


@pytest.mark.parametrize("pause_ms", [0, PAUSE_MS])
def test_member_that_lost_the_notice_hears_of_it_with_the_heartbeat(pause_ms: int) -> None:
    player = _leader(commit_notice_ms=pause_ms, heartbeat_ms=50)
    _commit(player)
    player.wait(pause_ms)
    player.lose()
    player.wait(50)
    assert _sent(player) == [(2, 0, 2), (3, 0, 2)]
