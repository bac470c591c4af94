"""Producers, stores and consumers on a network that loses, repeats and delays: in memory, on a clock of its
own.

Every message goes through the codec and the subscriptions, so that a prefix matches what it matches in
ZeroMQ.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from random import Random

from garlicfarm_plugin_dafka.codec import Command, DirectRecord, decode, encode, split_prefix
from garlicfarm_plugin_dafka.consumer_core import ConsumerCore
from garlicfarm_plugin_dafka.producer_core import ProducerCore
from garlicfarm_plugin_dafka.reading import Partition
from garlicfarm_plugin_dafka.serving import PAGE_RECORDS
from garlicfarm_plugin_dafka.store_core import SavedPartition, StoreCore

TICK_S = 0.25


class Network:
    """``loss`` and ``repeats``: with which probability a message is lost, or comes twice; ``delay_s``: how
    long it takes at most. Messages between two nodes arrive in order unless ``reorders``."""

    def __init__(self, rnd: Random) -> None:
        self.rnd = rnd
        self.now = 1000.0
        self.loss = self.repeats = 0.0
        self.delay_s = 0.01
        self.reorders = False
        self.sent: defaultdict[type[Command], int] = defaultdict(int)
        self._nodes: list[Node] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._last: dict[tuple[Node, Node], float] = {}

    def at(self, when: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, act))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = end

    def join(self, node: Node) -> None:
        """Connect it to all others: each hears what the others subscribe to."""
        others = [other for other in self._nodes if other is not node]
        self._nodes = [*others, node]
        for other in others:
            for one, two in ((node, other), (other, node)):
                for prefix in two.prefixes:
                    one.on_subscription(prefix)
        self.at(self.now, node.tick)

    def leave(self, node: Node) -> None:
        self._nodes.remove(node)

    def is_there(self, node: Node) -> bool:
        return node in self._nodes

    def send(self, sender: Node, command: Command) -> None:
        frames = encode(command)
        self.sent[type(command)] += 1
        for node in self._nodes:
            if node is not sender and any(frames[0].startswith(prefix) for prefix in node.prefixes):
                times = 0 if self.rnd.random() < self.loss else 1
                times += self.rnd.random() < self.repeats
                for _ in range(times):
                    when = self.now + self.rnd.random() * self.delay_s
                    if not self.reorders:
                        when = self._last[sender, node] = max(when, self._last.get((sender, node), 0.0))
                    self.at(when, partial(self._deliver, node, frames))

    def _deliver(self, node: Node, frames: list[bytes]) -> None:
        if node in self._nodes:
            node.receive(decode(frames))


class Node:
    core: ProducerCore | ConsumerCore | StoreCore

    def __init__(self, network: Network) -> None:
        self.network = network
        self.prefixes = tuple(self.core.subscriptions())
        network.join(self)

    def on_subscription(self, prefix: bytes) -> None:
        if not isinstance(self.core, ProducerCore):
            self.core.on_subscription(*split_prefix(prefix), True)

    def tick(self) -> None:
        if self.network.is_there(self):
            self.on_tick()
            self.pump()
            self.network.at(self.network.now + TICK_S, self.tick)

    def receive(self, command: Command) -> None:
        if isinstance(self.core, ProducerCore):
            self.core.receive(command)
        else:
            self.core.receive(command, self.network.now)
        self.pump()

    def on_tick(self) -> None:
        for command in self.core.tick(self.network.now) or ():
            self.network.send(self, command)

    def pump(self) -> None:
        raise NotImplementedError


class Producer(Node):
    core: ProducerCore

    def __init__(
        self, network: Network, topic: str, partition: str, acks: int = 1, limit_records: int = 1 << 20
    ) -> None:
        self.core = ProducerCore(
            topic, partition, acks=acks, limit_records=limit_records, limit_bytes=1 << 30
        )
        super().__init__(network)

    def produce(self, number: int) -> None:
        for _ in range(number):
            content = content_of(self.core.topic, self.core.partition, self.core.next_sequence)
            self.network.send(self, self.core.append(content, self.network.now))

    def pump(self) -> None:
        while self.core.has_answers:
            for command in self.core.answers():
                self.network.send(self, command)


class Store(Node):
    """``disk``: tail and contents of each partition, which survive when it leaves the network."""

    core: StoreCore

    def __init__(
        self, network: Network, address: str, disk: dict[Partition, tuple[int, list[bytes]]]
    ) -> None:
        self.disk = disk
        saved = [SavedPartition(*key, tail, tail + len(kept)) for key, (tail, kept) in disk.items()]
        self.core = StoreCore(address, saved)
        super().__init__(network)

    def pump(self) -> None:
        batch = self.core.take_unsaved()
        for unsaved in batch:
            tail, kept = self.disk.setdefault((unsaved.topic, unsaved.partition), (unsaved.first, []))
            assert unsaved.first == tail + len(kept)
            kept += unsaved.contents
        self.core.on_saved(batch)
        for command in self.core.take_commands(self.network.now):
            self.network.send(self, command)
        for command in self.core.answers():
            self.network.send(self, command)
        while (turn := self.core.fetches.turn()) is not None:
            tail, kept = self.disk[turn.topic, turn.partition]
            first = turn.first
            end = min(turn.end, first + PAGE_RECORDS)
            for sequence in range(first, end):
                content = kept[sequence - tail]
                self.network.send(
                    self, DirectRecord(turn.requester, turn.topic, turn.partition, sequence, content)
                )
            for command in self.core.on_served(turn, first, end):
                self.network.send(self, command)

    def delete(self, key: Partition, tail: int) -> None:
        """As retention does."""
        old, kept = self.disk[key]
        self.disk[key] = tail, kept[tail - old :]
        self.core.on_deleted(*key, tail)


class Consumer(Node):
    """``read``: the sequences of each partition, in the order in which they were delivered."""

    core: ConsumerCore

    def __init__(self, network: Network, address: str, topics: list[str], **options) -> None:
        self.core = ConsumerCore(address, topics, **options)
        self.read: defaultdict[Partition, list[int]] = defaultdict(list)
        super().__init__(network)

    def pump(self) -> None:
        for record in self.core.take_records():
            assert record.content == content_of(record.topic, record.partition, record.sequence)
            self.read[record.topic, record.partition].append(record.sequence)
        for command in self.core.take_commands(self.network.now):
            self.network.send(self, command)


def content_of(topic: str, partition: str, sequence: int) -> bytes:
    return f"{topic} {partition} {sequence}".encode()
