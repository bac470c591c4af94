"""The session that stands at a router while an order does: over memory streams, on a clock that jumps."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from garlicfarm.errors import PublisherError
from garlicfarm.lab.processes import free_ports
from garlicfarm.publisher import ClockReading, PublisherStatus, PublishOrder
from garlicfarm_plugin_i2cp.connection import RouterAddress, open_connection
from garlicfarm_plugin_i2cp.meta_keeper import MetaKeeper
from tests.publishers.i2cp_router import (
    CREATE_SESSION,
    DATE,
    DESTROY_SESSION,
    GET_BANDWIDTH_LIMITS,
    START_MS,
    KeeperBench,
    send,
)

LIFETIME_MS = 600_000


class Bench(KeeperBench):
    """A keeper that runs, and its router."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        self.keeper = MetaKeeper(
            self.address,
            configuration=lambda now_ms, kind: b"configuration of %d" % now_ms,
            now_ms=self.now_ms,
        )

    def order(self, number: int = 1, lifetime_ms: int = LIFETIME_MS) -> PublishOrder:
        now_ms = self.now_ms()
        return PublishOrder(
            due_index=7,
            published_ms=START_MS + 1000 * number,
            expires_ms=now_ms + lifetime_ms,
            lease_set=b"Meta LeaseSet %d" % number,
        )


def undated(bench: Bench) -> PublisherStatus:
    """Its status, without the date and the kind of the router."""
    return msgspec.structs.replace(bench.keeper.status(), router_date=None, router_kind=None)


@pytest.fixture
async def bench(nursery: trio.Nursery) -> Bench:
    made = Bench(nursery)
    nursery.start_soon(made.run)
    return made


async def test_order_is_taken_once_the_router_has_asked_for_it_and_read_it(bench, autojump_clock):
    bench.router.asks_after_s = 13.0
    order = bench.order()
    await bench.keeper.publish(order)
    assert trio.current_time() >= 13
    assert bench.router.lease_sets == [order.lease_set]
    assert bench.router.bodies(CREATE_SESSION) == [b"configuration of %d" % START_MS]
    assert undated(bench) == PublisherStatus(
        is_publishing=True, since_ms=bench.now_ms(), until_ms=order.expires_ms
    )


async def test_order_stands_while_the_router_builds_tunnels(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.asks_after_s = 70
    building = "the router at 127.0.0.1:7654 has not asked for a LeaseSet yet; it is building tunnels"
    for number in (1, 2):
        with pytest.raises(PublisherError, match=building):
            await bench.keeper.publish(bench.order(number))
        assert undated(bench) == PublisherStatus(is_publishing=False, problems=(building,))
    assert trio.current_time() == pytest.approx(50)
    assert bench.router.lease_sets == []
    await trio.sleep(21)
    assert bench.keeper.status().is_publishing
    await bench.keeper.publish(bench.order(2))
    assert bench.router.lease_sets == [b"Meta LeaseSet 2"]
    assert len(bench.router.bodies(CREATE_SESSION)) == 1


async def test_publish_in_a_long_pause_says_what_was_wrong(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.statuses = [3] * 8
    with pytest.raises(PublisherError, match="status 3"):
        await bench.keeper.publish(bench.order())
    await trio.sleep(32)  # the next attempt is 29 s away
    with pytest.raises(PublisherError, match="status 3"):
        await bench.keeper.publish(bench.order(2))
    assert trio.current_time() == pytest.approx(32 + 25)


async def test_router_that_has_not_read_the_lease_set_has_not_taken_it(bench, autojump_clock):
    bench.router.asks_after_s = None

    async def hang_after_asking() -> None:
        await wait_all_tasks_blocked()
        bench.router.is_silent = True
        await bench.router.ask()
        await trio.sleep(9)
        assert not bench.keeper.status().is_publishing

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang_after_asking)
        with pytest.raises(PublisherError, match="has not answered for 10 s"):
            await bench.keeper.publish(bench.order())
    assert not bench.keeper.status().is_publishing


async def test_every_request_is_answered_at_once(bench: Bench, autojump_clock: MockClock) -> None:
    order = bench.order()
    await bench.keeper.publish(order)
    for _ in range(3):
        await trio.sleep(5)
        await bench.router.ask()
    await trio.sleep(1)
    assert bench.router.lease_sets == [order.lease_set] * 4
    assert len(bench.router.bodies(CREATE_SESSION)) == 1


async def test_newer_order_is_sent_unasked_and_not_within_20_s(bench, autojump_clock):
    await bench.keeper.publish(first := bench.order(1))
    since_ms = bench.keeper.status().since_ms
    await bench.keeper.publish(second := bench.order(2))
    assert trio.current_time() == pytest.approx(20)
    await trio.sleep(100)
    await bench.keeper.publish(third := bench.order(3))
    assert trio.current_time() == pytest.approx(120)
    assert bench.router.lease_sets == [first.lease_set, second.lease_set, third.lease_set]
    status = bench.keeper.status()
    assert (status.since_ms, status.until_ms) == (since_ms, third.expires_ms)


async def test_request_meanwhile_is_answered_with_the_newest_order(bench, autojump_clock):
    await bench.keeper.publish(bench.order(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.keeper.publish, second := bench.order(2))
        await trio.sleep(5)
        await bench.router.ask()
    assert trio.current_time() == pytest.approx(5)
    assert bench.router.lease_sets[1:] == [second.lease_set]


async def test_order_that_is_replaced_before_it_was_sent_never_is(bench, autojump_clock):
    await bench.keeper.publish(bench.order(1))
    with trio.move_on_after(5):
        await bench.keeper.publish(bench.order(2))
    await bench.keeper.publish(bench.order(3))
    assert bench.router.lease_sets == [b"Meta LeaseSet 1", b"Meta LeaseSet 3"]


async def test_equal_orders_are_one(bench: Bench, autojump_clock: MockClock) -> None:
    order = bench.order()
    await bench.keeper.publish(order)
    await bench.keeper.publish(bench.order())
    assert len(bench.router.lease_sets) == 1
    assert trio.current_time() < 0.1


@pytest.mark.parametrize(("status", "word"), [(3, "invalid"), (4, "refused"), (0, "ended the session")])
async def test_refused_session_is_reported_and_tried_again_with_back_off(bench, autojump_clock, status, word):
    bench.router.statuses = [status] * 8
    order = bench.order()
    with pytest.raises(PublisherError, match=word) as caught:
        await bench.keeper.publish(order)
    assert undated(bench) == PublisherStatus(is_publishing=False, problems=(str(caught.value),))
    await trio.sleep(200)
    times = bench.router.times(CREATE_SESSION)
    assert times == pytest.approx([0, 1, 3, 7, 15, 31, 61, 91, 121])
    assert bench.router.lease_sets == [order.lease_set]
    status_after = bench.keeper.status()
    assert (status_after.is_publishing, status_after.problems) == (True, ())


async def test_session_that_dies_is_opened_again(bench: Bench, autojump_clock: MockClock) -> None:
    order = bench.order()
    await bench.keeper.publish(order)
    await trio.sleep(50)
    bench.is_up = False
    await bench.router.kill()
    await wait_all_tasks_blocked()
    status = bench.keeper.status()
    assert (status.is_publishing, status.until_ms) == (False, order.expires_ms)
    assert status.problems == ("the router at 127.0.0.1:7654 has closed the connection",)
    await trio.sleep(5)
    (problem,) = bench.keeper.status().problems
    assert "Connection refused" in problem
    assert "enabled = true of [i2cp]" in problem
    bench.is_up = True
    await trio.sleep(10)
    assert bench.router.lease_sets == [order.lease_set] * 2
    assert bench.keeper.status().is_publishing
    assert bench.connected_at == pytest.approx([0, 51, 53, 57])


async def test_session_that_the_router_ends_is_opened_again(bench: Bench, autojump_clock: MockClock) -> None:
    """As i2pd ends one that was given an invalid LeaseSet."""
    await bench.keeper.publish(bench.order())
    await send(bench.router.streams[0], 20, b"\x12\x34\0")
    await wait_all_tasks_blocked()
    assert bench.keeper.status().problems == ("the router at 127.0.0.1:7654 has ended the session",)
    await trio.sleep(2)
    assert bench.keeper.status().is_publishing


async def test_router_that_hangs_is_noticed_within_half_a_minute(bench, autojump_clock):
    await bench.keeper.publish(bench.order())
    bench.router.is_silent = True
    await trio.sleep(31)
    status = bench.keeper.status()
    assert not status.is_publishing
    assert status.problems == ("I2CP at 127.0.0.1:7654 has not answered for 10 s",)


async def test_session_without_news_is_kept(bench: Bench, autojump_clock: MockClock) -> None:
    await bench.keeper.publish(bench.order())
    await trio.sleep(LIFETIME_MS / 1000 - 1)
    assert bench.keeper.status().is_publishing
    assert len(bench.router.bodies(CREATE_SESSION)) == 1
    assert len(bench.router.bodies(DATE)) == pytest.approx(30, abs=3)


async def test_retired_session_is_destroyed_and_publishes_nothing_more(bench, autojump_clock):
    order = bench.order()
    await bench.keeper.publish(order)
    await bench.keeper.retire()
    assert bench.router.bodies(DESTROY_SESSION) == [b"\x12\x34"]
    await wait_all_tasks_blocked()
    assert bench.router.streams == []
    status = bench.keeper.status()
    assert (status.is_publishing, status.problems) == (False, ())
    assert status.until_ms == order.expires_ms  # at the floodfills
    await trio.sleep(1000)
    assert len(bench.router.lease_sets) == 1
    assert undated(bench) == PublisherStatus(is_publishing=False)
    await bench.keeper.retire()
    await bench.keeper.publish(later := bench.order(2))
    assert bench.router.lease_sets[1:] == [later.lease_set]


@pytest.mark.parametrize("at_s", [0.0, 5.0, 12.5])
async def test_retired_at_any_time_nothing_is_published(bench, autojump_clock, at_s):
    bench.router.asks_after_s = 13.0
    with trio.move_on_after(at_s):
        await bench.keeper.publish(bench.order())
    await bench.keeper.retire()
    await trio.sleep(100)
    assert bench.router.lease_sets == []
    assert bench.router.streams == []


async def test_retired_in_a_pause_before_another_attempt_is_retired_at_once(bench, autojump_clock):
    bench.is_up = False
    with pytest.raises(PublisherError, match="cannot be reached"):
        await bench.keeper.publish(bench.order())
    await trio.sleep(20)
    await bench.keeper.retire()
    assert trio.current_time() == pytest.approx(20)
    tried = len(bench.connected_at)
    await trio.sleep(100)
    assert len(bench.connected_at) == tried


async def test_retired_from_a_router_that_hangs_the_connection_is_closed(bench, autojump_clock):
    await bench.keeper.publish(bench.order())
    bench.router.is_silent = True
    await bench.keeper.retire()
    assert trio.current_time() == pytest.approx(2)
    await wait_all_tasks_blocked()
    assert bench.router.streams == []


async def test_session_ends_when_its_order_expires(bench: Bench, autojump_clock: MockClock) -> None:
    await bench.keeper.publish(bench.order(lifetime_ms=60_000))
    await trio.sleep(59)
    assert bench.keeper.status().is_publishing
    await trio.sleep(2)
    assert bench.router.bodies(DESTROY_SESSION) == [b"\x12\x34"]
    assert undated(bench) == PublisherStatus(
        is_publishing=False, problems=("the Meta LeaseSet has expired, and there is no newer one",)
    )
    await trio.sleep(100)
    assert len(bench.router.bodies(CREATE_SESSION)) == 1


async def test_request_after_the_order_has_expired_is_not_answered(bench, autojump_clock):
    """Timers stop while a machine is suspended."""
    await bench.keeper.publish(bench.order())
    bench.clock_off_ms = LIFETIME_MS
    assert not bench.keeper.status().is_publishing
    await bench.router.ask()
    await trio.sleep(1)
    assert len(bench.router.lease_sets) == 1
    assert bench.router.streams == []


async def test_order_that_expires_before_it_is_taken_is_an_error(bench, autojump_clock):
    bench.router.asks_after_s = None
    with pytest.raises(PublisherError, match="has expired"):
        await bench.keeper.publish(bench.order(lifetime_ms=15_000))
    assert trio.current_time() == pytest.approx(15)


async def test_keeper_that_is_cancelled_ends_its_session(bench: Bench, autojump_clock: MockClock) -> None:
    await bench.keeper.publish(bench.order())
    bench.running.cancel()
    await wait_all_tasks_blocked()
    assert bench.router.bodies(DESTROY_SESSION) == [b"\x12\x34"]
    assert bench.router.streams == []
    assert not bench.keeper.status().is_publishing


@pytest.mark.parametrize(
    ("garbage", "sentence"),
    [
        (b"", r"has not answered for 10 s"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", r"does not speak I2CP: a message of \d+ bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", r"does not speak I2CP: a message of \d+ bytes"),
        (b"\0\0\0\1\x21\0", r"does not speak I2CP: a malformed message"),
        (b"\0\0\0\3\x14\0\0\1", r"does not speak I2CP: its answer has no date"),
        (b"\0\0\0\7\x1e\6banned", r"closes the connection: 'banned'"),
    ],
    ids=["silence", "ssh", "http", "malformed", "no date", "disconnect"],
)
async def test_what_is_no_router_is_told_in_one_sentence(bench, autojump_clock, garbage, sentence):
    bench.router.garbage = garbage
    for attempt in (bench.keeper.check, lambda: bench.keeper.publish(bench.order())):
        with pytest.raises(PublisherError, match=rf"127\.0\.0\.1:7654 {sentence}"):
            await attempt()
    await bench.keeper.retire()
    assert bench.router.streams == []


async def test_connection_that_is_closed_at_once_is_told(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.garbage = b""
    async with trio.open_nursery() as nursery:

        async def kill() -> None:
            await wait_all_tasks_blocked()
            await bench.router.kill()

        nursery.start_soon(kill)
        with pytest.raises(PublisherError, match="has closed the connection"):
            await bench.keeper.check()


async def test_refused_connection_is_told_in_one_sentence() -> None:
    (port,) = free_ports(1)
    router = RouterAddress("HERE", partial(trio.open_tcp_stream, "127.0.0.1", port))
    with pytest.raises(PublisherError, match=r"^I2CP at HERE cannot be reached: Connection refused; is the"):
        async with open_connection(router, lambda: 0):
            pass


@pytest.mark.parametrize(
    ("off_ms", "words"), [(-86_400_000, "86400 s ahead of"), (10**12, "1000000000 s behind")]
)
async def test_clock_that_is_far_off_publishes_nothing(bench, autojump_clock, off_ms, words):
    bench.clock_off_ms = off_ms
    for attempt in (bench.keeper.check, lambda: bench.keeper.publish(bench.order())):
        with pytest.raises(PublisherError, match=f"is {words} this node's; correct the wrong one"):
            await attempt()
    assert bench.router.bodies(CREATE_SESSION) == []


async def test_routers_date_is_told_on_standby_and_in_a_session_until_it_is_gone(bench, autojump_clock):
    assert bench.keeper.status().router_date is None
    bench.router_off_ms = -70_000
    await bench.keeper.check()
    expected = ClockReading(date_ms=START_MS - 70_000, asked_ms=START_MS, answered_ms=START_MS)
    assert bench.keeper.status().router_date == expected
    await bench.keeper.publish(bench.order())
    bench.router_off_ms = 80_000
    await trio.sleep(60)
    date = bench.keeper.status().router_date
    assert bench.keeper.status().router_kind == "i2pd"
    assert date.date_ms - date.asked_ms == 80_000
    assert date.answered_ms >= date.asked_ms >= bench.now_ms() - 25_000
    bench.is_up = False
    await bench.router.kill()
    await trio.sleep(1)
    assert bench.keeper.status().router_date is None
    with pytest.raises(PublisherError):
        await bench.keeper.check()
    assert bench.keeper.status().router_date is None
    assert bench.keeper.status().router_kind is None


async def test_check_opens_no_session_and_leaves_nothing(bench: Bench, autojump_clock: MockClock) -> None:
    await bench.keeper.check()
    await wait_all_tasks_blocked()
    assert [type_ for _, type_, _ in bench.router.received] == [DATE, GET_BANDWIDTH_LIMITS, DATE]
    assert bench.router.streams == []
