"""A store, sans-I/O: takes the records of every partition in order, has them saved, and answers for them.

Commands and the time go in. What goes out is a batch to save, commands to send, and ranges to read and to
send. An ACK goes out only for what was reported saved; it is repeated for each record that comes again and
for each HEAD, because an ACK can get lost.
"""

from __future__ import annotations

from collections import OrderedDict
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
from garlicfarm_plugin_dafka.reading import EarlyRecords, Partition, PartitionReader
from garlicfarm_plugin_dafka.reading_core import ReadingCore
from garlicfarm_plugin_dafka.serving import FetchQueue, Range

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


class _Stored(PartitionReader):
    """``saved``: the records before it are on disk, from ``tail`` on. ``unsaved`` follow them."""

    __slots__ = ("is_new", "saved", "tail", "unsaved")

    def __init__(
        self, topic: str, partition: str, first: int, tail: int, early: EarlyRecords, *, is_new: bool
    ) -> None:
        super().__init__(topic, partition, first, early)
        self.has_begun = not is_new
        self.tail = tail
        self.saved = first
        self.unsaved: list[bytes] = []
        self.is_new = is_new


class StoreCore(ReadingCore[_Stored]):
    """Stores the partitions of all topics, or of ``topics``. ``saved``: what its files hold.

    ``fetches``: the ranges of saved records that peers wait for.
    """

    def __init__(
        self, address: str, saved: Iterable[SavedPartition] = (), topics: Iterable[str] | None = None
    ) -> None:
        super().__init__(address, topics)
        self.fetches = FetchQueue()
        self._by_topic: dict[str, list[_Stored]] = {}
        self._unsaved: dict[Partition, _Stored] = {}
        self._to_ack: dict[Partition, int] = {}
        # By consumer and topic: how many were answered.
        self._questions: OrderedDict[tuple[str, str], int] = OrderedDict()
        for each in saved:
            reader = self._add(each.topic, each.partition, each.next, each.tail, is_new=False)
            self._readers[reader.key] = reader

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

    def on_subscription(self, command: type[Command] | None, routing: str, is_on: bool) -> None:
        """A peer has subscribed to a command of ours, or no longer does: it hears us from now on."""
        if is_on and command is StoreHello and routing:
            self._commands.append(StoreHello(routing, self.address))

    def take_unsaved(self) -> list[Unsaved]:
        """All that is to be saved next, in one transaction; report it to `on_saved`. While it is being
        saved, nothing else may be taken."""
        found = []
        for (topic, partition), each in self._unsaved.items():
            found.append(Unsaved(topic, partition, each.next - len(each.unsaved), each.unsaved))
            each.unsaved = []
        self._unsaved.clear()
        return found

    def on_saved(self, batch: Iterable[Unsaved]) -> None:
        """The batch is on disk, and will be there after a power cut."""
        for saved in batch:
            key = saved.topic, saved.partition
            each = self._readers[key]
            if each.is_new:
                each.is_new = False
                each.tail = saved.first
            each.saved = saved.first + len(saved.contents)
            self._to_ack[key] = each.saved - 1

    def is_live(self, topic: str, partition: str, now: float) -> bool:
        """Whether the partition's producer was heard in the last minute, or the partition has something to
        save."""
        each = self._readers[topic, partition]
        return now - each.heard_at < _LIVE_S or each.saved != each.next

    def on_deleted(self, topic: str, partition: str, tail: int) -> None:
        """Retention has deleted the records before ``tail``. If these were all, the partition is
        forgotten."""
        each = self._readers[topic, partition]
        each.tail = tail
        if tail >= each.saved:
            self._by_topic[topic].remove(each)
            for places in (self._readers, self._behind, self._changed, self._to_ack):
                places.pop(each.key, None)

    def take_commands(self, now: float) -> list[Command]:
        commands = super().take_commands(now)
        commands += [Ack(partition, topic, last) for (topic, partition), last in self._to_ack.items()]
        self._to_ack.clear()
        return commands

    def on_served(self, turn: Range, first: int, upto: int) -> list[Command]:
        """The records from ``first`` up to ``upto``, excluding it, were sent for ``turn`` of `fetches`.
        Returns what is to be sent then."""
        partition = self._readers.get((turn.topic, turn.partition))
        if not self.fetches.advance(turn, first, upto) or partition is None or upto >= partition.saved:
            return []
        return [DirectHead(turn.requester, turn.topic, turn.partition, partition.saved - 1)]

    @property
    def has_answers(self) -> bool:
        """Whether `answers` has something to send, or `fetches` something to read."""
        return bool(self._questions or self.fetches)

    def answers(self) -> list[Command]:
        """Some of the heads that consumers wait for: to be called, with pauses, while `has_answers`."""
        found: list[Command] = []
        while self._questions and len(found) < _HEADS_AT_ONCE:
            (consumer, topic), answered = self._questions.popitem(last=False)
            partitions = self._by_topic.get(topic, [])[answered : answered + _HEADS_AT_ONCE]
            for each in partitions:
                if each.saved:
                    found.append(DirectHead(consumer, topic, each.partition, each.saved - 1))
            if len(partitions) == _HEADS_AT_ONCE:
                self._questions[consumer, topic] = answered + _HEADS_AT_ONCE
        return found

    def partitions(self) -> list[SavedPartition]:
        """What is saved."""
        return [SavedPartition(*key, each.tail, each.saved) for key, each in self._readers.items()]

    def _on_other(self, command: Command, now: float) -> None:
        if isinstance(command, Fetch):
            self._on_fetch(command)
        elif isinstance(command, GetHeads):
            self._ask(command.sender, command.topic)
        elif isinstance(command, ConsumerHello):
            if command.recipient == self.address:
                for topic in command.topics:
                    self._ask(command.sender, topic)
        else:
            self.dropped["not for a store"] += 1

    def _reader_of(self, command: Record | Head | DirectHead, now: float) -> _Stored | None:
        reader = super()._reader_of(command, now)
        if reader is not None:
            reader.heard_at = now
        return reader

    def _begin(self, command: Record | Head | DirectHead, now: float) -> _Stored:
        return self._add(command.topic, command.partition, 0, 0, is_new=True)

    def _add(self, topic: str, partition: str, first: int, tail: int, *, is_new: bool) -> _Stored:
        added = _Stored(topic, partition, first, tail, self._early, is_new=is_new)
        self._by_topic.setdefault(topic, []).append(added)
        return added

    def _on_records(self, reader: _Stored, first: int, contents: Sequence[bytes]) -> None:
        if contents:
            reader.unsaved += contents
            self._unsaved[reader.key] = reader

    def _on_known(self, reader: _Stored, sequence: int) -> None:
        if reader.saved:
            self._to_ack[reader.key] = min(sequence, reader.saved - 1)

    def _on_missing(self, reader: _Stored, first: int, end: int, now: float) -> None:
        if not reader.has_begun:
            self._on_records(reader, end, reader.skip(now))

    def _on_fetch(self, command: Fetch) -> None:
        partition = self._readers.get((command.topic, command.partition))
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
        elif not self.fetches.add(command, first, end):
            self.dropped["too many requests"] += 1

    def _ask(self, consumer: str, topic: str) -> None:
        if (consumer, topic) in self._questions:
            return
        if len(self._questions) >= _MAX_WAITING:
            self.dropped["too many requests"] += 1
        else:
            self._questions[consumer, topic] = 0
