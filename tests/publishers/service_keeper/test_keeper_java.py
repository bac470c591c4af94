"""The session of a service at Java I2P, which takes only LeaseSets with the keys of the session, and only
session configurations of now."""

from __future__ import annotations

import trio
import trio.lowlevel
from trio.testing import MockClock

from garlicfarm.i2p.session_configuration import decode_session_configuration, offline_options
from tests.publishers.i2cp_router import (
    CREATE_LEASE_SET_2,
    CREATE_SESSION,
    DESTROY_SESSION,
    SEND_MESSAGE,
)
from tests.publishers.java_router import JavaRouter
from tests.publishers.service_keeper.keeper_bench import SESSION, START_MS, Bench


async def publishing_at_java(bench: Bench) -> None:
    bench.router = JavaRouter(bench.router_ms)
    await bench.keeper.standby()
    await bench.keeper.publish(bench.order())


async def test_last_lease_set_is_the_sessions_own_and_lets_clients_look_for_the_next_one(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing_at_java(bench)
    await trio.sleep(3)
    sent = len(bench.router.bodies(SEND_MESSAGE))
    await bench.keeper.retire(None)
    first, last = bench.given[-2:]
    assert (first.is_published, last.is_published) == (True, False)
    assert last.private_key == first.private_key
    assert last.lease_set.encryption_keys == first.lease_set.encryption_keys
    assert last.lease_set.published_s == START_MS // 1000 + 3
    assert last.lease_set.expires_s == 10
    assert [lease.end_s for lease in last.lease_set.leases] == [START_MS // 1000 + 3 + 50]
    assert bench.keeper.published_ms == START_MS + 3000  # the successor's is dated later
    assert len(bench.router.bodies(SEND_MESSAGE)) == sent + 1  # clients get it at once


async def test_last_lease_set_is_newer_than_one_of_the_same_second(bench, autojump_clock):
    await publishing_at_java(bench)
    await bench.keeper.retire(None)
    first, last = bench.given[-2:]
    assert last.lease_set.published_s == first.lease_set.published_s + 1


async def test_successor_is_not_passed_on_and_clients_are_handed_over(bench, autojump_clock):
    await publishing_at_java(bench)
    await bench.keeper.retire(None)
    given = len(bench.router.bodies(CREATE_LEASE_SET_2))
    await bench.keeper.retire(bench.successor(later_s=5))
    assert len(bench.handed_over_at) == 1
    await trio.sleep(100)
    assert len(bench.router.bodies(CREATE_LEASE_SET_2)) == given
    assert (bench.keeper.problem, bench.router.bodies(DESTROY_SESSION)) == ("", [])


async def test_router_that_asks_a_retired_session_gets_leases_that_last_and_no_newer_date(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing_at_java(bench)
    await bench.keeper.retire(None)
    dates = {bench.given[-1].lease_set.published_s}
    for _ in range(7):
        await trio.sleep(20)
        await bench.router.ask()
        await trio.lowlevel.checkpoint()
        dates.add(bench.given[-1].lease_set.published_s)
        (lease,) = bench.given[-1].lease_set.leases
        assert lease.end_s == bench.router_ms() // 1000 + 50
    assert len(dates) == 1
    await trio.sleep(20)
    assert bench.router.bodies(DESTROY_SESSION) == [SESSION]  # not for a refusal
    assert len(bench.router.bodies(CREATE_SESSION)) == 2


async def test_role_that_comes_back_is_published_with_a_newer_date(bench, autojump_clock):
    await publishing_at_java(bench)
    await bench.keeper.retire(None)
    last = bench.given[-1].lease_set.published_s
    published = await bench.keeper.publish(bench.order(9))
    assert bench.published[-1].lease_set.published_s == last + 1 == published.published_ms // 1000


async def test_bundle_opens_sessions_long_after_it_was_made(bench, autojump_clock):
    await publishing_at_java(bench)
    await trio.sleep(600)
    await bench.router.kill()
    await trio.sleep(2)
    await bench.keeper.publish(bench.order(9))
    first, second = map(decode_session_configuration, bench.router.bodies(CREATE_SESSION))
    assert (first.date_ms, second.date_ms) == (START_MS, START_MS + 601_000)
    signed = decode_session_configuration(bench.keys.keys.configurations["standby"])
    assert first.options == second.options == {**signed.options, **offline_options(bench.keys.keys.offline)}


async def test_bundle_is_signed_anew_after_an_old_java_has_refused_it(bench, autojump_clock):
    bench.router = JavaRouter(bench.router_ms, limits=(), version=b"0.9.61")
    await bench.keeper.standby()
    assert bench.keeper.router_kind == "i2pd"
    await trio.sleep(600)
    await bench.router.kill()
    await trio.sleep(1.5)
    assert "clock skew" in bench.keeper.problem
    await bench.keeper.standby()
    assert bench.keeper.router_kind == "java"
