"""The session of a service at a router that dies, hangs, refuses it or has a wrong clock."""

from __future__ import annotations

import struct

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from garlicfarm.errors import PublisherError
from tests.publishers.i2cp_router import CREATE_SESSION, DESTROY_SESSION, send
from tests.publishers.service_keeper.keeper_bench import BUNDLE_S, SESSION, Bench, publishing


async def test_router_that_dies_is_noticed_at_once(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    bench.is_up = False
    told: list[tuple[bool, str]] = []

    async def tell() -> None:
        await bench.keeper.wait_changed()
        told.append((bench.keeper.is_ready, bench.keeper.problem))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        await wait_all_tasks_blocked()
        await bench.router.kill()
    assert trio.current_time() == pytest.approx(0)
    assert told == [(False, "the router at 127.0.0.1:7654 has closed the connection")]
    assert bench.keeper.session is None
    with pytest.raises(PublisherError, match="Connection refused"):
        await bench.keeper.standby()


async def test_routers_date_is_told_until_it_is_gone(bench, autojump_clock):
    bench.router_off_ms = -70_000
    await publishing(bench)
    assert bench.keeper.router_date.date_ms - bench.now_ms() == -70_000
    bench.router_off_ms = 80_000
    await trio.sleep(20)
    date = bench.keeper.router_date
    assert date.date_ms - date.asked_ms == 80_000
    assert date.answered_ms >= date.asked_ms >= bench.now_ms() - 15_000
    bench.is_up = False
    await bench.router.kill()
    await trio.sleep(1)
    assert bench.keeper.router_date is None


async def test_router_that_hangs_is_noticed_after_two_heartbeats(bench, autojump_clock):
    await bench.keeper.standby()
    await trio.sleep(60)
    assert bench.keeper.is_ready
    bench.router.is_silent = True
    await trio.sleep(10.1)
    assert not bench.keeper.is_ready
    assert bench.keeper.problem == "I2CP at 127.0.0.1:7654 has not answered for 5 s"


async def test_router_that_is_started_again_serves_a_new_session_on_standby(bench, autojump_clock):
    first = await publishing(bench)
    bench.is_up = False
    await bench.router.kill()
    await bench.keeper.retire(None)
    await trio.sleep(40)
    assert bench.connected_at == pytest.approx([0, 1, 3, 7, 15, 31])
    bench.is_up = True
    await trio.sleep(30)
    assert bench.keeper.is_ready
    assert not bench.given[-1].is_published
    assert bench.given[-1].private_key != first.private_key


async def test_order_that_stands_is_carried_out_in_the_next_session(bench, autojump_clock):
    first = await publishing(bench)
    await trio.sleep(10)
    await send(bench.router.streams[0], 20, SESSION + b"\0")
    await trio.sleep(2)
    assert [each.at_s for each in bench.published] == pytest.approx([0, 11])
    assert bench.published[1].private_key != first.private_key
    assert bench.published[1].lease_set.published_s > first.lease_set.published_s


async def test_streams_outlast_a_session_that_dies_as_long_as_an_order_stands(bench, autojump_clock):
    await publishing(bench)
    bench.is_up = False
    await bench.router.kill()
    await trio.sleep(10)
    assert bench.abandoned_at == []
    await bench.keeper.retire(None)
    assert bench.abandoned_at == pytest.approx([10])


async def test_streams_end_with_a_retired_session_that_dies(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    await bench.keeper.retire(None)
    await trio.sleep(10)
    assert bench.abandoned_at == []
    await bench.router.kill()
    await wait_all_tasks_blocked()
    assert bench.abandoned_at == pytest.approx([10])


async def test_keys_that_have_expired_on_standby_publish_nothing(bench, autojump_clock):
    await bench.keeper.standby()
    await trio.sleep(BUNDLE_S + 1)
    with pytest.raises(PublisherError, match="have expired"):
        await bench.keeper.publish(bench.order())
    assert bench.configurations() == ["standby", "standby"]
    assert bench.keeper.session is not None


async def test_keys_that_have_expired_by_the_routers_clock_only_open_no_session_again_and_again(
    bench: Bench, autojump_clock: MockClock
) -> None:
    bench.router_off_ms = 300_000
    await bench.keeper.standby()
    await trio.sleep(BUNDLE_S - 290)
    bench.router.received.clear()
    bench.connected_at.clear()
    await bench.router.ask()
    problems = set()
    for _ in range(200):
        await trio.sleep(1)
        problems.add(bench.keeper.problem)
    (problem,) = problems
    assert "have expired by the router's clock: make new bundles" in problem
    assert bench.router.bodies(CREATE_SESSION) == []
    assert len(bench.connected_at) < 12


async def test_router_that_answers_everything_twice_is_of_use(bench, autojump_clock):
    await bench.keeper.standby()
    (stream,) = bench.router.streams
    await send(stream, 20, SESSION + b"\1")
    await send(stream, 33, struct.pack(">Q", bench.router_ms()) + b"\x062.45.1")
    await bench.keeper.publish(bench.order())
    await wait_all_tasks_blocked()
    await send(stream, 20, SESSION + b"\2")
    await trio.sleep(30)
    assert bench.router.streams == [stream]
    assert len(bench.published) == 2


async def test_session_that_was_of_use_is_opened_again_soon(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.statuses = [3] * 4
    await trio.sleep(20)
    for _ in range(2):
        await bench.router.kill()
        await trio.sleep(5)
    assert bench.connected_at == pytest.approx([0, 1, 3, 7, 15, 21, 26])


async def test_keeper_that_is_cancelled_ends_its_session(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    bench.running.cancel()
    await wait_all_tasks_blocked()
    assert bench.router.bodies(DESTROY_SESSION) == [SESSION]
    assert bench.router.streams == []
    assert bench.keeper.session is None
