"""New keys of a service: used at once on standby, and while it publishes once it has let the role go."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm_plugin_i2cp.service_keeper import LAST_WORDS_S
from tests.publishers.i2cp_router import CREATE_SESSION
from tests.publishers.renewed_keys import renew
from tests.publishers.service_keeper.keeper_bench import START_MS, Bench, publishing


def renewed(bench: Bench, directory: Path) -> DestinationKeys:
    """As the publisher does when the file has changed."""
    keys = renew(directory / "site.bundle", START_MS)
    bench.keys.look()
    bench.keeper.on_keys()
    return keys


def transient(bench: Bench) -> bytes:
    """Of the LeaseSet that the router was given last."""
    offline = bench.given[-1].lease_set.offline
    assert offline is not None
    return offline.transient


async def test_standby_uses_new_keys_at_once_in_the_same_session(
    bench: Bench, tmp_path: Path, autojump_clock: MockClock
) -> None:
    await bench.keeper.standby()
    new = renewed(bench, tmp_path)
    assert bench.keeper.is_ready
    assert (bench.keys.keys, bench.streams_keys) == (new, [new])
    await bench.keeper.publish(bench.order())
    assert new.offline is not None
    assert transient(bench) == new.offline.transient
    assert len(bench.router.bodies(CREATE_SESSION)) == 1


async def test_publisher_signs_with_the_old_keys_until_it_has_let_the_role_go(
    bench: Bench, tmp_path: Path, autojump_clock: MockClock
) -> None:
    old = bench.keys.keys
    await publishing(bench)
    new = renewed(bench, tmp_path)
    assert not bench.keeper.is_ready  # so that another member is named
    assert bench.keeper.problem == ""
    await trio.sleep(60)
    assert old.offline is not None
    assert transient(bench) == old.offline.transient
    await bench.keeper.retire(None)
    await bench.keeper.standby()
    assert bench.keeper.is_ready
    assert (bench.keys.keys, bench.streams_keys) == (old, [])  # clients know its LeaseSet
    await trio.sleep(90 + 60 + 2)  # then another session has begun
    assert (bench.keys.keys, bench.streams_keys) == (new, [new])
    assert new.offline is not None
    assert transient(bench) == new.offline.transient


async def test_keys_that_come_when_it_has_let_the_role_go_wait_until_its_clients_are_gone(
    bench: Bench, tmp_path: Path, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    await bench.keeper.retire(None)
    new = renewed(bench, tmp_path)
    assert bench.keeper.is_ready
    await trio.sleep(90)
    assert bench.streams_keys == []
    await trio.sleep(60 + LAST_WORDS_S + 2)
    assert bench.streams_keys == [new]


async def test_member_that_nobody_can_replace_uses_them_with_the_next_order(
    bench: Bench, tmp_path: Path, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    new = renewed(bench, tmp_path)
    await bench.keeper.retire(None)
    await bench.keeper.standby()
    begun_s = trio.current_time()
    await bench.keeper.publish(bench.order(published_ms=START_MS + 60_000))  # it is named all the time
    assert trio.current_time() == begun_s  # streams are signed with the new keys from now on
    assert new.offline is not None
    assert transient(bench) == new.offline.transient
    assert bench.streams_keys == [new]
    assert bench.keeper.is_ready
    assert len(bench.router.bodies(CREATE_SESSION)) == 1


async def test_another_order_of_the_same_turn_changes_no_keys(
    bench: Bench, tmp_path: Path, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    renewed(bench, tmp_path)
    await bench.keeper.publish(bench.order(published_ms=START_MS + 60_000))
    assert bench.streams_keys == []
    assert not bench.keeper.is_ready


async def test_keys_that_have_expired_are_replaced_without_a_restart(
    bench: Bench, tmp_path: Path, autojump_clock: MockClock
) -> None:
    await bench.keeper.standby()
    await trio.sleep(2 * 3600)
    await bench.router.ask()
    await trio.sleep(1)
    assert "have expired" in bench.keeper.problem
    new = renewed(bench, tmp_path)
    with trio.fail_after(60):
        while not bench.keeper.is_ready:
            await bench.keeper.wait_changed()
    await wait_all_tasks_blocked()
    assert new.offline is not None
    assert transient(bench) == new.offline.transient
    assert bench.keeper.problem == ""


@pytest.mark.parametrize("waits", [False, True])
async def test_session_that_dies_while_it_publishes_keeps_the_keys_of_the_turn(
    bench: Bench, tmp_path: Path, waits: bool, autojump_clock: MockClock
) -> None:
    """Clients still know what it published."""
    old = bench.keys.keys
    await publishing(bench)
    if waits:
        await trio.sleep(30)
    renewed(bench, tmp_path)
    await bench.router.kill()
    await trio.sleep(10)
    assert len(bench.router.bodies(CREATE_SESSION)) == 2
    assert old.offline is not None
    assert transient(bench) == old.offline.transient
