"""A consumer, sans-I/O: every record of some topics once, in the order of its partition.

Commands and the time go in; records come out in order, and commands to send: FETCHes, hellos. The caller may
lose any command that it sends or receives.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from garlicfarm_plugin_dafka.codec import (
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

__all__ = ["ConsumerCore", "Lost", "ReceivedRecord", "Start"]

Start = Literal["earliest", "latest"] | int
"""Where to begin a partition: its first record, the next one that is produced, or a sequence."""

MAX_PARTITIONS = 100_000
SILENT_S = 3600.0
"""A partition of which nobody has told for so long may be forgotten for a new one."""
_GET_HEADS_INTERVAL_S = 30.0


class ReceivedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record, and where it is from: `(topic, partition, sequence)` names it for ever."""

    topic: str
    partition: str
    sequence: int
    content: bytes


class Lost(msgspec.Struct, frozen=True, gc=False):
    """Records of a partition that nothing offers any more, from ``first`` up to ``end``, excluding it.

    ``is_skipped``: the consumer has gone on behind them. Otherwise it waits for them.
    """

    topic: str
    partition: str
    first: int
    end: int
    is_skipped: bool


class ConsumerCore:
    """Follows all partitions of ``topics``.

    ``address``: what answers are sent to. ``start``: where a partition begins that ``offsets`` does not name;
    ``offsets``: the next record of each partition that was read before.

    For a reader that is new to a topic, a partition whose first records are deleted begins with what is left.
    Other records that are lost are waited for, unless ``skip_lost``: those within a partition that was begun,
    and those of any partition of a topic that ``offsets`` names. Both are reported by `take_lost`.

    It follows `MAX_PARTITIONS`. For a further one it forgets the one of which nobody has told for the longest
    time, if that is `SILENT_S`. If that returns, it is read again from the first record that is left.
    ``forgot``: the topics of which this has happened before. Each partition that begins in one is new to it.

    ``dropped`` counts commands that were not followed, by reason.
    """

    def __init__(
        self,
        address: str,
        topics: Iterable[str],
        start: Start = "earliest",
        offsets: Mapping[Partition, int] | None = None,
        *,
        skip_lost: bool = False,
        forgot: Iterable[str] = (),
    ) -> None:
        self.address = address
        self.topics = tuple(sorted({*topics}))
        self.dropped: Counter[str] = Counter()
        self._wanted = frozenset(self.topics)
        self._start = start
        self._early = EarlyRecords()
        self._readers: dict[Partition, PartitionReader] = {}
        self._skip_lost = skip_lost
        self._read_before = {topic for topic, _ in offsets or ()}
        self._behind: dict[Partition, PartitionReader] = {}
        self._changed: dict[Partition, PartitionReader] = {}  # since the last look at what to fetch
        self._waiting: set[Partition] = set()  # for what is lost
        self._skipped: dict[Partition, int] = {}  # where what was lost and skipped ended
        self._records: list[ReceivedRecord] = []
        self._lost: list[Lost] = []
        self._commands: list[Command] = []
        self._get_heads_at = 0.0
        self._began_at = math.inf
        self._heard_at: dict[Partition, float] = {}  # the longest silent first
        self._forgot = {*forgot}
        self._forgotten: list[tuple[Partition, int]] = []
        for (topic, partition), first in (offsets or {}).items():
            if topic in self._wanted:
                self._add(topic, partition, first, -math.inf).has_begun = True

    def subscriptions(self) -> Sequence[bytes]:
        """What to subscribe to."""
        return (
            *(subscription_prefix(kind, topic) for topic in self.topics for kind in (Record, Head)),
            *(
                subscription_prefix(kind, self.address)
                for kind in (DirectRecord, DirectHead, DirectTail, StoreHello)
            ),
        )

    def offsets(self) -> dict[Partition, int]:
        """The next record of each partition, behind all that `take_records` has returned or will; those that
        were silent for the longest time first."""
        return {key: self._readers[key].next for key in self._heard_at}

    @property
    def forgot(self) -> frozenset[str]:
        """The topics of which a partition was forgotten."""
        return frozenset(self._forgot)

    def heads(self) -> dict[Partition, int]:
        """The last record that is known to exist of each partition, -1 if none is."""
        return {key: reader.head for key, reader in self._readers.items()}

    def ends_in_loss(self, key: Partition) -> bool:
        """Whether the last records of a partition, as far as is known, were lost and are skipped."""
        return self._skipped.get(key) == (reader := self._readers[key]).next and reader.next > reader.head

    def receive(self, command: Command, now: float) -> None:
        """Take a command from a peer."""
        if isinstance(command, Record):
            reader = self._reader_of(command, command.sequence, now)
            if reader is not None:
                self._take(reader, command, now)
        elif isinstance(command, DirectRecord):
            self._on_direct_record(command, now)
        elif isinstance(command, Head):
            self._on_head(command, now)
        elif isinstance(command, DirectHead):
            if command.recipient == self.address:
                self._on_head(command, now)
        elif isinstance(command, DirectTail):
            self._on_tail(command, now)
        elif isinstance(command, StoreHello):
            if command.recipient == self.address:
                self._say_hello(command.sender)
        else:
            self.dropped["not for a consumer"] += 1

    def on_subscription(self, command: type[Command] | None, routing: str, is_on: bool) -> None:
        """A peer has subscribed to a command of ours, or no longer does: it hears us from now on."""
        if not is_on:
            return
        if command is ConsumerHello and routing:
            self._say_hello(routing)
        elif command is GetHeads:
            self._commands += [
                GetHeads(topic, self.address) for topic in self.topics if topic.startswith(routing)
            ]

    def tick(self, now: float) -> None:
        """The time; a few times a second."""
        self._began_at = min(self._began_at, now)
        if now >= self._get_heads_at:
            self._get_heads_at = now + _GET_HEADS_INTERVAL_S
            self._commands += [GetHeads(topic, self.address) for topic in self.topics]
        self._fetch(self._behind, now)

    def take_records(self) -> list[ReceivedRecord]:
        """The records that are there by now; each is returned once."""
        records, self._records = self._records, []
        return records

    def take_lost(self) -> list[Lost]:
        """What has turned out to be lost; each is returned once."""
        lost, self._lost = self._lost, []
        return lost

    def take_forgotten(self) -> list[tuple[Partition, int]]:
        """Partitions that were forgotten, and the next record of each; each is returned once."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def stalled(self) -> list[PartitionReader]:
        """The partitions that lack records which several FETCHes have not brought."""
        return [reader for reader in self._behind.values() if reader.is_stalled]

    def take_commands(self, now: float) -> list[Command]:
        """What is to be sent now."""
        if self._changed:
            changed, self._changed = self._changed, {}
            self._fetch(changed, now)
        commands, self._commands = self._commands, []
        return commands

    def _on_direct_record(self, command: DirectRecord, now: float) -> None:
        reader = self._readers.get((command.topic, command.partition))
        if command.recipient != self.address or reader is None:
            self.dropped["answer to no FETCH"] += 1
        elif command.sequence > LAST_SEQUENCE:
            self.dropped["sequence out of range"] += 1
        else:
            if command.sequence > reader.next:
                reader.on_gap(now)
            self._take(reader, command, now)

    def _on_tail(self, command: DirectTail, now: float) -> None:
        reader = self._readers.get((command.topic, command.partition))
        if command.recipient != self.address or reader is None:
            self.dropped["answer to no FETCH"] += 1
        elif command.sequence > LAST_SEQUENCE:
            self.dropped["sequence out of range"] += 1
        else:
            reader.on_tail(command.sequence, now)

    def _on_head(self, command: Head | DirectHead, now: float) -> None:
        reader = self._reader_of(command, command.sequence + 1, now)
        if reader is None:
            return
        key = reader.topic, reader.partition
        del self._heard_at[key]
        self._heard_at[key] = now
        if command.sequence >= reader.next:
            reader.on_head(command.sequence)
            self._set_behind(reader)

    def _reader_of(
        self, command: Record | Head | DirectHead, latest: int, now: float
    ) -> PartitionReader | None:
        key = command.topic, command.partition
        if command.sequence > LAST_SEQUENCE:
            self.dropped["sequence out of range"] += 1
            return None
        reader = self._readers.get(key)
        if reader is not None:
            return reader
        if command.topic not in self._wanted:
            self.dropped["another topic"] += 1
            return None
        if len(self._readers) >= MAX_PARTITIONS and not self._forget(now):
            self.dropped["too many partitions"] += 1
            return None
        first = (
            {"earliest": 0, "latest": latest}[self._start] if isinstance(self._start, str) else self._start
        )
        return self._add(*key, first, now)

    def _add(self, topic: str, partition: str, first: int, now: float) -> PartitionReader:
        reader = self._readers[topic, partition] = PartitionReader(topic, partition, first, self._early)
        self._heard_at[topic, partition] = now
        return reader

    def _forget(self, now: float) -> bool:
        """Forget the partition that was silent for the longest time, if there is one that may be."""
        for key, heard_at in self._heard_at.items():
            if now - max(heard_at, self._began_at) < SILENT_S:
                return False
            if key not in self._behind:  # which keeps records, and waits for others
                break
        else:
            return False
        self._forgotten.append((key, self._readers.pop(key).next))
        self._forgot.add(key[0])
        del self._heard_at[key]
        self._changed.pop(key, None)
        self._skipped.pop(key, None)
        return True

    def _take(self, reader: PartitionReader, command: Record | DirectRecord, now: float) -> None:
        first = reader.next
        if command.sequence < first:
            self.dropped["duplicate"] += 1
            return
        found = reader.take(command.sequence, command.content, now)
        if not found:
            if reader.contradicted:
                reader.contradicted = False
                self.dropped["a record that contradicts another"] += 1
            self._set_behind(reader)
            return
        key = reader.topic, reader.partition
        if key in self._behind:
            self._changed[key] = reader
        self._deliver(key, first, found)

    def _set_behind(self, reader: PartitionReader) -> None:
        key = reader.topic, reader.partition
        self._behind[key] = self._changed[key] = reader

    def _fetch(self, readers: Mapping[Partition, PartitionReader], now: float) -> None:
        for key, reader in list(readers.items()):
            if reader.missing is not None:
                self._on_missing(key, reader, *reader.missing, now)
            if (asked := reader.fetch(now)) is not None:
                self._commands.append(Fetch(reader.partition, reader.topic, self.address, *asked))
            if reader.next > reader.head:
                self._behind.pop(key, None)
                self._waiting.discard(key)

    def _on_missing(self, key: Partition, reader: PartitionReader, first: int, end: int, now: float) -> None:
        is_begun = reader.has_begun or reader.topic in self._read_before - self._forgot
        is_skipped = self._skip_lost or not is_begun
        if is_skipped or key not in self._waiting:
            self._lost.append(Lost(*key, first, end, is_skipped))
        if is_skipped:
            self._skipped[key] = end
            self._deliver(key, end, reader.skip(now))
        else:
            self._waiting.add(key)

    def _deliver(self, key: Partition, first: int, contents: Sequence[bytes]) -> None:
        topic, partition = key
        for sequence, content in enumerate(contents, first):
            self._records.append(ReceivedRecord(topic, partition, sequence, content))

    def _say_hello(self, store: str) -> None:
        self._commands.append(ConsumerHello(store, self.address, self.topics))
