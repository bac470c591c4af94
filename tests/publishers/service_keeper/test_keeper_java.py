"""The session of a service at Java I2P, which takes only LeaseSets with the keys of the session, and only
session configurations of now."""

from __future__ import annotations

import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

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
    await bench.keeper.retire(None)
    await trio.sleep(2)
    assert len(bench.given) == 2
    await bench.keeper.retire(bench.successor())
    await wait_all_tasks_blocked()
    first, last = bench.given[-2:]
    assert (first.is_published, last.is_published) == (True, False)
    assert last.private_key == first.private_key
    assert last.lease_set.encryption_keys == first.lease_set.encryption_keys
    assert last.lease_set.published_s == first.lease_set.published_s + 1  # before the successor's
    assert last.lease_set.published_s + last.lease_set.expires_s == START_MS // 1000 + 5 + 8
    (lease,) = last.lease_set.leases
    assert lease.end_s == START_MS // 1000 + 91  # Java I2P sends clients only what ends later than before
    types = [type_ for _, type_, _ in bench.router.received]
    assert types[-2:] == [CREATE_LEASE_SET_2, SEND_MESSAGE]  # at once
    assert len(bench.handed_over_at) == 1
    await trio.sleep(100)
    assert len(bench.given) == 3
    assert (bench.keeper.problem, bench.router.bodies(DESTROY_SESSION)) == ("", [])


async def test_last_lease_set_has_no_tunnel_that_ends_with_the_first_lease(bench, autojump_clock):
    bench.router = JavaRouter(bench.router_ms, tunnel_s=(40, 600))
    await bench.keeper.standby()
    await bench.keeper.publish(bench.order())
    await bench.keeper.retire(None)
    await bench.keeper.retire(bench.successor())
    await wait_all_tasks_blocked()
    leases = bench.given[-1].lease_set.leases
    assert [(lease.tunnel, lease.end_s) for lease in leases] == [(8, START_MS // 1000 + 41)]


async def test_nothing_is_given_where_no_tunnel_lasts_longer(bench, autojump_clock):
    bench.router = JavaRouter(bench.router_ms, tunnel_s=(40,))
    await bench.keeper.standby()
    await bench.keeper.publish(bench.order())
    given = len(bench.given)
    await bench.keeper.retire(None)
    await bench.keeper.retire(bench.successor())
    await wait_all_tasks_blocked()
    assert len(bench.given) == given
    assert len(bench.handed_over_at) == 1


async def test_router_that_asks_a_retired_session_is_answered_until_no_client_uses_it(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing_at_java(bench)
    await bench.keeper.retire(None)
    await bench.keeper.retire(bench.successor())
    await wait_all_tasks_blocked()
    last = bench.router.bodies(CREATE_LEASE_SET_2)[-1]
    for _ in range(7):
        await trio.sleep(20)
        await bench.router.ask()
        await wait_all_tasks_blocked()
        assert bench.router.bodies(CREATE_LEASE_SET_2)[-1] == last
    await trio.sleep(20)
    assert bench.router.bodies(DESTROY_SESSION) == [SESSION]  # not for a refusal
    assert len(bench.router.bodies(CREATE_SESSION)) == 2


async def test_role_that_comes_back_is_published_with_a_newer_date(bench, autojump_clock):
    await publishing_at_java(bench)
    await bench.keeper.retire(None)
    await bench.keeper.retire(bench.successor())
    await wait_all_tasks_blocked()
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
