"""Messages of peers to and from the session of a service."""

from __future__ import annotations

import struct

import msgspec
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from garlicfarm_plugin_i2cp.service_keeper import MAX_QUEUED
from garlicfarm_plugin_i2cp.service_session import DEFAULT, FAST
from tests.publishers.i2cp_router import CREATE_LEASE_SET_2, DESTROY_SESSION, SEND_MESSAGE, send
from tests.publishers.service_keeper.keeper_bench import SESSION, Bench, publishing


async def test_messages_pass_in_both_directions_in_order(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    for i in range(MAX_QUEUED):
        bench.keeper.send(b"peer", b"%d" % i)
    await send(bench.router.streams[0], 31, SESSION + struct.pack(">II", 1, 3) + b"SYN")
    await trio.sleep(1)
    assert bench.payloads == [b"SYN"]
    bodies = bench.router.bodies(SEND_MESSAGE)
    prefix = SESSION + b"peer"
    assert [body.removeprefix(prefix)[4:-4] for body in bodies] == [b"%d" % i for i in range(MAX_QUEUED)]


async def test_what_is_queued_is_sent_before_the_session_ends(bench, autojump_clock):
    await publishing(bench)
    await wait_all_tasks_blocked()
    bench.running.cancel()
    bench.keeper.send(b"peer", b"RESET")
    await wait_all_tasks_blocked()
    types = [type_ for _, type_, _ in bench.router.received]
    assert types[-2:] == [SEND_MESSAGE, DESTROY_SESSION]


async def test_message_without_a_session_is_dropped_and_counted(bench, autojump_clock):
    bench.is_up = False
    await trio.sleep(1)
    bench.keeper.send(b"peer", b"early")
    bench.is_up = True
    await publishing(bench)
    assert bench.keeper.dropped == {"no session": 1}
    assert bench.router.bodies(SEND_MESSAGE) == []


async def test_session_on_standby_sends_nothing_to_peers(bench: Bench, autojump_clock: MockClock) -> None:
    await bench.keeper.standby()
    bench.keeper.send(b"peer", b"late")
    await publishing(bench)
    await bench.keeper.retire(None)
    bench.keeper.send(b"peer", b"answer")
    await trio.sleep(200)
    bench.keeper.send(b"peer", b"later")
    await trio.sleep(1)
    assert [body[10:-4] for body in bench.router.bodies(SEND_MESSAGE)] == [b"answer", b"RESET"]
    assert bench.keeper.dropped == {"on standby": 2}


async def test_queue_is_bounded_and_tells_when_it_has_room(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    bench.rooms.clear()
    for _ in range(MAX_QUEUED + 1):
        bench.keeper.send(b"peer", bytes(2000))
    assert bench.keeper.room == 0
    assert bench.keeper.dropped == {"queue full": 1}
    await trio.sleep(1)
    assert len(bench.router.bodies(SEND_MESSAGE)) == MAX_QUEUED
    assert 0 < bench.rooms[0] < bench.rooms[-1] == MAX_QUEUED


async def test_queue_has_room_when_its_session_has_ended(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    for _ in range(MAX_QUEUED):
        bench.keeper.send(b"peer", bytes(2000))
    bench.rooms.clear()
    await bench.router.kill()
    await trio.sleep(0.5)
    assert bench.rooms[-1] == MAX_QUEUED


async def test_message_of_an_earlier_session_is_not_sent_in_the_next(bench, autojump_clock):
    """Its id may be another."""
    await publishing(bench)
    await bench.router.kill()
    bench.keeper.send(b"peer", b"late")
    await trio.sleep(2)
    assert bench.keeper.session is not None
    assert bench.router.bodies(SEND_MESSAGE) == []


async def test_requests_are_answered_while_much_is_queued(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    for _ in range(60):
        bench.keeper.send(b"peer", bytes(60_000))
    await bench.router.ask()
    await trio.sleep(1)
    types = [type_ for _, type_, _ in bench.router.received]
    answer = len(types) - 1 - types[::-1].index(CREATE_LEASE_SET_2)
    assert types[answer:].count(SEND_MESSAGE) > types[:answer].count(SEND_MESSAGE)


async def test_router_that_floods_with_requests_is_answered_without_queueing_answers(bench, autojump_clock):
    await publishing(bench)
    bench.router.is_silent = True
    for _ in range(1000):
        await bench.router.ask()
    await wait_all_tasks_blocked()
    session = bench.keeper.session
    assert session is not None
    assert len(session.take_messages()) < 10


async def test_router_that_asks_all_the_time_is_answered_a_few_times_a_second(bench, autojump_clock):
    await publishing(bench)
    before = len(bench.given)
    for _ in range(100):
        await trio.sleep(0.01)
        await bench.router.ask()
    await trio.sleep(1)
    assert 2 <= len(bench.given) - before <= 6


def test_plans_keep_their_headers_beyond_the_next_publication() -> None:
    """i2pd's floodfills drop an entry 51 s before its header expires."""
    for plan in (DEFAULT, FAST):
        assert plan.header_s >= 51 + plan.republish_s
    assert msgspec.structs.astuple(DEFAULT) == (90, 90, 25)
    assert msgspec.structs.astuple(FAST) == (50, 90, 30)
