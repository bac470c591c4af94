"""The session of a service on standby."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from garlicfarm.errors import PublisherError
from garlicfarm_plugin_i2cp.service_session import MAX_REQUESTS
from tests.publishers.service_keeper.keeper_bench import Bench, publishing


async def test_standby_session_answers_every_request_and_publishes_nothing(bench, autojump_clock):
    bench.router.asks_after_s = 3.0
    await bench.keeper.standby()
    assert trio.current_time() == pytest.approx(3)
    for _ in range(3):
        await trio.sleep(30)
        await bench.router.ask()
    await wait_all_tasks_blocked()
    assert [each.at_s for each in bench.given] == pytest.approx([3, 33, 63, 93])
    assert bench.published == []
    assert len({each.private_key for each in bench.given}) == 1
    assert bench.configurations() == ["standby", "standby"]


async def test_standby_waits_for_tunnels_and_says_so(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.asks_after_s = 70
    building = "the router at 127.0.0.1:7654 has not asked for a LeaseSet yet; it is building tunnels"
    for _ in range(2):
        with pytest.raises(PublisherError, match=building):
            await bench.keeper.standby()
        assert not bench.keeper.is_ready
    assert trio.current_time() == pytest.approx(50)
    await bench.keeper.standby()
    assert trio.current_time() == pytest.approx(70)
    assert (bench.keeper.is_ready, bench.keeper.problem) == (True, "")


async def test_request_that_is_repeated_at_once_is_answered_once_or_twice(bench, autojump_clock):
    await publishing(bench)
    await bench.router.ask()
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert 1 <= len(bench.published) - 1 <= 2
    dates = [each.lease_set.published_s for each in bench.published]
    assert dates == sorted({*dates})


async def test_session_without_tunnels_is_not_ready(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.tunnel_s = (60,)
    await bench.keeper.standby()
    await trio.sleep(61)
    assert not bench.keeper.is_ready
    assert bench.keeper.problem == "the router at 127.0.0.1:7654 has no tunnels for the service"
    bench.router.tunnel_s = ()
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert not bench.keeper.is_ready
    bench.router.tunnel_s = (600,)
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert (bench.keeper.is_ready, bench.keeper.problem) == (True, "")


async def test_tunnel_that_is_missing_for_less_than_a_minute_is_not_missed(
    bench: Bench, autojump_clock: MockClock
) -> None:
    async def asked(*tunnel_s: int) -> int:
        bench.router.tunnel_s = tunnel_s
        await bench.router.ask()
        await wait_all_tasks_blocked()
        return lately()

    def lately() -> int:
        assert bench.keeper.session is not None
        return bench.keeper.session.tunnels_lately(trio.current_time())

    bench.router.tunnel_s = (600, 500, 400)
    await bench.keeper.standby()
    assert lately() == 3
    await trio.sleep(100)  # how long the first request has stood counts for nothing
    assert await asked(600, 500) == 3
    await trio.sleep(59)
    assert lately() == 3
    await trio.sleep(2)
    assert lately() == 2
    assert await asked(600) == 2
    assert await asked(600, 500, 400, 300) == 4
    assert await asked(30) == 4
    await trio.sleep(31)
    assert lately() == 0  # none of those that it asked for lasts
    assert await asked(600) == 4
    await trio.sleep(61)
    assert lately() == 1


async def test_router_that_asks_all_the_time_fills_no_memory(bench: Bench, autojump_clock: MockClock) -> None:
    await bench.keeper.standby()
    bench.router.tunnel_s = (600,) * 3
    await bench.router.ask()
    bench.router.tunnel_s = (600,)
    for _ in range(MAX_REQUESTS):
        await bench.router.ask()
    await wait_all_tasks_blocked()
    assert bench.keeper.session is not None
    assert bench.keeper.session.tunnels_lately(trio.current_time()) == 1  # the older ones are forgotten
