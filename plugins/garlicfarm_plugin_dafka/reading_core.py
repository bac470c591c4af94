"""What a consumer and a store have in common, sans-I/O: they read partitions of others, each in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from garlicfarm_plugin_dafka.codec import Command, DirectHead, DirectRecord, DirectTail, Fetch, Head, Record
from garlicfarm_plugin_dafka.reading import LAST_SEQUENCE, EarlyRecords, Partition, PartitionReader

MAX_PARTITIONS = 100_000
_R = TypeVar("_R", bound=PartitionReader)


class ReadingCore(ABC, Generic[_R]):
    """Reads the partitions of ``topics`` (None: of all) that peers tell of. ``address``: what answers are
    sent to. ``dropped`` counts commands that were not followed, by reason.
    """

    def __init__(self, address: str, topics: Iterable[str] | None) -> None:
        self.address = address
        self.dropped: Counter[str] = Counter()
        self._topics = None if topics is None else frozenset(topics)
        self._early = EarlyRecords()
        self._readers: dict[Partition, _R] = {}
        self._behind: dict[Partition, _R] = {}
        self._changed: dict[Partition, _R] = {}  # since the last look at what to fetch
        self._commands: list[Command] = []

    def receive(self, command: Command, now: float) -> None:
        """Take a command from a peer."""
        if isinstance(command, Record):
            reader = self._reader_of(command, now)
            if reader is not None:
                self._take(reader, command, now)
        elif isinstance(command, DirectRecord | DirectTail):
            self._on_answer(command, now)
        elif isinstance(command, Head):
            self._on_head(command, now)
        else:
            self._on_other(command, now)

    def tick(self, now: float) -> None:
        """The time; a few times a second."""
        self._fetch(self._behind, now)

    def take_commands(self, now: float) -> list[Command]:
        """What is to be sent now."""
        if self._changed:
            changed, self._changed = self._changed, {}
            self._fetch(changed, now)
        commands, self._commands = self._commands, []
        return commands

    def stalled(self) -> list[PartitionReader]:
        """The partitions that lack records which several FETCHes have not brought."""
        return [reader for reader in self._behind.values() if reader.is_stalled]

    # ------------------------------------------------------------------ what consumers and stores differ in

    @abstractmethod
    def _on_other(self, command: Command, now: float) -> None:
        """None of the commands that carry records, tails or heads of all peers."""

    @abstractmethod
    def _begin(self, command: Record | Head | DirectHead, now: float) -> _R:
        """A reader of a partition that is new here."""

    def _forget(self, now: float) -> bool:
        """Make room for another partition; False: there is none."""
        return False

    @abstractmethod
    def _on_records(self, reader: _R, first: int, contents: Sequence[bytes]) -> None:
        """The records of a partition from ``first`` on are there."""

    def _on_known(self, reader: _R, sequence: int) -> None:
        """A peer has sent a record again, or told that it has the records up to ``sequence``: all were taken
        before."""

    @abstractmethod
    def _on_missing(self, reader: _R, first: int, end: int, now: float) -> None:
        """The records from ``first`` up to ``end``, excluding it, are gone."""

    # ------------------------------------------------------------------ what they share

    def _reader_of(self, command: Record | Head | DirectHead, now: float) -> _R | None:
        key = command.topic, command.partition
        reader = self._readers.get(key)
        if command.sequence > LAST_SEQUENCE:
            self.dropped["sequence out of range"] += 1
            return None
        if reader is None:
            if self._topics is not None and command.topic not in self._topics:
                self.dropped["another topic"] += 1
                return None
            if len(self._readers) >= MAX_PARTITIONS and not self._forget(now):
                self.dropped["too many partitions"] += 1
                return None
            reader = self._readers[key] = self._begin(command, now)
        return reader

    def _on_answer(self, command: DirectRecord | DirectTail, now: float) -> None:
        reader = self._readers.get((command.topic, command.partition))
        if command.recipient != self.address or reader is None:
            self.dropped["answer to no FETCH"] += 1
        elif command.sequence > LAST_SEQUENCE:
            self.dropped["sequence out of range"] += 1
        elif isinstance(command, DirectTail):
            reader.on_tail(command.sequence, now)
        else:
            if command.sequence > reader.next:
                reader.on_gap(now)
            self._take(reader, command, now)

    def _on_head(self, command: Head | DirectHead, now: float) -> _R | None:
        """Returns the reader of its partition, if that is followed."""
        reader = self._reader_of(command, now)
        if reader is not None:
            if command.sequence >= reader.next:
                reader.on_head(command.sequence)
                self._set_behind(reader)
            else:
                self._on_known(reader, command.sequence)
        return reader

    def _take(self, reader: _R, command: Record | DirectRecord, now: float) -> None:
        first = reader.next
        if command.sequence < first:
            self.dropped["duplicate"] += 1
            self._on_known(reader, first - 1)
            return
        found = reader.take(command.sequence, command.content, now)
        if not found:
            if reader.contradicted:
                reader.contradicted = False
                self.dropped["a record that contradicts another"] += 1
            self._set_behind(reader)
            return
        if reader.key in self._behind:
            self._changed[reader.key] = reader
        self._on_records(reader, first, found)

    def _set_behind(self, reader: _R) -> None:
        self._behind[reader.key] = self._changed[reader.key] = reader

    def _fetch(self, readers: Mapping[Partition, _R], now: float) -> None:
        for key, reader in list(readers.items()):
            if (missing := reader.missing) is not None:
                self._on_missing(reader, *missing, now)
            if (asked := reader.fetch(now)) is not None:
                self._commands.append(Fetch(reader.partition, reader.topic, self.address, *asked))
            if reader.next > reader.head:
                self._behind.pop(key, None)
