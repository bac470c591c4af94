"""Beacons on a simulated clock: one a second, at once for new nodes, silence forgotten after four seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from garlicfarm_plugin_dafka.beacons import MAX_NODES, Beacons
from garlicfarm_plugin_dafka.codec import Beacon, encode_node_beacon, encode_tower_beacon

OWN = Beacon("SELF", "127.0.0.1", 5000)
OTHER = Beacon("OTHER", "127.0.0.1", 6000)


class FakeSocket:
    """A tower's end is a channel; what is sent is kept with its time."""

    def __init__(self) -> None:
        self.sent: list[tuple[float, list[bytes]]] = []
        self.arrive, self._arrived = trio.open_memory_channel[list[bytes]](1000)

    def set(self, option: int, value: bytes) -> None:
        pass

    def send(self, frames: Sequence[bytes]) -> None:
        self.sent.append((trio.current_time(), list(frames)))

    async def receive(self) -> list[list[bytes]]:
        return [await self._arrived.receive()]


class Node:
    """Beacons with one tower, and what they have told."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.begun_s = trio.current_time()
        self.found: list[Beacon] = []
        self.lost: list[tuple[float, Beacon]] = []
        self.dropped: list[str] = []
        self.is_wanted = True
        self.out, self.tower = FakeSocket(), FakeSocket()
        self.beacons = Beacons(OWN, self._on_found, self._on_lost, self.dropped.append)
        sockets: Any = self.out, self.tower
        nursery.start_soon(self.beacons.send, sockets[0])
        nursery.start_soon(self.beacons.receive, sockets[1])
        nursery.start_soon(self.beacons.expire)

    def _on_found(self, beacon: Beacon) -> bool:
        self.found.append(beacon)
        return self.is_wanted

    def _on_lost(self, beacon: Beacon) -> None:
        self.lost.append((trio.current_time() - self.begun_s, beacon))

    @property
    def sent_s(self) -> list[float]:
        assert all(frames == encode_node_beacon(OWN) for _, frames in self.out.sent)
        return [time - self.begun_s for time, _ in self.out.sent]

    def tell(self, beacon: Beacon) -> None:
        self.tower.arrive.send_nowait(encode_tower_beacon(beacon))


async def test_a_beacon_is_sent_every_second(nursery, autojump_clock):
    node = Node(nursery)
    await trio.sleep(3.5)
    assert node.sent_s == [0, 1, 2, 3]


async def test_a_new_node_and_a_new_tower_are_told_at_once(nursery, autojump_clock):
    node = Node(nursery)
    await trio.sleep(0.25)
    node.tell(OTHER)
    await trio.sleep(0.25)
    node.tell(OTHER)  # known by now
    await trio.sleep(0.25)
    node.tower.arrive.send_nowait([b"W"])
    await trio.sleep(0.15)
    node.out.arrive.send_nowait([b"\x01B"])
    await trio.sleep(0.05)
    assert node.sent_s == [0, 0.25, 0.75, 0.9]
    assert node.found == [OTHER]


async def test_a_node_that_is_silent_for_four_seconds_is_lost(nursery, autojump_clock):
    node = Node(nursery)
    await trio.sleep(0.5)
    node.tell(OTHER)
    await trio.sleep(3)
    node.tell(OTHER)
    await trio.sleep(4)  # 7.5
    assert node.lost == []
    await trio.sleep(2)
    assert node.lost == [(8, OTHER)]
    node.tell(OTHER)
    await trio.sleep(1)
    assert node.found == [OTHER, OTHER]


async def test_one_of_two_towers_is_enough(nursery, autojump_clock):
    node = Node(nursery)
    second = FakeSocket()
    other: Any = second
    nursery.start_soon(node.beacons.receive, other)
    node.tell(OTHER)
    for _ in range(10):
        second.arrive.send_nowait(encode_tower_beacon(OTHER))
        await trio.sleep(1)
    assert (node.found, node.lost) == ([OTHER], [])


async def test_own_unwanted_and_malformed_beacons_are_nothing(nursery, autojump_clock):
    node = Node(nursery)
    node.is_wanted = False
    node.tell(Beacon("SELF", "127.0.0.1", 5000))
    node.tell(OTHER)
    node.tower.arrive.send_nowait([b"B", b"a", b"tcp://127.0.0.1:70000"])
    node.tower.arrive.send_nowait([b"B"])
    node.tower.arrive.send_nowait([b"W", b""])
    await trio.sleep(6.5)
    assert node.found == [OTHER]
    assert node.lost == []
    assert node.dropped == ["invalid port", "invalid beacon", "invalid beacon"]
    assert node.sent_s == [0, 1, 2, 3, 4, 5, 6]


async def test_a_tower_that_names_nodes_without_end_is_not_believed(nursery, autojump_clock):
    node = Node(nursery)
    for port in range(1, MAX_NODES + 11):
        node.tell(Beacon("OTHER", "127.0.0.1", port))
    await trio.sleep(0.5)
    assert len(node.found) == MAX_NODES
    assert node.dropped == ["too many nodes"] * 10
    await trio.sleep(6)
    assert len(node.lost) == MAX_NODES
