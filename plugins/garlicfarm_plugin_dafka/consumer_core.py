"""A consumer, sans-I/O: every record of some topics once, in the order of its partition.

Commands and the time go in; records come out in order, and commands to send: FETCHes, hellos. The caller may
lose any command that it sends or receives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from garlicfarm_plugin_dafka.codec import (
    Command,
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectTail,
    GetHeads,
    Head,
    Record,
    StoreHello,
    subscription_prefix,
)
from garlicfarm_plugin_dafka.reading import Partition, PartitionReader
from garlicfarm_plugin_dafka.reading_core import ReadingCore

Start = Literal["earliest", "latest"] | int
"""Where to begin a partition: its first record, the next one that is produced, or a sequence."""

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


class ConsumerCore(ReadingCore[PartitionReader]):
    """Follows all partitions of ``topics``.

    ``start``: where a partition begins that ``offsets`` does not name; ``offsets``: the next record of each
    partition that was read before.

    For a reader that is new to a topic, a partition whose first records are deleted begins with what is left.
    Other records that are lost are waited for, unless ``skip_lost``: those within a partition that was begun,
    and those of any partition of a topic that ``offsets`` names. Both are reported by `take_lost`.

    Where there are too many partitions, it forgets the one of which nobody has told for the longest time, if
    that is `SILENT_S`. If that returns, it is read again from the first record that is left. ``forgot``: the
    topics of which this has happened before. Each partition that begins in one is new to it.
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
        self.topics = tuple(sorted({*topics}))
        super().__init__(address, self.topics)
        self._start = start
        self._skip_lost = skip_lost
        self._read_before = {topic for topic, _ in offsets or ()}
        self._waiting: set[Partition] = set()  # for what is lost
        self._records: list[ReceivedRecord] = []
        self._lost: list[Lost] = []
        self._get_heads_at = 0.0
        self._began_at = math.inf
        self._forgot = {*forgot}
        self._forgotten: list[tuple[Partition, int]] = []
        wanted = frozenset(self.topics)
        for key, first in (offsets or {}).items():
            if key[0] in wanted:
                reader = self._readers[key] = PartitionReader(*key, first, self._early)
                reader.has_begun = True

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
        return {key: reader.next for key, reader in self._readers.items()}

    @property
    def forgot(self) -> frozenset[str]:
        """The topics of which a partition was forgotten."""
        return frozenset(self._forgot)

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
        self._began_at = min(self._began_at, now)
        if now >= self._get_heads_at:
            self._get_heads_at = now + _GET_HEADS_INTERVAL_S
            self._commands += [GetHeads(topic, self.address) for topic in self.topics]
        super().tick(now)

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

    def _on_other(self, command: Command, now: float) -> None:
        if isinstance(command, DirectHead):
            if command.recipient == self.address:
                self._on_head(command, now)
        elif isinstance(command, StoreHello):
            if command.recipient == self.address:
                self._say_hello(command.sender)
        else:
            self.dropped["not for a consumer"] += 1

    def _on_head(self, command: Head | DirectHead, now: float) -> PartitionReader | None:
        reader = super()._on_head(command, now)
        if reader is not None:
            reader.heard_at = now
            self._readers[reader.key] = self._readers.pop(
                reader.key
            )  # behind those that were silent for longer
        return reader

    def _begin(self, command: Record | Head | DirectHead, now: float) -> PartitionReader:
        if isinstance(self._start, int):
            first = self._start
        elif self._start == "earliest":
            first = 0
        else:
            first = command.sequence + (not isinstance(command, Record))
        reader = PartitionReader(command.topic, command.partition, first, self._early)
        reader.heard_at = now
        return reader

    def _forget(self, now: float) -> bool:
        """Forget the partition that was silent for the longest time, if there is one that may be."""
        for key, reader in self._readers.items():
            if now - max(reader.heard_at, self._began_at) < SILENT_S:
                return False
            if key not in self._behind:  # which keeps records, and waits for others
                break
        else:
            return False
        self._forgotten.append((key, self._readers.pop(key).next))
        self._forgot.add(key[0])
        self._changed.pop(key, None)
        return True

    def _on_records(self, reader: PartitionReader, first: int, contents: Sequence[bytes]) -> None:
        topic, partition = reader.key
        for sequence, content in enumerate(contents, first):
            self._records.append(ReceivedRecord(topic, partition, sequence, content))

    def _fetch(self, readers: Mapping[Partition, PartitionReader], now: float) -> None:
        super()._fetch(readers, now)
        self._waiting &= self._behind.keys()

    def _on_missing(self, reader: PartitionReader, first: int, end: int, now: float) -> None:
        is_begun = reader.has_begun or reader.topic in self._read_before - self._forgot
        is_skipped = self._skip_lost or not is_begun
        if is_skipped or reader.key not in self._waiting:
            self._lost.append(Lost(*reader.key, first, end, is_skipped))
        if is_skipped:
            self._on_records(reader, end, reader.skip(now))
        else:
            self._waiting.add(reader.key)

    def _say_hello(self, store: str) -> None:
        self._commands.append(ConsumerHello(store, self.address, self.topics))
