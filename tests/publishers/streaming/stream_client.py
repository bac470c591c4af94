"""Clients of a `StreamServer` over a network that loses nothing, and keeps the order."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
import trio.testing

from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.transport import Endpoint
from garlicfarm_plugin_i2cp.streaming.http_requests import HttpRules
from garlicfarm_plugin_i2cp.streaming.limits import DEFAULT_LIMITS, Limits
from garlicfarm_plugin_i2cp.streaming.packet import (
    CHOKE_MS,
    CLOSE,
    DELAY_REQUESTED,
    FROM_INCLUDED,
    MAX_PACKET_SIZE,
    NO_ACK,
    RESET,
    SYNCHRONIZE,
    Packet,
    decode_packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.payload import decode_payload, encode_payload
from garlicfarm_plugin_i2cp.streaming.server import StreamServer
from garlicfarm_plugin_i2cp.streaming.targets import Targets
from tests.publishers.i2cp_keys import long_term_keys
from tests.running import background

DATA_BYTES = 1000
WINDOW = 16
ROOM = 1024
NOW_MS = 1_780_000_000_000
SERVICE = long_term_keys(2)


class Client:
    """The side that opens a stream. ``received``, ``is_closed``, ``is_reset``: what the server has sent."""

    def __init__(self, network: Network, keys: DestinationKeys, id_: int) -> None:
        self._network = network
        self._keys = keys
        self.id = id_
        self.port = 0
        """That it asks for."""
        self._to = 0
        self._next = 1
        self._acknowledged = -1
        self.is_choked = False
        self._through = -1
        self._changed = trio.Event()
        self.is_deaf = False
        """It acknowledges nothing."""
        self.sent = 0
        self.received = b""
        self.is_closed = False
        self.is_reset = False

    def open(self, data: bytes = b"", flags: int = 0) -> None:
        flags |= SYNCHRONIZE | FROM_INCLUDED | MAX_PACKET_SIZE | NO_ACK
        syn = Packet(0, self.id, 0, 0, flags=flags, data=data)
        syn.destination, syn.max_data = self._keys.destination, DATA_BYTES
        self._send(syn)

    async def send(self, data: bytes) -> None:
        """Send all of it, as the server's ACKs allow."""
        for at in range(0, len(data), DATA_BYTES):
            await self.until(lambda: self._acknowledged >= self._next - WINDOW and not self.is_choked)
            self.send_next(data[at : at + DATA_BYTES])
            self.sent += len(data[at : at + DATA_BYTES])

    def close(self) -> None:
        self.send_next(flags=CLOSE)

    def reset(self) -> None:
        self.send_next(flags=RESET)

    async def until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            await self._changed.wait()

    def receive(self, packet: Packet) -> None:
        if packet.flags & RESET:
            self.is_reset = True
        self._acknowledged = max(self._acknowledged, packet.ack_through)
        if packet.delay_ms is not None:  # as Java I2P, which goes on only where a lesser delay is requested
            self.is_choked = packet.delay_ms >= CHOKE_MS
        if packet.flags & SYNCHRONIZE:
            self._to = packet.from_stream
        if packet.sequence == self._through + 1 and (packet.sequence or packet.flags & SYNCHRONIZE):
            self._through += 1
            self.received += packet.data
            self.is_closed = bool(packet.flags & CLOSE)
            if not self.is_deaf:
                self.acknowledge()
        self._changed.set()
        self._changed = trio.Event()

    def acknowledge(self) -> None:
        self._send(Packet(self._to, self.id, 0, self._through))

    def send_next(self, data: bytes = b"", flags: int = 0) -> None:
        sequence, self._next = self._next, self._next + 1
        if self._through < 0:
            flags |= NO_ACK
        packet = Packet(self._to, self.id, sequence, max(self._through, 0), flags=flags, data=data)
        if sequence == 1:  # as Java I2P, now and then
            packet.flags |= DELAY_REQUESTED
            packet.delay_ms = 0
        self._send(packet)

    def _send(self, packet: Packet) -> None:
        sign = self._keys.sign if packet.flags & (SYNCHRONIZE | CLOSE | RESET) else None
        self._network.to_server(encode_payload(encode_packet(packet, sign), 0, self.port))


class Network:
    """``server``: that of the destination `SERVICE`. ``room``: how many payloads it may have on the way."""

    def __init__(self, room: int = ROOM) -> None:
        self._clients: dict[int, Client] = {}
        self._sent: deque[tuple[bytes, bytes]] = deque()
        self._received: deque[bytes] = deque()
        self._wake = trio.Event()
        self._most = room
        self.most_sent = 0
        """That were on the way to clients at once."""
        self.server: StreamServer

    def client(self, keys: DestinationKeys | None = None) -> Client:
        id_ = len(self._clients) + 1
        client = self._clients[id_] = Client(self, keys or long_term_keys(3), id_)
        return client

    def open(self, data: bytes = b"", flags: int = 0) -> Client:
        """A client whose SYN is sent, with this in it."""
        client = self.client()
        client.open(data, flags)
        return client

    def send(self, peer: bytes, payload: bytes) -> None:
        """What the server sends."""
        self._sent.append((peer, payload))
        self.most_sent = max(self.most_sent, len(self._sent))
        self._wake.set()

    @property
    def room(self) -> int:
        return self._most - len(self._sent)

    def to_server(self, payload: bytes) -> None:
        self._received.append(payload)
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake = trio.Event()
            self.deliver()  # which may lead to more
            await self._wake.wait()

    def deliver(self) -> None:
        """All that is on the way now."""
        while self._received:
            self.server.on_payload(self._received.popleft())
        while self._sent:
            _, payload = self._sent.popleft()
            packet = decode_packet(decode_payload(payload).data)
            self._clients[packet.to_stream].receive(packet)
            if len(self._sent) == self._most - 1:
                self.server.on_room()


def targets(*ports: int, **options: Any) -> Targets:
    """Those at ports of loopback."""
    return Targets([Endpoint("tcp", "127.0.0.1", port) for port in ports], **options)


@asynccontextmanager
async def stream_network(
    *to: int,
    ports: Mapping[int, int] | None = None,
    http: HttpRules | None = None,
    limits: Limits = DEFAULT_LIMITS,
    drain_s: float = 0.0,
    room: int = ROOM,
) -> AsyncIterator[Network]:
    """A server that runs, for a service at these ports of loopback, and those at I2CP's ``ports``."""
    network = Network(room)
    network.server = StreamServer(
        SERVICE,
        targets(*to) if to else None,
        ports={port: targets(at) for port, at in (ports or {}).items()},
        http=http,
        limits=limits,
        random=random.Random(7),
        drain_s=drain_s,
        now_ms=lambda: NOW_MS,
    )
    async with background(network.run, partial(network.server.run, network)):
        await trio.testing.wait_all_tasks_blocked()
        yield network
