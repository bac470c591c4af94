"""The session of a service when its node is elected, and while it publishes."""

from __future__ import annotations

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from trio.testing import MockClock, wait_all_tasks_blocked

from garlicfarm.errors import PublisherError
from garlicfarm.i2p.lease_set import X25519, EncryptionKey
from garlicfarm.publishing.documents import MAX_LEASE_SET_BYTES
from garlicfarm_plugin_i2cp.service_session import DEFAULT, FAST
from tests.publishers.service_keeper.keeper_bench import BUNDLE_S, START_MS, Bench, publishing


async def test_elected_session_is_reconfigured_and_published_at_once(bench, autojump_clock):
    await bench.keeper.standby()
    await trio.sleep(100)
    published = await bench.keeper.publish(bench.order(published_ms=bench.now_ms()))
    assert trio.current_time() == pytest.approx(100)
    (first,) = bench.published
    assert published.lease_set == first.data
    assert published.published_ms == first.lease_set.published_s * 1000 == START_MS + 100_000
    assert bench.configurations() == ["standby", "standby", "active"]
    session = bench.keeper.session
    assert session is not None
    assert session.is_publishing(trio.current_time())
    assert session.until_ms == START_MS + 190_000


async def test_key_of_the_lease_set_is_that_of_the_private_key_beside_it(bench, autojump_clock):
    first = await publishing(bench)
    private = X25519PrivateKey.from_private_bytes(first.private_key)
    (key,) = first.lease_set.encryption_keys
    assert key == EncryptionKey(X25519, private.public_key().public_bytes_raw())
    assert first.lease_set.offline == bench.keys.keys.offline


async def test_order_before_there_are_tunnels_is_carried_out_with_the_first_request(bench, autojump_clock):
    bench.router.asks_after_s = 13.0
    await bench.keeper.publish(bench.order())
    assert trio.current_time() == pytest.approx(13)
    assert [each.is_published for each in bench.given] == [True]
    assert bench.configurations() == ["standby", "standby", "active"]


@pytest.mark.parametrize(("plan", "interval_s", "lease_s"), [(DEFAULT, 25, 90), (FAST, 30, 50)])
async def test_it_is_published_again_at_each_interval_with_leases_cut_short(
    bench: Bench, autojump_clock: MockClock, interval_s: int, lease_s: int
) -> None:
    bench.router.tunnel_s = (600, 580, 100)
    await publishing(bench)
    await trio.sleep(4 * interval_s + 1)
    times = [each.at_s for each in bench.published]
    assert times == pytest.approx([interval_s * i for i in range(5)])
    for each in bench.published:
        begun_s = START_MS // 1000 + round(each.at_s)
        lease_set = each.lease_set
        assert (lease_set.published_s, lease_set.expires_s) == (begun_s, 90)
        last_s = START_MS // 1000 + 100
        expected = [begun_s + lease_s] * 2 + [min(begun_s + lease_s, last_s)] * (begun_s < last_s)
        assert [lease.end_s for lease in lease_set.leases] == expected
        assert {lease.gateway for lease in lease_set.leases} == {bytes(range(32))}


async def test_tunnels_that_have_all_ended_are_not_published(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.tunnel_s = (60,)
    await publishing(bench)
    await trio.sleep(300)
    assert [each.at_s for each in bench.published] == pytest.approx([0, 25, 50])
    await bench.router.ask()
    await trio.sleep(26)
    assert [each.at_s for each in bench.published[3:]] == pytest.approx([300, 325])


async def test_newer_order_is_published_no_sooner_than_20_s_after_the_last(bench, autojump_clock):
    await publishing(bench)
    await trio.sleep(5)
    published = await bench.keeper.publish(bench.order(published_ms=START_MS + 5000))
    assert trio.current_time() == pytest.approx(20)
    assert published.lease_set == bench.published[-1].data
    await trio.sleep(24)
    assert [each.at_s for each in bench.published] == pytest.approx([0, 20])


async def test_equal_orders_are_one(bench: Bench, autojump_clock: MockClock) -> None:
    await bench.keeper.standby()
    assert await bench.keeper.publish(bench.order()) == await bench.keeper.publish(bench.order())
    assert len(bench.published) == 1


@pytest.mark.parametrize("off_ms", [-300_000, 300_000])
async def test_lease_sets_are_dated_by_the_clock_of_the_router(bench, autojump_clock, off_ms):
    bench.clock_off_ms = off_ms
    first = await publishing(bench)
    assert first.lease_set.published_s == START_MS // 1000
    assert [lease.end_s for lease in first.lease_set.leases] == [START_MS // 1000 + 90]


async def test_date_of_the_newest_lease_set_is_known_also_after_the_router_has_died(bench, autojump_clock):
    assert bench.keeper.published_ms is None
    bench.router_off_ms = 300_000
    await publishing(bench)
    await trio.sleep(60)
    await bench.router.kill()
    await wait_all_tasks_blocked()
    newest = bench.published[-1].lease_set.published_s
    assert newest > START_MS // 1000 + 340
    assert bench.keeper.published_ms == newest * 1000


async def test_router_whose_clock_is_set_right_dates_later_lease_sets_by_it(bench, autojump_clock):
    await publishing(bench)
    bench.router_off_ms = 60_000
    await trio.sleep(26)
    first, second = bench.published
    assert second.lease_set.published_s - first.lease_set.published_s == 25 + 60
    assert second.lease_set.leases[0].end_s - first.lease_set.leases[0].end_s == 25 + 60


@pytest.mark.parametrize("off_ms", [700_000, -700_000, 2**63])
async def test_router_whose_clock_leaps_far_is_not_followed(bench, autojump_clock, off_ms):
    await publishing(bench)
    bench.router_off_ms = off_ms
    await trio.sleep(40)
    assert bench.keeper.session is None
    assert "correct the wrong one" in bench.keeper.problem
    assert len(bench.published) <= 2
    bench.router_off_ms = 0
    await trio.sleep(30)
    assert bench.keeper.is_ready


async def test_lease_set_has_the_tunnels_that_last_longest_and_fits_into_a_status(bench, autojump_clock):
    bench.router.tunnel_s = tuple(range(1, 17))
    first = await publishing(bench)
    ends = [lease.end_s - START_MS // 1000 for lease in first.lease_set.leases]
    assert ends == list(range(16, 6, -1))
    assert len(first.data) <= MAX_LEASE_SET_BYTES


async def test_publication_ends_with_its_last_lease(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.tunnel_s = (60,)
    await publishing(bench)
    session = bench.keeper.session
    assert session is not None
    assert session.is_publishing(59.0)
    assert not session.is_publishing(60.0)


async def test_no_lease_set_is_dated_before_its_order(bench: Bench, autojump_clock: MockClock) -> None:
    """The predecessor's clock may be ahead."""
    await bench.keeper.standby()
    published = await bench.keeper.publish(bench.order(published_ms=START_MS + 300_500))
    assert published.published_ms == START_MS + 301_000
    await trio.sleep(26)
    assert [each.lease_set.published_s - START_MS // 1000 for each in bench.published] == [301, 302]
    assert [each.lease_set.leases[0].end_s - START_MS // 1000 for each in bench.published] == [90, 115]


@pytest.mark.parametrize("after_ms", [10_000, 10_001, 10_500, 10_999])
async def test_successor_that_is_ordered_at_once_is_newer_than_what_was_published_again(
    bench: Bench, autojump_clock: MockClock, after_ms: int
) -> None:
    """Routers ask at any time, and a LeaseSet that is not newer is neither stored nor passed on."""
    await bench.keeper.standby()
    await bench.keeper.publish(bench.order(published_ms=START_MS + 1))
    await trio.sleep(after_ms / 1000)
    await bench.router.ask()
    await wait_all_tasks_blocked()
    ordered_ms = bench.router_ms() + 1
    date_s = -(-ordered_ms // 1000)
    assert bench.published[-1].lease_set.published_s < date_s
    await bench.keeper.retire(successor := bench.successor(later_s=date_s - bench.router_ms() // 1000))
    await wait_all_tasks_blocked()
    assert bench.given[-1].data == successor


async def test_keys_that_expire_end_the_session(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.tunnel_s = (2 * BUNDLE_S,)
    await publishing(bench)
    await trio.sleep(BUNDLE_S + 30)
    assert bench.keeper.session is None
    assert "have expired: make new bundles" in bench.keeper.problem
    for call in (bench.keeper.standby, lambda: bench.keeper.publish(bench.order(9))):
        with pytest.raises(PublisherError, match="have expired"):
            await call()
    assert bench.published[-1].at_s < BUNDLE_S
