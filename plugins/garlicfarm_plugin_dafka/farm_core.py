"""A farm as a producer, sans-I/O: all its members serve the same partitions, one of them produces.

Partition and sequence of a record follow from the farm's log (D23), and so does its content. So any member
answers for any record, and a new leader goes on where the last one stopped.

Commands and the time go in; heads and answers come out, and ranges to read and to send. The caller may lose
any of them: heads repeat, and what a peer lacks it fetches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

from garlicfarm_plugin_dafka.codec import (
    Command,
    DirectHead,
    DirectTail,
    Fetch,
    GetHeads,
    Head,
    Record,
    subscription_prefix,
)
from garlicfarm_plugin_dafka.serving import FetchQueue

__all__ = ["FarmProducerCore", "partition_of"]

HEAD_INTERVAL_S = 1.0
_LIVE_EPOCHS = 2
"""Whose heads go out each second: readers may not have finished the one before."""
_GONE_EPOCHS = 16
"""How many of those that are deleted here are still told of: a reader that was away has to learn of them."""
_MAX_WAITING = 4096


@lru_cache(maxsize=1024)
def partition_of(farm_id: bytes, epoch: int) -> str:
    """The address of the partition with this epoch of a farm, 32 hexadecimal digits in capitals."""
    return sha256(b"garlicfarm epoch" + farm_id + epoch.to_bytes(8, "big")).digest()[:16].hex().upper()


class FarmProducerCore:
    """Serves the log of the farm with this id under ``topic``, ``epoch_length`` records in a partition.

    ``fetches``: the ranges that peers wait for. ``is_producer``: this member leads. Then `record` is to be
    called, and what it returns to be sent, for each new entry; and heads are due.

    ``dropped`` counts commands that were not followed, by reason.
    """

    def __init__(self, topic: str, farm_id: bytes, epoch_length: int) -> None:
        self.topic = topic
        self.dropped: Counter[str] = Counter()
        self.fetches = FetchQueue()
        self.is_producer = False
        self._farm_id = farm_id
        self._epoch_length = epoch_length
        self._first = self._count = 0  # numbers of entries: the first that can be served, how many there were
        self._known = range(0)  # epochs with a record here, and some before them
        self._epochs: dict[str, int] = {}  # the same by their partitions
        self._heads: dict[str, None] = {}  # who asked for them, in order
        self._tails: dict[tuple[str, str], int] = {}  # requester and partition: where it begins
        self._head_at = 0.0
        self._older = 0  # which of the other heads was sent last

    def subscriptions(self) -> Sequence[bytes]:
        """What to subscribe to now; what `on_log` changes. The next epoch is subscribed to as well: a FETCH
        that a peer sends before the subscription gets there is lost, and C consumers do not repeat it."""
        return (
            subscription_prefix(GetHeads, self.topic),
            *(subscription_prefix(Fetch, partition) for partition in (*self._epochs, self._coming())),
        )

    def on_log(self, first: int, count: int) -> None:
        """The log has ``count`` entries by now, of which those from the number ``first`` on can be served.

        Of epochs that are deleted, the last 16 are still told of: they have a head, and whatever is fetched
        of them is answered with their end as the tail.
        """
        self._first, self._count = first, count
        length = self._epoch_length
        known = range(max(0, first // length - _GONE_EPOCHS), (count - 1) // length + 1)
        if known != self._known:
            self._known = known
            self._epochs = {partition_of(self._farm_id, epoch): epoch for epoch in known}

    def place(self, number: int) -> tuple[str, int]:
        """Partition and sequence of an entry."""
        epoch, sequence = divmod(number, self._epoch_length)
        return partition_of(self._farm_id, epoch), sequence

    def number(self, partition: str, sequence: int) -> int | None:
        """The number of the entry in a record; None: its epoch is not known here any more."""
        epoch = self._epochs.get(partition)
        return None if epoch is None else epoch * self._epoch_length + sequence

    def record(self, number: int, content: bytes) -> Record:
        """The record of an entry."""
        partition, sequence = self.place(number)
        return Record(self.topic, partition, sequence, content)

    def receive(self, command: Command) -> None:
        """Take a command from a peer."""
        if isinstance(command, Fetch):
            self._on_fetch(command)
        elif isinstance(command, GetHeads):
            if command.topic != self.topic:
                self.dropped["another topic"] += 1
            elif len(self._heads) < _MAX_WAITING or command.sender in self._heads:
                self._heads[command.sender] = None
            else:
                self.dropped["too many requests"] += 1
        else:
            self.dropped["not for a farm"] += 1

    def lead(self, is_producer: bool) -> None:
        """This member leads, or no longer does. Heads of a new leader are due at once."""
        if is_producer and not self.is_producer:
            self._head_at = 0.0
        self.is_producer = is_producer

    def tick(self, now: float) -> list[Head]:
        """The heads that are due: each second those of the newest epochs, and one of the older ones in
        turn."""
        if not self.is_producer or not self._epochs or now < self._head_at:
            return []
        self._head_at = now + HEAD_INTERVAL_S
        partitions = [*self._epochs]
        older, newest = partitions[:-_LIVE_EPOCHS], partitions[-_LIVE_EPOCHS:]
        if older:
            self._older = (self._older + 1) % len(older)
            newest.append(older[self._older])
        return [Head(self.topic, partition, self._last(partition)) for partition in newest]

    @property
    def has_answers(self) -> bool:
        """Whether `answers` has something to send, or a range is to be read."""
        return bool(self._heads or self._tails or self.fetches)

    def answers(self) -> list[Command]:
        """The answers that need no entries."""
        found: list[Command] = [
            DirectHead(sender, self.topic, partition, self._last(partition))
            for sender in self._heads
            for partition in self._epochs
        ]
        for (sender, partition), tail in self._tails.items():
            found.append(DirectTail(sender, self.topic, partition, tail))
        self._heads.clear()
        self._tails.clear()
        return found

    def _coming(self) -> str:
        """The partition with the next epoch."""
        return partition_of(self._farm_id, self._known.stop)

    def _last(self, partition: str) -> int:
        """The last sequence of a partition."""
        end = self._count - self._epochs[partition] * self._epoch_length
        return min(end, self._epoch_length) - 1

    def _on_fetch(self, command: Fetch) -> None:
        epoch = self._epochs.get(command.partition)
        if command.topic == self.topic and command.partition == self._coming():
            self.dropped["FETCH of what is not there"] += 1  # another member may have it
            return
        if epoch is None or command.topic != self.topic:
            self.dropped["another partition"] += 1
            return
        tail = min(max(0, self._first - epoch * self._epoch_length), self._last(command.partition) + 1)
        end = min(command.sequence + command.count, self._last(command.partition) + 1)
        if command.sequence < tail:
            key = command.sender, command.partition
            if len(self._tails) < _MAX_WAITING or key in self._tails:
                self._tails[key] = tail
            else:
                self.dropped["too many requests"] += 1
        elif command.sequence >= end:
            self.dropped["FETCH of what is not there"] += 1
        elif not self.fetches.add(command, command.sequence, end):
            self.dropped["too many requests"] += 1
