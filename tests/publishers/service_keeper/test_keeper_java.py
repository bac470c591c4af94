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
    send,
)
from tests.publishers.java_router import JavaRouter
from tests.publishers.service_keeper.keeper_bench import SESSION, START_MS, Bench


async def publishing_at_java(bench: Bench) -> None:
    bench.router = JavaRouter(bench.router_ms)
    await bench.keeper.standby()
    await bench.keeper.publish(bench.order())


async def retire(bench: Bench) -> None:
    await bench.keeper.retire(None)
    await bench.keeper.retire(bench.successor())
    await wait_all_tasks_blocked()


async def test_successor_is_not_passed_on_and_clients_look_for_it(bench, autojump_clock):
    await publishing_at_java(bench)
    await trio.sleep(5)
    await bench.keeper.retire(None)
    assert len(bench.given) == 2
    await bench.keeper.retire(bench.successor())
    await wait_all_tasks_blocked()
    first, last = bench.given[-2:]
    assert (first.is_published, last.is_published) == (True, False)
    assert last.private_key == first.private_key
    assert last.lease_set.encryption_keys == first.lease_set.encryption_keys
    assert last.lease_set.published_s == first.lease_set.published_s + 1  # the successor's is not older
    assert last.lease_set.published_s + last.lease_set.expires_s == START_MS // 1000 + 5 + 8
    (lease,) = last.lease_set.leases
    assert lease.end_s == START_MS // 1000 + 91  # clients are given only what ends later than before
    types = [type_ for _, type_, _ in bench.router.received]
    assert types[-2:] == [CREATE_LEASE_SET_2, SEND_MESSAGE]  # the message takes it along
    await trio.sleep(140)
    assert len(bench.router.bodies(CREATE_LEASE_SET_2)) == 3
    assert (bench.handed_over_at, bench.abandoned_at) == ([], [])
    assert (bench.keeper.problem, bench.router.bodies(DESTROY_SESSION)) == ("", [])


async def test_last_lease_set_has_no_tunnel_that_ends_with_the_first_lease(bench, autojump_clock):
    bench.router = JavaRouter(bench.router_ms, tunnel_s=(40, 600))
    await bench.keeper.standby()
    await bench.keeper.publish(bench.order())
    await retire(bench)
    leases = bench.given[-1].lease_set.leases
    assert [(lease.tunnel, lease.end_s) for lease in leases] == [(8, START_MS // 1000 + 41)]


async def test_nothing_is_given_where_no_tunnel_lasts_longer(bench, autojump_clock):
    bench.router = JavaRouter(bench.router_ms, tunnel_s=(40,))
    await bench.keeper.standby()
    await bench.keeper.publish(bench.order())
    given = len(bench.given)
    await retire(bench)
    assert len(bench.given) == given


async def test_router_that_asks_a_retired_session_is_answered_until_no_client_uses_it(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing_at_java(bench)
    await retire(bench)
    last = bench.router.bodies(CREATE_LEASE_SET_2)[-1]
    key = last[-32:]
    for _ in range(7):
        await trio.sleep(20)
        await bench.router.ask()
        await wait_all_tasks_blocked()
        assert bench.router.bodies(CREATE_LEASE_SET_2)[-1] == last
    await trio.sleep(20)
    assert bench.router.bodies(DESTROY_SESSION) == [SESSION]  # not for a refusal
    assert len(bench.router.bodies(CREATE_SESSION)) == 2
    assert {body for body in bench.router.bodies(CREATE_LEASE_SET_2)[2:] if body[-32:] == key} == {last}


async def test_role_that_comes_back_is_published_with_a_newer_date(bench, autojump_clock):
    await publishing_at_java(bench)
    await retire(bench)
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


async def test_clients_at_the_router_of_a_standby_are_served(bench, autojump_clock):
    bench.router = JavaRouter(bench.router_ms)
    await bench.keeper.standby()
    (stream,) = bench.router.streams
    await send(stream, 31, SESSION + bytes(4) + b"\0\0\0\5hello")
    await wait_all_tasks_blocked()
    assert bench.payloads == [b"hello"]
    bench.keeper.send(b"client", b"answer")
    await wait_all_tasks_blocked()
    (sent,) = bench.router.bodies(SEND_MESSAGE)
    assert sent == SESSION + b"client" + b"\0\0\0\6answer" + bytes(4)
    assert bench.keeper.dropped == {}
    assert bench.published == []
