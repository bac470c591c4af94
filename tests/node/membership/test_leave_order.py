"""A member that was told to leave stays away after a restart; a hand-over says who took over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from garlicfarm.cli.node_join import JoinAttempt
from garlicfarm.config import load
from garlicfarm.errors import LocalProtocolError, ProposalDropped, Removed
from garlicfarm.node import serve
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.removal import Removal
from garlicfarm.refusals import Refusal
from garlicfarm.storage import forget_leave_order, has_leave_order, keep_leave_order
from garlicfarm.wire.messages import LogEntry, MessageType, ValueType
from tests.node.support.jraft_peer import played, request
from tests.running import background, wait_until

APPEND, LEAVE = MessageType.APPEND_ENTRIES_REQUEST, MessageType.LEAVE_CLUSTER_REQUEST
STRANGER = 9


def test_order_to_leave_is_kept_and_forgotten(tmp_path: Path) -> None:
    assert not has_leave_order(tmp_path)
    keep_leave_order(tmp_path, 3)
    keep_leave_order(tmp_path, 4)
    assert has_leave_order(tmp_path)
    forget_leave_order(tmp_path)
    forget_leave_order(tmp_path)
    assert not has_leave_order(tmp_path)


async def test_member_that_was_told_to_leave_does_not_start_again(tmp_path: Path) -> None:
    """JRaft's leaders tell it before the commit, and need not tell it of that."""
    async with played(tmp_path) as plays:
        directory = plays.nodes.directories[1]
        store = directory / "data" / "farms" / "farm"
        leads = await plays.dial()
        await leads.ask(request(APPEND, 1, LogEntry(1, ValueType.APPLICATION, b"x")))
        told = await leads.ask(request(LEAVE, 1, last_log_index=1))
        assert told.accepted
        await wait_until(lambda: has_leave_order(store))
        await plays.nodes.stop(1)
        config = load(directory / "garlicfarm.toml", {})
        with pytest.raises(Removed, match="garlicfarm node start --stay"):
            await serve(config)
        shutdown = trio.Event()
        async with trio.open_nursery() as nursery:

            async def stay(task_status: trio.TaskStatus[Any]) -> None:
                await serve(config, shutdown=shutdown, stays=True, task_status=task_status)

            with trio.fail_after(240):
                await nursery.start(stay)
            shutdown.set()
        assert not has_leave_order(store)


class _Notes(list[int | None]):
    def __init__(self) -> None:
        super().__init__()
        self.raw = SimpleNamespace(is_leaving=True, term=5)
        core = SimpleNamespace(raw=self.raw, farm="farm", raft=SimpleNamespace(election_timeout_max_s=5.0))
        core.wake_waiting = lambda: None
        self.removal = Removal(cast(Any, core), cast(Any, None), self.append)


async def test_order_is_kept_at_once_and_ends_the_member_later(autojump_clock: MockClock) -> None:
    notes = _Notes()
    notes.removal.on_order()
    with pytest.raises(Removed):
        await notes.removal.watch()
    assert notes == [5, 5]
    assert notes.removal.is_over
    assert trio.current_time() >= 10


async def test_order_that_a_later_leader_cancelled_is_forgotten(autojump_clock: MockClock) -> None:
    notes = _Notes()
    notes.removal.on_order()
    notes.raw.is_leaving = False
    async with background(notes.removal.watch):
        await wait_until(lambda: len(notes) >= 2)
    assert notes == [5, None]


async def test_hand_over_to_a_member_that_another_one_forestalls_is_said(autojump_clock: MockClock) -> None:
    """A JRaft server cannot be told to campaign: the leader only steps down."""
    core: Any = SimpleNamespace(
        raw=SimpleNamespace(transfer_leadership=lambda to: None),
        must_lead=lambda: None,
        put=lambda begin: begin(),
        raft=SimpleNamespace(election_timeout_max_s=5.0),
        is_leader=False,
        leader_id=2,
    )
    assert await CoreInbox.step_down(core, 2) == 2
    assert await CoreInbox.step_down(core) == 2
    with pytest.raises(ProposalDropped, match=Refusal.ANOTHER_TOOK_OVER) as refused:
        await CoreInbox.step_down(core, 3)
    assert "member 2 leads now, and not 3" in refused.value.full_reason


async def test_id_that_was_used_before_is_told_and_removed_again(autojump_clock: MockClock) -> None:
    """A JRaft leader adds it nevertheless."""
    changes: list[tuple[str, int]] = []

    async def change_member(change: str, member: int, *_: object) -> tuple[int, int]:
        changes.append((change, member))
        return 1, 1

    farm = SimpleNamespace(
        status=lambda: {"last_index": 3, "leader_commit": 3},
        members=lambda: {"members": [{"id": 4}], "was_removed": True},
        change_member=change_member,
    )
    token, config = SimpleNamespace(id=4, farm="farm"), SimpleNamespace(base_dir=Path("here"))
    config.node = SimpleNamespace(data_dir=Path("/nowhere"))
    attempt = JoinAttempt(cast(Any, config), cast(Any, token), cast(Any, farm), lambda *_: None)
    with pytest.raises(LocalProtocolError, match="id 4 was a member's before"):
        await attempt.is_member_within(5)
    assert changes == [("remove", 4)]


async def test_stranger_that_passes_for_a_leader_lays_no_member_to_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[Removal] = []
    monkeypatch.setattr(Removal, "on_order", orders.append)
    async with played(tmp_path) as plays:
        leads = await plays.dial()
        entry = LogEntry(9, ValueType.APPLICATION, b"x")
        assert (await leads.ask(request(APPEND, 9, entry, source=STRANGER))).accepted
        assert await leads.ask(request(LEAVE, 9, source=STRANGER, last_log_index=1)) is None
        assert not plays.nodes.replica(1).raw.is_leaving
    assert not orders
