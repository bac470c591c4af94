"""A farm as a producer, sans-I/O: all its members serve the same partitions, one of them produces.

Partition and sequence of a record follow from the farm's log (D23), and so does its content. So any member
answers for any record, and a new leader goes on where the last one stopped.

Commands and the time go in; heads and answers come out, and ranges to read and to send. The caller may lose
any of them: heads repeat, and what a peer lacks it fetches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256

from garlicfarm_plugin_dafka.codec import (
    Command,
    Fetch,
    GetHeads,
    Head,
    Record,
    subscription_prefix,
)
from garlicfarm_plugin_dafka.serving_core import HEAD_INTERVAL_S, ServingCore

_LIVE_EPOCHS = 2
"""Whose heads go out each second: readers may not have finished the one before."""
_GONE_EPOCHS = 16
"""How many of those that are deleted here are still told of: a reader that was away has to learn of them."""


@lru_cache(maxsize=1024)
def partition_of(farm_id: bytes, epoch: int) -> str:
    """The address of the partition with this epoch of a farm, 32 hexadecimal digits in capitals."""
    return sha256(b"garlicfarm epoch" + farm_id + epoch.to_bytes(8, "big")).digest()[:16].hex().upper()


class FarmProducerCore(ServingCore):
    """Serves the log of the farm with this id under ``topic``, ``epoch_length`` records in a partition.

    ``is_producer``: this member leads. Then `record` is to be called, and what it returns to be sent, for
    each new entry; and heads are due. The ranges of `fetches` are for the caller to read and to send.
    """

    def __init__(self, topic: str, farm_id: bytes, epoch_length: int) -> None:
        super().__init__(topic)
        self.is_producer = False
        self._farm_id = farm_id
        self._epoch_length = epoch_length
        self._first = self._count = 0  # numbers of entries: the first that can be served, how many there were
        self._known = range(0)  # epochs with a record here, and some before them
        self._epochs: dict[str, int] = {}  # the same by their partitions
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

    def number(self, partition: str, sequence: int) -> int | None:
        """The number of the entry in a record; None: its epoch is not known here any more."""
        epoch = self._epochs.get(partition)
        return None if epoch is None else epoch * self._epoch_length + sequence

    def record(self, number: int, content: bytes) -> Record:
        """The record of an entry."""
        epoch, sequence = divmod(number, self._epoch_length)
        return Record(self.topic, partition_of(self._farm_id, epoch), sequence, content)

    def receive(self, command: Command) -> None:
        """Take a command from a peer."""
        if isinstance(command, Fetch):
            self._on_fetch(command)
        elif isinstance(command, GetHeads):
            self._on_get_heads(command)
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
        last = [*self._last_records()]
        older, newest = last[:-_LIVE_EPOCHS], last[-_LIVE_EPOCHS:]
        if older:
            self._older = (self._older + 1) % len(older)
            newest.append(older[self._older])
        return [Head(self.topic, *each) for each in newest]

    def _last_records(self) -> Iterable[tuple[str, int]]:
        return [(partition, self._last(partition)) for partition in self._epochs]

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
        end = self._last(command.partition) + 1
        self._serve(command, min(max(0, self._first - epoch * self._epoch_length), end), end)
