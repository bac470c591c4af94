"""The entrance: strangers cost little, and who is known cannot cost much."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
import zmq

from garlicfarm_plugin_dafka import hosts, mesh, relay
from garlicfarm_plugin_dafka.codec import Beacon, Record, subscription_prefix
from garlicfarm_plugin_dafka.config import MeshConfig
from garlicfarm_plugin_dafka.entrance import (
    MAX_GUESTS_OF_KEY,
    MAX_STRANGERS,
    MAX_STRANGERS_OF_HOST,
    MAX_SUBSCRIPTIONS,
    Entrance,
    Guests,
    Stage,
)
from garlicfarm_plugin_dafka.keys import read_key
from garlicfarm_plugin_dafka.mesh import MAX_NODES_OF_KEY, open_mesh
from garlicfarm_plugin_dafka.sockets import HANDSHAKE_S
from tests.dafka.meshes import ForeignSocket, ForeignTower, KeyRing
from tests.running import running, wait_until

HOST = "127.0.0.1"
HELLO = subscription_prefix(Record, "hello")


def host(number: int) -> str:
    return f"10.{number >> 8}.0.{number & 255}"


async def test_a_new_stranger_gets_the_place_of_the_oldest_who_has_said_nothing():
    dropped = Counter[str]()
    guests = Guests(dropped)
    first, *others = [guests.enter(host(number)) for number in range(MAX_STRANGERS)]
    first.stage = Stage.GREETED
    for number in range(MAX_STRANGERS):
        guests.enter(host(1000 + number))
        assert len(guests) == MAX_STRANGERS
    assert all(each.scope.cancel_called for each in others)
    assert not first.scope.cancel_called
    assert dropped == {"too many strangers": MAX_STRANGERS}


async def test_strangers_that_say_nothing_are_cut_before_one_that_greets():
    guests = Guests(Counter())
    first = guests.enter(HOST)
    first.stage = Stage.GREETED
    for _ in range(10 * MAX_STRANGERS_OF_HOST):
        guests.enter(HOST)
    assert len(guests) == MAX_STRANGERS_OF_HOST
    assert not first.scope.cancel_called


async def test_who_is_admitted_is_cut_for_no_stranger_and_a_key_has_so_many_places():
    dropped = Counter[str]()
    guests = Guests(dropped)
    known = [guests.enter(HOST) for _ in range(MAX_STRANGERS_OF_HOST)]
    assert all(guests.admit(str(each.number), "key") for each in known)
    while len(known) < MAX_GUESTS_OF_KEY:
        known.append(guests.enter(HOST))
        assert guests.admit(str(known[-1].number), "key")
    assert not guests.admit(str(guests.enter(HOST).number), "key")
    assert dropped == {"too many connections of one key": 1}
    for _ in range(100):
        guests.enter(HOST)
    assert not any(each.scope.cancel_called for each in known)


async def test_one_that_has_left_is_not_admitted():
    guests = Guests(Counter())
    guest = guests.enter(HOST)
    guests.leave(guest)
    assert not guests.admit(str(guest.number), "key")


@pytest.fixture
def ring(tmp_path) -> KeyRing:
    return KeyRing(tmp_path, producer="producer", consumer="consumer", other="producer")


@pytest.mark.slow
async def test_hundreds_of_silent_connections_take_no_descriptors_and_keep_no_known_peer_out(ring):
    async with ring.tower() as tower:
        command = [sys.executable, "-m", "tests.dafka.entrance_child", str(ring.directory)]
        command.append(f"{tower.endpoint}&peer=tower")
        with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child, ExitStack() as stack:
            assert child.stdin is not None
            assert child.stdout is not None
            next_line = partial(trio.to_thread.run_sync, child.stdout.readline)
            port = int(await next_line())
            for _ in range(600):
                stack.enter_context(socket.create_connection((HOST, port), timeout=60))
            async with ring.mesh("consumer", tower) as consumer:
                consumer.subscribe(HELLO)
                assert await next_line() == b"consumer\n"  # during the flood
                child.stdin.write(b"\n")
                child.stdin.flush()
                assert await next_line() == b"100\n"


async def test_a_peer_with_too_many_subscriptions_is_disconnected(tower, context):
    async with open_mesh(MeshConfig(towers=(str(tower.endpoint),))) as node:
        greedy = ForeignSocket(context, zmq.SUB, high_water_mark=100_000)
        for number in range(MAX_SUBSCRIPTIONS + 1):
            greedy.set(zmq.SUBSCRIBE, subscription_prefix(Record, f"topic{number}"))
        greedy.connect(HOST, node.endpoint.port)
        await wait_until(lambda: node.dropped["too many subscriptions"])
        greedy.close()


async def endless(stream: trio.SocketStream, sent: list[int]) -> None:
    """A node of ZeroMQ without keys, whose only message never ends."""
    await stream.send_all(b"\xff" + bytes(8) + b"\x7f\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32))
    await stream.send_all(b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04XPUB")
    heard = b""
    while b"READY" not in heard:
        heard += await stream.receive_some()
    frame = b"\x01\xff" + bytes(255)  # more follows
    try:
        while True:
            await stream.send_all(1000 * frame)
            sent.append(1000 * len(frame))
    except trio.BrokenResourceError:
        sent.append(0)


async def test_a_message_without_an_end_disconnects_its_sender(monkeypatch, context):
    monkeypatch.setattr(mesh, "MAX_UNTAKEN_BYTES", 1 << 20)
    monkeypatch.setattr(relay, "STUCK_S", 0.05)
    sent: list[int] = []
    tower = ForeignTower(context)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            partial(trio.serve_tcp, lambda stream: endless(stream, sent), 0, host=HOST)
        )
        port = listener.socket.getsockname()[1]
        async with open_mesh(MeshConfig(towers=(str(tower.endpoint),))) as node:
            node.subscribe(HELLO)
            await tower.wait_heard()
            tower.announce(Beacon("A", HOST, port, ""))
            await wait_until(lambda: sent and sent[-1] == 0)
            assert node.dropped["a message without an end"] >= 1
            assert sum(sent) < 32 << 20  # what the system's buffers hold comes on top
        nursery.cancel_scope.cancel()


@pytest.fixture
async def listener() -> AsyncIterator[socket.socket]:
    with socket.create_server((HOST, 0)) as listening:
        yield listening


async def test_invented_nodes_of_one_key_do_not_hide_those_of_others(ring, listener, context):
    liar = ForeignTower(context, read_key(ring.directory / "tower.key"))
    key = read_key(ring.directory / "other.key").public
    port = listener.getsockname()[1]
    async with ring.tower() as tower, ring.mesh("consumer", tower, liar) as consumer:
        await liar.wait_heard()
        liar.announce(*[Beacon(f"A{number}", HOST, port, key) for number in range(300)])
        await wait_until(lambda: consumer.dropped["too many nodes of one key"] >= 300 - MAX_NODES_OF_KEY)
        assert len(consumer.peers) == MAX_NODES_OF_KEY
        async with ring.mesh("producer", tower):
            await wait_until(lambda: "producer" in {peer.name for peer in consumer.peers})


@pytest.mark.parametrize("slow_connect_s", [None, 0.0, hosts.TIMEOUT_S - 0.1])
async def test_an_address_that_proves_no_key_is_tried_less_and_less(
    autojump_clock, monkeypatch, slow_connect_s
):
    """It refuses connections (None), or takes them, after some time."""
    tried: list[float] = []

    async def connect(*_: object) -> trio.abc.Stream:
        tried.append(trio.current_time())
        if slow_connect_s is None:
            raise OSError("refused")
        await trio.sleep(slow_connect_s)
        return trio.testing.memory_stream_pair()[0]

    @asynccontextmanager
    async def open_pipe():
        await trio.sleep(HANDSHAKE_S)  # so long ZeroMQ waits for it
        raise OSError("no handshake")
        yield

    unproved: Any = SimpleNamespace(open_pipe=open_pipe, has_messages=None)
    monkeypatch.setattr(trio, "open_tcp_stream", connect)
    with trio.move_on_after(600):
        limiter = trio.CapacityLimiter(1)
        await hosts.keep_connected(
            unproved, HOST, 1, limiter=limiter, allowance=relay.Allowance(1), on_stuck=lambda: None
        )
    assert len(tried) < 30
    assert tried[-1] - tried[-2] >= hosts.MAX_RETRY_S


async def test_subscriptions_of_a_key_count_together_and_a_prefix_counts_once(listener, context):
    guests = Guests(Counter())
    entrance = Entrance(context, guests, ForeignSocket(context, zmq.XPUB), listener)
    one, other = guests.enter("192.0.2.1"), guests.enter("192.0.2.2")
    for guest in (one, other):
        assert guests.admit(str(guest.number), "key")
    for _ in range(2):
        for number in range(MAX_SUBSCRIPTIONS):
            assert entrance.subscribed((one, other)[number % 2], b"%d" % number, is_on=True)
    for number in range(5):
        assert entrance.subscribed(one, b"never %d" % number, is_on=False)
    assert not entrance.subscribed(one, b"one more", is_on=True)
    assert guests.find(str(one.number)) is None
    assert entrance.subscribed(other, b"one more", is_on=True)  # those of the other have ended
