"""A service, initiators, and a network between them that loses, doubles, delays and changes the order.

The service is an application: what it gets and sends is chosen by a function of its stream.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Any

from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm_plugin_i2cp.streaming.limits import DEFAULT_LIMITS, Limits
from garlicfarm_plugin_i2cp.streaming.packet import decode_packet
from garlicfarm_plugin_i2cp.streaming.payload import decode_payload
from garlicfarm_plugin_i2cp.streaming.stream import Ended, Opened, Readable, Stream, Writable
from garlicfarm_plugin_i2cp.streaming.streams import Streams
from tests.publishers.i2cp_keys import long_term_keys
from tests.publishers.streaming.initiator import Initiator

STEP_S = 0.005
NOW_MS = 1_800_000_000_000


SERVICE = long_term_keys(200)
PEERS = [long_term_keys(number) for number in range(4)]


@dataclass(frozen=True, slots=True)
class NetworkFaults:
    """Probabilities, and times in s."""

    loss: float = 0.0
    double: float = 0.0
    delay_s: float = 0.02
    jitter_s: float = 0.0


NO_FAULTS = NetworkFaults()


class Served:
    """A stream of the service: it sends ``to_send``, keeps what it gets, and closes when both are at their
    end, or at once when it has sent all. ``reads``: bytes at a time; 0: it does not read."""

    def __init__(
        self, stream: Stream, to_send: bytes, *, reads: int = 1 << 16, closes_early: bool = False
    ) -> None:
        self.stream = stream
        self.received = bytearray()
        self.reads = reads
        self._to_send = memoryview(to_send)
        self._closes_early = closes_early

    def run(self) -> None:
        while self.reads and (data := self.stream.read(self.reads)):
            self.received += data
        if self.stream.ended is None:
            self._to_send = self._to_send[self.stream.write(bytes(self._to_send)) :]
            if not self._to_send and (self.stream.is_at_eof or self._closes_early):
                self.stream.close()


class Network:
    def __init__(
        self,
        seed: int,
        faults: NetworkFaults = NO_FAULTS,
        *,
        keys: DestinationKeys = SERVICE,
        limits: Limits = DEFAULT_LIMITS,
        serve: Callable[[Stream], Served] = lambda stream: Served(stream, b""),
    ) -> None:
        self.random = Random(seed)
        self.faults = faults
        self.now_s = 100.0
        self.keys = keys
        self.streams = Streams(keys, random=Random(seed + 1), limits=limits)
        self.initiators: list[Initiator] = []
        self.served: dict[bytes, Served] = {}
        self.by_stream: dict[Stream, Served] = {}
        self.ends: dict[Stream, str] = {}
        self.most_buffered = 0
        self._serve = serve
        self._under_way: list[tuple[float, int, Callable[[bytes], None], bytes]] = []
        self._numbers = count()

    def add(self, peer: DestinationKeys = PEERS[0], **options: Any) -> Initiator:
        stream = len(self.initiators) + 1
        initiator = Initiator(peer, self.keys.destination, stream=stream, now_ms=NOW_MS, **options)
        self.initiators.append(initiator)
        return initiator

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> None:
        """Let time pass until ``until``, in steps, or to the next time when something is to be done."""
        end_s = self.now_s + seconds
        while self.now_s < end_s and not (until is not None and until()):
            self.step()
            next_s = [self._under_way[0][0]] if self._under_way else []
            next_s += [wake_s for each in self.initiators if (wake_s := each.wake_s) is not None]
            if self.streams.wake_s is not None:
                next_s.append(self.streams.wake_s)
            self.now_s = min(max(self.now_s + STEP_S, min(next_s, default=end_s)), end_s)

    def step(self) -> None:
        while self._under_way and self._under_way[0][0] <= self.now_s:
            _, _, deliver, payload = heapq.heappop(self._under_way)
            deliver(payload)
        self.work()
        for initiator in self.initiators:
            for payload in initiator.take_payloads(self.now_s):
                self._carry(self.to_service, payload)

    def to_service(self, payload: bytes) -> None:
        self.streams.receive_payload(payload, self.now_s, NOW_MS)

    def work(self) -> None:
        """What the service does until nothing is left to do now."""
        while True:
            payloads = self.streams.take_payloads(self.now_s)
            for peer, payload in payloads:
                self._to_peer(peer, payload)
            events = self.streams.take_events()
            self.most_buffered = max(self.most_buffered, self.streams.buffered)
            for event in events:
                if isinstance(event, Opened):
                    self.by_stream[event.stream] = self._serve(event.stream)
                elif isinstance(event, Ended):
                    assert event.stream not in self.ends
                    self.ends[event.stream] = event.reason
                else:
                    assert isinstance(event, Readable | Writable)
                self.by_stream[event.stream].run()
            if not payloads and not events:
                return

    def _to_peer(self, peer: bytes, payload: bytes) -> None:
        to_stream = decode_packet(decode_payload(payload).data).to_stream
        for initiator in self.initiators:
            if (initiator.keys.destination, initiator.stream) == (peer, to_stream):
                self._carry(partial(self._to_initiator, initiator), payload)

    def _to_initiator(self, initiator: Initiator, payload: bytes) -> None:
        initiator.receive(payload, self.now_s)

    def _carry(self, deliver: Callable[[bytes], None], payload: bytes) -> None:
        times = 1 + (self.random.random() < self.faults.double)
        for _ in range(times):
            if self.random.random() >= self.faults.loss:
                at_s = self.now_s + self.faults.delay_s + self.random.random() * self.faults.jitter_s
                heapq.heappush(self._under_way, (at_s, next(self._numbers), deliver, payload))
