"""A service under attack: honest clients at several distances, attackers, and simulated time.

The service answers a line with a line, and closes. A router takes a number of its packets each second. Honest
clients send a SYN again as i2pd does. Where a packet is for a destination that nobody has, it is lost.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from itertools import count
from random import Random

from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm_plugin_i2cp.streaming.limits import DEFAULT_LIMITS, Limits
from garlicfarm_plugin_i2cp.streaming.packet import (
    FROM_INCLUDED,
    MAX_PACKET_SIZE,
    NO_ACK,
    SYNCHRONIZE,
    Packet,
    decode_packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.payload import decode_payload, encode_payload
from garlicfarm_plugin_i2cp.streaming.stream import Stream
from garlicfarm_plugin_i2cp.streaming.streams import Streams
from tests.publishers.i2cp_keys import long_term_keys
from tests.publishers.streaming.initiator import Initiator
from tests.publishers.streaming.network import NOW_MS, SERVICE

I2PD_RESENDS_S = (9.0, 18.0, 36.0)
SENT_PER_S = 400
TURN_S = 0.05
EACH_S = 0.04
REQUEST, ANSWER = b"ask\n", b"answer\n"
_NONCE = [int.from_bytes(sha256(SERVICE.destination).digest()[at : at + 4], "big") for at in range(0, 32, 4)]


class Siege:
    """``streams``, and what is under way to it and from it. ``receivers``: of a destination's packets, each
    with its distance, s one way."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.now_s = 1000.0
        self.streams = Streams(SERVICE, random=Random(1), limits=limits)
        self.receivers: dict[bytes, tuple[float, Callable[[Packet, bytes], None]]] = {}
        self._requests: dict[Stream, bytearray] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + seconds, next(self._numbers), act))

    def to_service(self, delay_s: float, payload: bytes) -> None:
        self.after(delay_s, lambda: self.streams.receive_payload(payload, self.now_s, NOW_MS))

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += TURN_S
            while self._events and self._events[0][0] <= self.now_s:
                heapq.heappop(self._events)[2]()
            self._serve()
            for peer, payload in self.streams.take_payloads(self.now_s, int(SENT_PER_S * TURN_S)):
                if peer in self.receivers:
                    delay_s, receive = self.receivers[peer]
                    packet = decode_packet(decode_payload(payload).data)
                    self.after(delay_s, lambda r=receive, a=packet, b=payload: r(a, b))  # type: ignore[misc]

    def _serve(self) -> None:
        while events := self.streams.take_events():
            for stream in {event.stream: None for event in events}:
                request = self._requests.setdefault(stream, bytearray())
                request += stream.read(1 << 16)
                if stream.ended is not None:
                    del self._requests[stream]
                elif request == REQUEST:
                    stream.write(ANSWER)
                    stream.close()
                elif stream.is_at_eof:
                    stream.close()


class Visitor:
    """An honest client: one request after another, each in a stream of its own, every second one only when it
    has the answer to its SYN. ``waited_s``: how long each request has waited for its answer; inf: it has
    none."""

    _ids = count(1 << 20)

    def __init__(self, siege: Siege, keys: DestinationKeys, round_trip_s: float) -> None:
        self._siege = siege
        self._keys = keys
        self._delay_s = round_trip_s / 2
        self._requests: dict[int, Initiator] = {}
        self._asked_s: dict[int, float] = {}
        self.waited_s: dict[int, float] = {}
        siege.receivers[keys.destination] = (self._delay_s, self._receive)

    def ask(self) -> None:
        id_ = next(self._ids)
        request = self._requests[id_] = Initiator(
            self._keys,
            SERVICE.destination,
            stream=id_,
            to_send=REQUEST,
            closes=False,
            now_ms=NOW_MS,
            window=1 + id_ % 2,
            resend_s=I2PD_RESENDS_S,
        )
        self._asked_s[id_], self.waited_s[id_] = self._siege.now_s, math.inf
        self._go_on(request)

    def _receive(self, packet: Packet, payload: bytes) -> None:
        request = self._requests[packet.to_stream]
        if not request.failure:
            request.receive(payload, self._siege.now_s)
            if request.received == ANSWER:
                waited_s = self._siege.now_s - self._asked_s[packet.to_stream]
                self.waited_s[packet.to_stream] = min(waited_s, self.waited_s[packet.to_stream])
            self._go_on(request)

    def _go_on(self, request: Initiator) -> None:
        for payload in request.take_payloads(self._siege.now_s):
            self._siege.to_service(self._delay_s, payload)
        if request.wake_s is not None and request.received != ANSWER:
            self._siege.after(request.wake_s - self._siege.now_s, lambda: self._go_on(request))


class Attacker:
    """Opens streams from destinations of its own, and keeps them. ``open``: how many it believes to have."""

    def __init__(self, siege: Siege, streams_each: int, data: bytes = b"") -> None:
        self._siege = siege
        self._streams_each = streams_each
        self._data = data
        self.open: list[tuple[int, int]] = []

    def begin(self, destinations: int) -> None:
        for number in range(destinations):
            keys = long_term_keys(3000 + number)
            self._siege.receivers[keys.destination] = (0.25, self._receive)
            for id_ in range(1, self._streams_each + 1):
                after_s = EACH_S * (number * self._streams_each + id_)
                self._siege.after(after_s, partial(self._siege.to_service, 0.25, syn_of(keys, id_)))

    def _receive(self, packet: Packet, payload: bytes) -> None:
        if packet.flags & SYNCHRONIZE:
            self.open.append((packet.from_stream, packet.to_stream))
            ack = Packet(packet.from_stream, packet.to_stream, 1 if self._data else 0, 0, data=self._data)
            self._siege.to_service(0.25, encoded(ack))


def encoded(packet: Packet, keys: DestinationKeys | None = None) -> bytes:
    return encode_payload(encode_packet(packet, keys.sign if keys else None), 0, 80)


def syn_of(
    keys: DestinationKeys,
    id_: int,
    *,
    signed_by: DestinationKeys | None = None,
    data: bytes = b"",
    service: bytes = SERVICE.destination,
) -> bytes:
    flags = SYNCHRONIZE | FROM_INCLUDED | MAX_PACKET_SIZE | NO_ACK
    digest = sha256(service).digest()
    words = [int.from_bytes(digest[at : at + 4], "big") for at in range(0, 32, 4)]
    packet = Packet(0, id_, 0, 0, words, flags, destination=keys.destination, max_data=1812, data=data)
    return encoded(packet, signed_by or keys)


def storm(siege: Siege, per_s: float, payloads: Iterator[bytes], seconds: float) -> None:
    """Evenly, one after another."""
    for number in range(int(per_s * seconds)):
        siege.after(
            number / per_s, lambda: siege.streams.receive_payload(next(payloads), siege.now_s, NOW_MS)
        )
