"""Nodes and towers on loopback: they find each other, and drop and count what is not theirs."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
import trio
import zmq

from garlicfarm.errors import ConfigError, LocalProtocolError
from garlicfarm.transport import Endpoint
from garlicfarm_plugin_dafka.codec import (
    Ack,
    Beacon,
    Fetch,
    Head,
    Record,
    decode_tower_beacon,
    encode,
    encode_node_beacon,
    encode_tower_beacon,
    subscription_prefix,
)
from garlicfarm_plugin_dafka.config import MeshConfig, TowerConfig
from garlicfarm_plugin_dafka.keys import create_key, read_key
from garlicfarm_plugin_dafka.mesh import Mesh, open_mesh
from garlicfarm_plugin_dafka.sockets import Context
from garlicfarm_plugin_dafka.tower import Tower, open_tower
from tests.dafka.meshes import ForeignSocket, ForeignTower, KeyRing, plain_tower, received, subscribed
from tests.running import wait_until

HOST = "127.0.0.1"
HELLO = subscription_prefix(Record, "hello")


def foreign(context: Context, kind: int) -> ForeignSocket:
    """A socket of a program that is none of ours."""
    return ForeignSocket(context, kind)


def config_of(*towers: Tower | ForeignTower) -> MeshConfig:
    return MeshConfig(towers=tuple(str(each.endpoint) for each in towers))


async def until_dropped(where: Mesh | Tower, reason: str, count: int = 1) -> None:
    """Wait until something was dropped for that reason, so often."""
    await wait_until(lambda: where.dropped[reason] >= count)


async def test_nodes_find_each_other_and_exchange_commands(tower):
    async with open_mesh(config_of(tower)) as one, open_mesh(config_of(tower)) as other:
        other.subscribe(HELLO)
        (subscription,) = await one.subscriptions()
        assert (subscription.command, subscription.routing, subscription.is_on) == (Record, "hello", True)
        sent = [Record("hello", one.address, sequence, b"x" * sequence) for sequence in range(100)]
        one.send_all(sent)
        batch = await received(other, len(sent))
        assert [command for command, _ in batch] == sent
        (sender,) = {sender for _, sender in batch}
        assert (sender.address, sender.endpoint, sender.name) == (one.address, str(one.endpoint), "")
        assert other.peers == (sender,)
        other.unsubscribe(HELLO)
        (subscription,) = await one.subscriptions()
        assert (subscription.command, subscription.is_on) == (Record, False)
        assert one.dropped == other.dropped == {}


async def test_a_subscription_holds_for_nodes_that_come_later(tower):
    async with open_mesh(config_of(tower)) as early:
        early.subscribe(HELLO)
        early.subscribe(subscription_prefix(Ack))
        early.unsubscribe(subscription_prefix(Ack))
        async with open_mesh(config_of(tower)) as late:
            assert [each.routing for each in await late.subscriptions()] == ["hello"]


async def test_a_node_that_ends_sends_what_is_queued_and_is_forgotten(tower):
    sent = [Record("hello", "p", sequence, bytes(1000)) for sequence in range(1000)]
    async with open_mesh(config_of(tower)) as reader:
        reader.subscribe(HELLO)
        async with open_mesh(config_of(tower)) as writer:
            await writer.subscriptions()
            writer.send_all(sent)
        assert [command for command, _ in await received(reader, len(sent))] == sent
        await wait_until(lambda: not reader.peers)


async def test_any_of_several_towers_will_do(tower):
    async with plain_tower() as second, open_mesh(config_of(tower, second)) as reader:
        reader.subscribe(HELLO)
        for each in (tower, second):
            async with open_mesh(config_of(each)) as writer:
                await writer.subscriptions()
                writer.send_all([Record("hello", "p", 0, b"")])
                await received(reader, 1)


async def test_without_any_tower_a_node_runs_and_finds_none():
    async with plain_tower() as gone:
        config = config_of(gone)
    async with open_mesh(config) as mesh:
        mesh.send_all([Record("hello", "p", 0, b"")])
        with trio.move_on_after(0.2):
            await mesh.receive()
        assert mesh.peers == ()


async def test_a_port_that_is_taken_is_refused_as_a_plain_error(tower):
    with pytest.raises(ConfigError, match="cannot listen at"):
        async with open_mesh(MeshConfig(listen=f"tcp://127.0.0.1:{tower.endpoint.port}")):
            pass
    with pytest.raises(ConfigError, match="cannot listen at"):
        async with open_tower(TowerConfig(listen=f"tcp://127.0.0.1:{tower.endpoint.port}")):
            pass


async def test_what_the_wire_cannot_carry_is_our_own_fault(tower):
    async with open_mesh(config_of(tower)) as mesh:
        with pytest.raises(LocalProtocolError):
            mesh.send_all([Record("", "p", 0, b"")])


async def test_what_is_no_command_is_dropped_and_counted(tower, context):
    liar, beacons = foreign(context, zmq.XPUB), foreign(context, zmq.XPUB)
    port = liar.bind(HOST, 0)
    beacons.connect(HOST, tower.endpoint.port)
    await beacons.receive()
    async with open_mesh(config_of(tower)) as mesh:
        mesh.subscribe(HELLO)
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                while True:
                    beacons.send(encode_node_beacon(Beacon("LIAR", "", port)))
                    await trio.sleep(0.1)

            nursery.start_soon(call)
            await liar.receive()
            another, wanted = Record("hello2", "p", 1, b""), Record("hello", "p", 2, b"")
            for frames in (
                [b"Mhello\0\x01"],
                [b"Mhello\0\x30\x01p\x05hello" + bytes(8), b""],
                [b"Mhello"] * 100,
                encode(another),
                [b"never subscribed to"],
                encode(wanted),
            ):
                liar.send(frames)
            batch = await received(mesh, 2)
            nursery.cancel_scope.cancel()
        # ZeroMQ matches prefixes: whoever wants only "hello" compares it.
        assert [command for command, _ in batch] == [another, wanted]
        assert mesh.dropped == {"wrong number of frames": 2, "unknown version": 1}


async def test_what_is_no_subscription_is_dropped_and_counted(tower, context):
    async with open_mesh(config_of(tower)) as mesh:
        peer = foreign(context, zmq.XSUB)
        peer.connect(HOST, mesh.endpoint.port)
        peer.send([b"a message to a publisher"])
        peer.send([b"\x01" + b"M" * 300])
        peer.send([b"\x01X"])
        seen = await mesh.subscriptions()
        assert [(each.command, each.routing) for each in seen] == [(None, "")]
        assert mesh.dropped == {"no subscription": 2}


async def test_who_no_longer_subscribes_is_sent_nothing(tower, context):
    async with open_mesh(config_of(tower)) as mesh:
        peer = foreign(context, zmq.XSUB)  # it passes on what arrives, unlike SUB
        peer.connect(HOST, mesh.endpoint.port)
        for frame in b"\x01Mhello", b"\0Mhello", b"\x01Hhello":
            peer.send([frame])
        await subscribed(mesh, Head)
        mesh.send_all([Record("hello", "p", 0, b""), Head("hello", "p", 0)])
        assert await peer.receive() == [encode(Head("hello", "p", 0))]


async def test_without_keys_only_nodes_on_loopback_are_connected_to(tower, context):
    liar = ForeignTower(context)
    async with open_mesh(config_of(tower, liar)) as mesh, open_mesh(config_of(tower)) as other:
        await wait_until(lambda: mesh.peers)
        await liar.wait_heard()
        key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
        liar.announce(Beacon("A", "10.0.0.1", 5000), Beacon("B", HOST, 5000, key))
        await until_dropped(mesh, "a node with a key or beyond loopback, and no keys here", 2)
        assert [peer.address for peer in mesh.peers] == [other.address]


async def test_a_node_and_a_tower_are_found_by_name(ring, monkeypatch):
    """Not by ZeroMQ, which would hold up all connections meanwhile."""
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    async with ring.tower() as tower, ring.mesh("consumer", tower) as consumer:
        consumer.subscribe(HELLO)
        by_name = Endpoint("tcp", "tower.test", tower.endpoint.port, tower.endpoint.params)
        config = MeshConfig(
            towers=(f"{by_name}&peer=tower",), advertise="tcp://node.test:0", **ring.files("producer")
        )
        async with open_mesh(config, ring.directory) as producer:
            await producer.subscriptions()
            assert [peer.endpoint for peer in consumer.peers] == [f"tcp://node.test:{producer.endpoint.port}"]


async def test_a_name_that_is_not_answered_for_holds_nobody_up(ring, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    async with ring.tower() as tower, ring.mesh("consumer", tower) as consumer:
        towers = (f"{tower.endpoint}&peer=tower", "tcp://silent.test:5556?peer=tower")
        slow = MeshConfig(towers=towers, advertise="tcp://silent.test:0", **ring.files("other"))
        try:
            async with open_mesh(slow, ring.directory):
                await wait_until(lambda: consumer.peers)
                async with ring.mesh("producer", tower) as producer:
                    consumer.subscribe(HELLO)
                    await subscribed(producer, "consumer")
            await wait_until(lambda: not consumer.peers)
        finally:
            SILENT.set()


SILENT = threading.Event()


GETADDRINFO: Any = socket.getaddrinfo


def looked_up(host: str, *more: object, **named: object) -> list[tuple[object, ...]]:
    """As `socket.getaddrinfo`: ``silent.test`` is looked up until `SILENT` is set."""
    if host == "silent.test":
        SILENT.wait(60)
        raise OSError("no answer")
    if not host.endswith(".test"):
        return GETADDRINFO(host, *more, **named)
    return [(socket.AF_INET6, 0, 0, "", ("fd00::1", 0, 0, 0)), (socket.AF_INET, 0, 0, "", (HOST, 0))]


class ForeignNode:
    """A foreign node at a tower: what it sends, and what the tower passes on."""

    def __init__(self, context: Context, tower: Tower) -> None:
        self.out, self.into = foreign(context, zmq.XPUB), foreign(context, zmq.SUB)
        self.into.set(zmq.SUBSCRIBE, b"")
        self.out.connect(HOST, tower.endpoint.port)
        self.into.connect(HOST, int(tower.endpoint.params["out"]))

    async def passed_on(self, *messages: list[bytes]) -> list[list[bytes]]:
        """What the tower passes on of these, and of a valid one after them."""
        assert await self.out.receive() == [[b"\x01B"]]
        passed = await self.into.receive()
        assert passed == [[b"W"]]
        for frames in messages:
            self.out.send(frames)
        self.out.send([b"B", b"LAST", b"", b"1"])
        while passed[-1] != [b"B", b"LAST", b"tcp://127.0.0.1:1"]:
            passed += await self.into.receive()
        return passed[1:-1]


async def test_a_tower_passes_on_beacons_and_nothing_else(tower, context):
    valid = encode_node_beacon(Beacon("A", "host.example", 5000))
    passed = await ForeignNode(context, tower).passed_on(
        [b"B"],
        [b"B", b"A", b"", b"70000"],
        [b"B", b"A", b"", b"notaport"],
        [b"B", b"A", b"0.0.0.0", b"1"],
        [b"B", b"A", b"", b"1", b"more"],
        [b"B"] * 1000,
        [b"Bogus"],
        valid,
        [*valid, b"curve=rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"],  # nothing proves it here
    )
    assert passed == [encode_tower_beacon(Beacon("A", "host.example", 5000))] * 2
    assert tower.dropped == {"invalid beacon": 3, "invalid port": 2, "invalid host": 1, "invalid key": 1}


@pytest.fixture
async def ring(tmp_path) -> KeyRing:
    return KeyRing(tmp_path, producer="producer", consumer="consumer", store="store", other="producer")


async def test_with_keys_nodes_exchange_what_their_roles_cover(ring):
    async with (
        ring.tower() as tower,
        ring.mesh("producer", tower) as producer,
        ring.mesh("consumer", tower) as consumer,
        ring.mesh("store", tower) as store,
    ):
        consumer.subscribe(HELLO)
        store.subscribe(HELLO)
        producer.subscribe(subscription_prefix(Ack, producer.address))
        await subscribed(producer, "consumer", "store")
        producer.send_all([Record("hello", producer.address, 0, b"x")])
        for each in consumer, store:
            ((command, sender),) = await received(each, 1)
            assert command == Record("hello", producer.address, 0, b"x")
            assert (sender.name, sender.address) == ("producer", producer.address)
        await subscribed(store, "producer")
        store.send_all([Ack(producer.address, "hello", 0)])
        ((command, sender),) = await received(producer, 1)
        assert (command, sender.name) == (Ack(producer.address, "hello", 0), "store")
        assert producer.dropped == consumer.dropped == store.dropped == {}


async def test_what_the_role_of_a_sender_does_not_cover_is_dropped(ring):
    async with (
        ring.tower() as tower,
        ring.mesh("producer", tower) as producer,
        ring.mesh("consumer", tower) as consumer,
    ):
        producer.subscribe(subscription_prefix(Ack, "p"))
        producer.subscribe(subscription_prefix(Fetch, "p"))
        await subscribed(consumer, Ack, Fetch)
        consumer.send_all([Ack("p", "hello", 9), Fetch("p", "hello", consumer.address, 1, 1)])
        assert [command for command, _ in await received(producer, 1)] == [
            Fetch("p", "hello", consumer.address, 1, 1)
        ]
        assert producer.dropped == {"not allowed to its sender": 1}


async def test_a_subscription_that_a_role_does_not_cover_gets_nothing(ring, tmp_path, context):
    async with ring.tower() as tower, ring.mesh("producer", tower) as producer:
        reader = foreign(context, zmq.SUB)
        reader.be_curve_client(read_key(tmp_path / "other.key"), read_key(tmp_path / "producer.key").public)
        for prefix in HELLO, b"", subscription_prefix(Fetch, "p"):  # a producer reads no records
            reader.set(zmq.SUBSCRIBE, prefix)
        reader.connect(HOST, producer.endpoint.port)
        await subscribed(producer, Fetch, "other")
        await until_dropped(producer, "a subscription not allowed to its sender", 2)
        fetch = Fetch("p", "hello", "s", 0, 1)
        producer.send_all([Record("hello", "p", 0, b"secret"), fetch])
        assert await reader.receive() == [encode(fetch)]


async def test_a_key_that_is_not_known_connects_to_nothing(ring, tmp_path, context):
    stranger = create_key(tmp_path / "stranger.key")
    server = read_key(tmp_path / "producer.key").public
    async with ring.tower() as tower, ring.mesh("producer", tower) as producer:
        for own in stranger, None:
            reader = foreign(context, zmq.SUB)
            reader.set(zmq.SUBSCRIBE, b"")
            if own is not None:
                reader.be_curve_client(own, server)
            reader.connect(HOST, producer.endpoint.port)
        await until_dropped(producer, "connection without a known key")
        sender = foreign(context, zmq.XPUB)
        sender.be_curve_client(stranger, read_key(tmp_path / "tower.key").public)
        sender.connect(HOST, tower.endpoint.port)
        await until_dropped(tower, "connection without a known key")
        with trio.move_on_after(0.2):
            assert await producer.subscriptions() == []


async def test_a_tower_passes_on_a_key_only_of_its_holder(ring, tmp_path, context):
    keys = {name: read_key(tmp_path / f"{name}.key") for name in ("tower", "producer", "store")}
    async with ring.tower() as tower:
        sender, listener = foreign(context, zmq.XPUB), foreign(context, zmq.SUB)
        listener.set(zmq.SUBSCRIBE, b"")
        for end, port in (sender, tower.endpoint.port), (listener, int(tower.endpoint.params["out"])):
            end.be_curve_client(keys["producer"], keys["tower"].public)
            end.connect(HOST, port)
        await sender.receive()
        assert await listener.receive() == [[b"W"]]
        for key in keys["store"].public, "", keys["producer"].public:
            sender.send(encode_node_beacon(Beacon("A", "", 5000, key)))
        (frames,) = await listener.receive()
        assert decode_tower_beacon(frames) == Beacon("A", HOST, 5000, keys["producer"].public)
        assert tower.dropped == {"a beacon without the key of its sender": 2}


async def test_a_tower_that_lies_about_a_key_connects_nobody(ring, tmp_path, context):
    """It names a place where another program listens that does not hold the key."""
    keys = {"producer": read_key(tmp_path / "producer.key")}
    stranger = create_key(tmp_path / "stranger.key")
    liar = foreign(context, zmq.XPUB)
    liar.set(zmq.CURVE_SERVER, 1)
    liar.set(zmq.CURVE_SECRETKEY, stranger.secret.encode())
    port = liar.bind(HOST, 0)
    lying = ForeignTower(context, read_key(tmp_path / "tower.key"))
    async with (
        ring.tower() as tower,
        ring.mesh("other", tower) as other,
        ring.mesh("consumer", tower, lying) as consumer,
    ):
        consumer.subscribe(HELLO)
        await other.subscriptions()  # the consumer has found it
        await lying.wait_heard()
        lying.announce(Beacon("A", HOST, port, stranger.public))
        await until_dropped(consumer, "a node without a known key")
        assert [peer.name for peer in consumer.peers] == ["other"]
        lying.announce(Beacon("A", HOST, port, keys["producer"].public))
        await wait_until(lambda: len(consumer.peers) == 2)
        with trio.move_on_after(0.5) as waited:
            await liar.receive()
        assert waited.cancelled_caught
