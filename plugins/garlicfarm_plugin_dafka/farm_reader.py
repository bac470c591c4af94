"""Reading a farm's topic by Raft index: `FarmReader`.

No node says which record holds an index. It follows from any record whose place and index are known: between
two indexes there are at most as many records as indexes. So a reader goes back from the newest record by the
difference of the indexes, and skips what it already has: one entry for each Configuration on the way. Where
that leads into an earlier epoch, the heads say how many records each of them has. A head that is too low
leads further back, which is as good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import NamedTuple, NoReturn

import trio

from garlicfarm.errors import Compacted, GarlicFarmError, RemoteProtocolError, UnreachableError, first_error
from garlicfarm.feed import Entry, decode_lines
from garlicfarm_plugin_dafka.consumer import DafkaConsumer, run_consumer
from garlicfarm_plugin_dafka.consumer_core import ConsumerCore, ReceivedRecord
from garlicfarm_plugin_dafka.farm_core import partition_of
from garlicfarm_plugin_dafka.farm_log import FarmLog
from garlicfarm_plugin_dafka.network import TICK_S, Network
from garlicfarm_plugin_dafka.reading import Partition

__all__ = ["FarmReader"]

PAGE_BYTES = 4 << 20
ANSWER_S = 20.0
"""How long to wait for the first head, or for the next record."""
SETTLE_S = 2.0
"""How long nodes that live may take to be found and to answer, after the first one has answered."""
_EPOCHS_AT_ONCE = 100
_MOST_EPOCHS = 100_000


class _Place(NamedTuple):
    """A record, and the last index in it."""

    epoch: int
    sequence: int
    last: int


class FarmReader:
    """Reads the topic of the farm with this id, on a node. One task at a time uses both.

    `find_newest` comes first; then either `follow`, for `index`, or `read`.
    """

    def __init__(self, network: Network, topic: str, farm_id: bytes) -> None:
        self._network = network
        self._topic = topic
        self._farm_id = farm_id
        self._epochs: dict[str, int] = {}  # by partition, as many as were needed
        self._heads: dict[int, int] = {}  # the last known sequence of each epoch
        self._newest = _Place(0, -1, 0)

    @property
    def index(self) -> int:
        """The last index in the newest record that is known."""
        return self._newest.last

    async def find_newest(self) -> None:
        """Ask all nodes what they have.

        :raises UnreachableError: no node has the topic of this farm.
        :raises RemoteProtocolError: its newest record is none of a farm.
        """
        core = self._core({})
        with _deadline(f"no node has records of this farm under the topic {self._topic}"):
            async with run_consumer(self._network, core):
                while not self._known_heads(core):  # noqa: ASYNC110 - heads have no event
                    await trio.sleep(TICK_S)
                await trio.sleep(SETTLE_S)
                self._heads = self._known_heads(core)
            epoch, sequence = max(self._heads.items())
            async with run_consumer(self._network, self._core({epoch: sequence})) as consumer:
                async for record in consumer:
                    if self._note_newest(record):
                        break

    async def follow(self) -> NoReturn:
        """Keep `index` up to date. Raises `RemoteProtocolError` as `find_newest`."""
        while True:
            epoch, sequence, _ = self._newest
            core = self._core({epoch: sequence + 1, epoch + 1: 0})
            async with run_consumer(self._network, core) as consumer:
                async for record in consumer:
                    self._note_newest(record)
                    if self._newest.epoch > epoch:
                        break

    async def read(self, after: int, upto: int) -> list[Entry]:
        """The entries behind ``after``, in order and without a gap, up to ``upto`` or as many as make a page:
        one at least. Cancellation loses none.

        :raises Compacted: the next one is deleted at every node.
        :raises UnreachableError: the next one does not come.
        :raises RemoteProtocolError: a record is none of a farm.
        :raises FellBehind: as `FarmLog.add`.
        """
        try:
            return await self._read_page(after, upto)
        except Compacted:
            await self.find_newest()  # a node that has it may be new, or have more epochs than are known here
            return await self._read_page(after, upto)

    async def _read_page(self, after: int, upto: int) -> list[Entry]:
        found: list[Entry] = []
        while not found:
            found = await self._read_epochs(after, upto)
        return found

    async def _read_epochs(self, after: int, upto: int) -> list[Entry]:
        """As `read`, but none if all that was read comes before ``after``: less so the next time."""
        epoch, sequence = self._place_behind(after)
        beyond = epoch + _EPOCHS_AT_ONCE
        core = self._core({epoch: sequence} | dict.fromkeys(range(epoch + 1, beyond), 0))
        farm_log, found, size = FarmLog(after), list[Entry](), 0
        early: tuple[int, int] | None = None  # the first index and the epoch of what waits for other records
        with _deadline(f"the topic {self._topic} has not reached index {upto}") as scope:
            async with run_consumer(self._network, core) as consumer:
                while farm_log.index < upto and size < PAGE_BYTES and epoch < beyond - 1:
                    for record in await _receive(consumer, has_early=early is not None):
                        at = self._epoch_of(record.partition)
                        if at is None or not epoch <= at < beyond:
                            continue
                        if new := farm_log.add(record.content):
                            found += new
                            size += len(record.content)
                            last = None if farm_log.has_early else farm_log.index
                        else:
                            first, last = _indexes(record.content)
                            if first > farm_log.index + 1:
                                if at > epoch:
                                    early = min(early or (first, at), (first, at))
                                    continue
                                raise Compacted(first)
                        epoch = at
                        scope.deadline = trio.current_time() + ANSWER_S
                        if last is not None:
                            self._note(_Place(at, record.sequence, last))
                    if early and early[0] <= farm_log.index + 1:
                        early = None
                    if early and all(core.ends_in_loss(self._key(gone)) for gone in range(epoch, early[1])):
                        raise Compacted(early[0])
        return [entry for entry in found if entry.index <= upto]

    def _core(self, offsets: Mapping[int, int]) -> ConsumerCore:
        """Of a consumer of these epochs, from these sequences on; of the others it gets what is new."""
        known = {self._key(epoch): first for epoch, first in offsets.items()}
        return ConsumerCore(self._network.address, [self._topic], "latest", known, skip_lost=True)

    def _key(self, epoch: int) -> Partition:
        return self._topic, partition_of(self._farm_id, epoch)

    def _place_behind(self, after: int) -> tuple[int, int]:
        """Epoch and sequence of a record at or before that of the entry behind ``after``."""
        epoch, sequence, index = self._newest
        back = max(0, index - after)
        while back > sequence + 1:
            if epoch - 1 not in self._heads:
                return epoch, 0
            back -= sequence + 1
            epoch -= 1
            sequence = self._heads[epoch]
        return epoch, sequence + 1 - back

    def _known_heads(self, core: ConsumerCore) -> dict[int, int]:
        return {
            epoch: head
            for (_, partition), head in core.heads().items()
            if (epoch := self._epoch_of(partition)) is not None
        }

    def _epoch_of(self, partition: str) -> int | None:
        """None: it is not of this farm."""
        while partition not in self._epochs and len(self._epochs) < _MOST_EPOCHS:
            start = len(self._epochs)
            for epoch in range(start, start + 1000):
                self._epochs[partition_of(self._farm_id, epoch)] = epoch
        return self._epochs.get(partition)

    def _note_newest(self, record: ReceivedRecord) -> bool:
        epoch = self._epoch_of(record.partition)
        if epoch is None:
            return False
        self._note(_Place(epoch, record.sequence, _indexes(record.content)[1]))
        return True

    def _note(self, place: _Place) -> None:
        self._heads[place.epoch] = max(place.sequence, self._heads.get(place.epoch, 0))
        self._newest = max(place, self._newest)


async def _receive(consumer: DafkaConsumer, *, has_early: bool) -> list[ReceivedRecord]:
    """The next records; after a moment none, if some wait for records that may turn out to be lost."""
    with trio.move_on_after(TICK_S if has_early else inf):
        return await consumer.receive()
    return []


def _indexes(content: bytes) -> tuple[int, int]:
    """The first and the last index in a record."""
    entries: Sequence[Entry] = decode_lines(content)
    if not entries:
        raise RemoteProtocolError("no entries", "record of a farm")
    return entries[0].index, entries[-1].index


@contextmanager
def _deadline(problem: str) -> Iterator[trio.CancelScope]:
    """Raises `UnreachableError` at its end, and errors of the block as they are, not in groups."""
    try:
        with trio.move_on_after(ANSWER_S) as scope:
            yield scope
    except BaseExceptionGroup as group:
        if (errors := group.subgroup(GarlicFarmError)) is not None:
            raise first_error(errors) from group
        raise
    if scope.cancelled_caught:
        raise UnreachableError(problem, "are the tower and the store running?")
