"""A store, sans-I/O: takes the records of every partition in order, has them saved, and answers for them.

Commands and the time go in. What goes out is a batch to save, commands to send, and ranges to read and to
send. An ACK goes out only for what was reported saved; it is repeated for each record that comes again and
for each HEAD, because an ACK can get lost.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from garlicfarm_plugin_dafka.codec import (
    Ack,
    Command,
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectTail,
    Fetch,
    GetHeads,
    Head,
    Record,
    StoreHello,
    subscription_prefix,
)
from garlicfarm_plugin_dafka.reading import LAST_SEQUENCE, EarlyRecords, Partition, PartitionReader
from garlicfarm_plugin_dafka.serving import FetchQueue, Range

__all__ = ["SavedPartition", "StoreCore", "Unsaved"]

MAX_PARTITIONS = 100_000
_MAX_WAITING = 4096
_HEADS_AT_ONCE = 1000
_LIVE_S = 60.0


class SavedPartition(msgspec.Struct, frozen=True):
    """What is saved of a partition: from ``tail`` up to ``next``, excluding it."""

    topic: str
    partition: str
    tail: int
    next: int


class Unsaved(msgspec.Struct, frozen=True):
    """Records of a partition to save, from ``first`` on, which is what follows the saved ones. A new
    partition may begin later than with 0."""

    topic: str
    partition: str
    first: int
    contents: list[bytes]


class _Stored:
    __slots__ = ("heard_at", "is_new", "key", "reader", "saved", "tail", "unsaved")

    def __init__(self, reader: PartitionReader, tail: int, *, is_new: bool) -> None:
        self.reader = reader
        self.key = reader.topic, reader.partition
        self.heard_at = -math.inf
        self.tail = tail
        self.saved = reader.next  # excluding it
        self.unsaved: list[bytes] = []
        self.is_new = is_new


class StoreCore:
    """Stores the partitions of all topics, or of ``topics``.

    ``address``: the store's. ``saved``: what its files hold.

    ``dropped`` counts commands that were not followed, by reason.
    """

    def __init__(
        self, address: str, saved: Iterable[SavedPartition] = (), topics: Iterable[str] | None = None
    ) -> None:
        self.address = address
        self.dropped: Counter[str] = Counter()
        self._topics = None if topics is None else frozenset(topics)
        self._early = EarlyRecords()
        self._partitions: dict[Partition, _Stored] = {}
        self._by_topic: dict[str, list[_Stored]] = {}
        self._unsaved: dict[Partition, _Stored] = {}
        self._behind: dict[Partition, _Stored] = {}
        self._changed: dict[Partition, _Stored] = {}
        self._to_ack: dict[Partition, int] = {}
        self._fetches = FetchQueue()
        # By consumer and topic: how many were answered.
        self._questions: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._commands: list[Command] = []
        for each in saved:
            self._add(each.topic, each.partition, each.next, each.tail, is_new=False)

    def subscriptions(self) -> Sequence[bytes]:
        """What to subscribe to."""
        topics = ("",) if self._topics is None else sorted(self._topics)
        return (
            *(subscription_prefix(kind, topic) for topic in topics for kind in (Record, Head, GetHeads)),
            subscription_prefix(Fetch),
            subscription_prefix(DirectRecord, self.address),
            subscription_prefix(DirectTail, self.address),
            subscription_prefix(ConsumerHello, self.address),
        )

    def receive(self, command: Command, now: float) -> None:
        """Take a command from a peer."""
        if isinstance(command, Record):
            self._on_record(command, now)
        elif isinstance(command, DirectRecord):
            self._on_direct_record(command, now)
        elif isinstance(command, Head):
            self._on_head(command, now)
        elif isinstance(command, DirectTail):
            self._on_tail(command, now)
        elif isinstance(command, Fetch):
            self._on_fetch(command)
        elif isinstance(command, GetHeads):
            self._ask(command.sender, command.topic)
        elif isinstance(command, ConsumerHello):
            if command.recipient == self.address:
                for topic in command.topics:
                    self._ask(command.sender, topic)
        else:
            self.dropped["not for a store"] += 1

    def on_subscription(self, command: type[Command] | None, routing: str, is_on: bool) -> None:
        """A peer has subscribed to a command of ours, or no longer does: it hears us from now on."""
        if is_on and command is StoreHello and routing:
            self._commands.append(StoreHello(routing, self.address))

    def tick(self, now: float) -> None:
        """The time; a few times a second."""
        self._fetch(self._behind, now)

    def take_unsaved(self) -> list[Unsaved]:
        """All that is to be saved next, in one transaction; report it to `on_saved`. While it is being
        saved, nothing else may be taken."""
        found = []
        for (topic, partition), each in self._unsaved.items():
            found.append(Unsaved(topic, partition, each.reader.next - len(each.unsaved), each.unsaved))
            each.unsaved = []
        self._unsaved.clear()
        return found

    def on_saved(self, batch: Iterable[Unsaved]) -> None:
        """The batch is on disk, and will be there after a power cut."""
        for saved in batch:
            key = saved.topic, saved.partition
            each = self._partitions[key]
            if each.is_new:
                each.is_new = False
                each.tail = saved.first
            each.saved = saved.first + len(saved.contents)
            self._to_ack[key] = each.saved - 1

    def is_live(self, topic: str, partition: str, now: float) -> bool:
        """Whether the partition's producer was heard in the last minute, or the partition has something to
        save."""
        each = self._partitions[topic, partition]
        return now - each.heard_at < _LIVE_S or each.saved != each.reader.next

    def on_deleted(self, topic: str, partition: str, tail: int) -> None:
        """Retention has deleted the records before ``tail``. If these were all, the partition is
        forgotten."""
        each = self._partitions[topic, partition]
        each.tail = tail
        if tail >= each.saved:
            del self._partitions[each.key]
            self._by_topic[topic].remove(each)
            self._behind.pop(each.key, None)
            self._changed.pop(each.key, None)
            self._to_ack.pop(each.key, None)

    def take_commands(self, now: float) -> list[Command]:
        """What is to be sent now."""
        if self._changed:
            changed, self._changed = self._changed, {}
            self._fetch(changed, now)
        for (topic, partition), sequence in self._to_ack.items():
            self._commands.append(Ack(partition, topic, sequence))
        self._to_ack.clear()
        commands, self._commands = self._commands, []
        return commands

    @property
    def fetches(self) -> FetchQueue:
        """The ranges of saved records that peers wait for."""
        return self._fetches

    def on_served(self, turn: Range, first: int, upto: int) -> list[Command]:
        """The records from ``first`` up to ``upto``, excluding it, were sent for ``turn`` of `fetches`.
        Returns what is to be sent then."""
        partition = self._partitions.get((turn.topic, turn.partition))
        if not self._fetches.advance(turn, first, upto) or partition is None or upto >= partition.saved:
            return []
        return [DirectHead(turn.requester, turn.topic, turn.partition, partition.saved - 1)]

    @property
    def has_questions(self) -> bool:
        """Whether `heads` has something to send."""
        return bool(self._questions)

    def heads(self) -> list[Command]:
        """Some of the heads that consumers wait for: to be called, with pauses, while `has_questions`."""
        found: list[Command] = []
        while self._questions and len(found) < _HEADS_AT_ONCE:
            (consumer, topic), answered = self._questions.popitem(last=False)
            partitions = self._by_topic.get(topic, [])[answered : answered + _HEADS_AT_ONCE]
            for each in partitions:
                if each.saved:
                    found.append(DirectHead(consumer, topic, each.reader.partition, each.saved - 1))
            if len(partitions) == _HEADS_AT_ONCE:
                self._questions[consumer, topic] = answered + _HEADS_AT_ONCE
        return found

    def partitions(self) -> list[SavedPartition]:
        """What is saved."""
        return [
            SavedPartition(each.reader.topic, each.reader.partition, each.tail, each.saved)
            for each in self._partitions.values()
        ]

    def stalled(self) -> list[PartitionReader]:
        """The partitions that lack records which several FETCHes have not brought."""
        return [each.reader for each in self._behind.values() if each.reader.is_stalled]

    def _on_record(self, command: Record, now: float) -> None:
        partition = self._heard_of(command, now)
        if partition is not None:
            self._take(partition, command, now)

    def _on_direct_record(self, command: DirectRecord, now: float) -> None:
        partition = self._partitions.get((command.topic, command.partition))
        if command.recipient != self.address or partition is None:
            self.dropped["answer to no FETCH"] += 1
        elif command.sequence > LAST_SEQUENCE:
            self.dropped["sequence out of range"] += 1
        else:
            if command.sequence > partition.reader.next:
                partition.reader.on_gap(now)
            self._take(partition, command, now)

    def _on_tail(self, command: DirectTail, now: float) -> None:
        partition = self._partitions.get((command.topic, command.partition))
        if command.recipient != self.address or partition is None:
            self.dropped["answer to no FETCH"] += 1
        elif command.sequence > LAST_SEQUENCE:
            self.dropped["sequence out of range"] += 1
        else:
            partition.reader.on_tail(command.sequence, now)

    def _on_head(self, command: Head, now: float) -> None:
        partition = self._heard_of(command, now)
        if partition is None:
            return
        if command.sequence >= partition.reader.next:
            partition.reader.on_head(command.sequence)
            self._set_behind(partition)
        elif partition.saved:
            self._to_ack[partition.key] = min(command.sequence, partition.saved - 1)

    def _heard_of(self, command: Record | Head, now: float) -> _Stored | None:
        key = command.topic, command.partition
        partition = self._partitions.get(key)
        if command.sequence > LAST_SEQUENCE:
            self.dropped["sequence out of range"] += 1
            return None
        if partition is None:
            if self._topics is not None and command.topic not in self._topics:
                self.dropped["another topic"] += 1
                return None
            if len(self._partitions) >= MAX_PARTITIONS:
                self.dropped["too many partitions"] += 1
                return None
            partition = self._add(*key, 0, 0, is_new=True)
        partition.heard_at = now
        return partition

    def _take(self, partition: _Stored, command: Record | DirectRecord, now: float) -> None:
        reader = partition.reader
        if command.sequence < reader.next:
            self.dropped["duplicate"] += 1
            if partition.saved:
                self._to_ack[partition.key] = partition.saved - 1
            return
        found = reader.take(command.sequence, command.content, now)
        if not found:
            if reader.contradicted:
                reader.contradicted = False
                self.dropped["a record that contradicts another"] += 1
            self._set_behind(partition)
            return
        if partition.key in self._behind:
            self._changed[partition.key] = partition
        partition.unsaved += found
        self._unsaved[partition.key] = partition

    def _set_behind(self, partition: _Stored) -> None:
        self._behind[partition.key] = self._changed[partition.key] = partition

    def _on_fetch(self, command: Fetch) -> None:
        partition = self._partitions.get((command.topic, command.partition))
        if partition is None:
            self.dropped["FETCH of what is not there"] += 1
            return
        first = command.sequence
        end = min(first + command.count, partition.saved)
        if first < partition.tail:
            self._commands.append(
                DirectTail(command.sender, command.topic, command.partition, partition.tail)
            )
        elif first >= end:
            self.dropped["FETCH of what is not there"] += 1
        elif not self._fetches.add(command, first, end):
            self.dropped["too many requests"] += 1

    def _ask(self, consumer: str, topic: str) -> None:
        if (consumer, topic) in self._questions:
            return
        if len(self._questions) >= _MAX_WAITING:
            self.dropped["too many requests"] += 1
        else:
            self._questions[consumer, topic] = 0

    def _add(self, topic: str, partition: str, first: int, tail: int, *, is_new: bool) -> _Stored:
        reader = PartitionReader(topic, partition, first, self._early)
        reader.has_begun = not is_new
        added = self._partitions[topic, partition] = _Stored(reader, tail, is_new=is_new)
        self._by_topic.setdefault(topic, []).append(added)
        return added

    def _fetch(self, partitions: dict[Partition, _Stored], now: float) -> None:
        for key, partition in list(partitions.items()):
            reader = partition.reader
            if reader.missing is not None and not reader.has_begun:
                found = reader.skip(now)
                if found:
                    partition.unsaved += found
                    self._unsaved[key] = partition
            if (asked := reader.fetch(now)) is not None:
                self._commands.append(Fetch(reader.partition, reader.topic, self.address, *asked))
            if reader.next > reader.head:
                self._behind.pop(key, None)
