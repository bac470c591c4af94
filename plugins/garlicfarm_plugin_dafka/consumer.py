"""A consumer for Trio programs: `open_consumer`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from garlicfarm.errors import FellBehind
from garlicfarm_plugin_dafka.consumer_core import ConsumerCore, Lost, ReceivedRecord, Start
from garlicfarm_plugin_dafka.network import Network, Role, running, warn_of_stalls
from garlicfarm_plugin_dafka.offsets import OffsetsFile
from garlicfarm_plugin_dafka.reading import Partition

if TYPE_CHECKING:
    from garlicfarm_plugin_dafka.config import MeshConfig

_MAX_BUFFERED = 10_000
_MAX_BUFFERED_BYTES = 16 << 20


class DafkaConsumer(Role[ConsumerCore]):
    """Reads all partitions of some topics; `open_consumer` makes one. An async iterator over records: those
    of a partition come in order, each once. One task at a time reads.

    While nobody reads, at most some 10,000 records wait here; later ones are fetched again when they are
    wanted.
    """

    def __init__(self, network: Network, core: ConsumerCore, file: OffsetsFile | None = None) -> None:
        super().__init__("consumer", network, core)
        self._file = file
        self._records: list[ReceivedRecord] = []
        self._taken = 0  # of them
        self._bytes = 0
        self._lost: deque[Lost] = deque()
        self._has_records = trio.Event()
        self._has_room = trio.Event()
        self._has_room.set()
        self._subscribe()

    def offsets(self) -> dict[Partition, int]:
        """The next record of each partition: behind all that this consumer has returned."""
        offsets = self._core.offsets()
        for record in reversed(self._records[self._taken :]):
            offsets[record.topic, record.partition] = record.sequence
        return offsets

    async def save_offsets(self) -> None:
        """Save `offsets` in the file that was given to `open_consumer`: durable on return. To be called when
        all that was returned is dealt with. Cancelled: they are saved or not.

        :raises StorageError: the file cannot be written.
        """
        assert self._file is not None, "the consumer has no file of offsets"
        await trio.to_thread.run_sync(self._file.save, self.offsets(), self._core.forgot)

    async def receive(self, most: int | None = None) -> list[ReceivedRecord]:
        """Wait for records; returns all that are there, at least one and at most ``most``. Cancellation loses
        none.

        :raises FellBehind: a partition lacks records that no node has any more; once for each. Another call
        goes on with the other partitions.
        """
        await trio.lowlevel.checkpoint()
        while self._taken == len(self._records):
            if self._lost:
                lost = self._lost.popleft()
                raise FellBehind(
                    f"topic {lost.topic}, partition {lost.partition}: records {lost.first} to {lost.end - 1}"
                    " are deleted; skip them, or restore a store that has them"
                )
            self._take_all()
            self._has_records = trio.Event()
            await self._has_records.wait()
        if most is None or most >= len(self._records) - self._taken:
            return self._take_all()
        self._taken += most
        return self._records[self._taken - most : self._taken]

    def _take_all(self) -> list[ReceivedRecord]:
        records = self._records[self._taken :] if self._taken else self._records
        self._records = []
        self._taken = self._bytes = 0
        self._has_room.set()
        return records

    def __aiter__(self) -> DafkaConsumer:
        return self

    async def __anext__(self) -> ReceivedRecord:
        """The next record, as `receive`. It gives way to other tasks once per batch that has arrived."""
        if self._taken == len(self._records):
            self._records, self._taken = await self.receive(), 0
        self._taken += 1
        return self._records[self._taken - 1]

    def _tasks(self) -> tuple[Callable[[], Awaitable[Any]], ...]:
        return *super()._tasks(), self._greet, partial(warn_of_stalls, self._core.stalled, self._log)

    async def _receive(self) -> None:
        core = self._core
        while True:
            await self._has_room.wait()
            batch = await self._network.receive()
            now = trio.current_time()
            for command, _ in batch:
                core.receive(command, now)
            self._pump(now)

    async def _greet(self) -> None:
        while True:
            for each in await self._network.subscriptions():
                self._core.on_subscription(each.command, each.routing, each.is_on)
            self._pump(trio.current_time())

    async def _tick(self) -> None:
        await self._has_room.wait()
        now = trio.current_time()
        self._core.tick(now)
        self._pump(now)

    def _pump(self, now: float) -> None:
        """Pass on what the core has by now."""
        if records := self._core.take_records():
            self._records = [*self._records[self._taken :], *records] if self._records else records
            self._taken = 0
            self._bytes += sum([len(record.content) for record in records])
            if len(self._records) >= _MAX_BUFFERED or self._bytes >= _MAX_BUFFERED_BYTES:
                self._has_room = trio.Event()
            self._has_records.set()
        for lost in self._core.take_lost():
            if lost.is_skipped:
                self._log.warning(
                    "records-lost",
                    topic=lost.topic,
                    partition=lost.partition,
                    first=lost.first,
                    last=lost.end - 1,
                )
            else:
                self._lost.append(lost)
                self._has_records.set()
        for (topic, partition), following in self._core.take_forgotten():
            self._log.warning("partition-forgotten", topic=topic, partition=partition, next=following)
        self._network.send_all(self._core.take_commands(now))


def run_consumer(
    network: Network, core: ConsumerCore, file: OffsetsFile | None = None
) -> AbstractAsyncContextManager[DafkaConsumer]:
    """A consumer on a node that exists already, for the block."""
    return running(DafkaConsumer(network, core, file))


@asynccontextmanager
async def open_consumer(
    config: MeshConfig,
    topics: Iterable[str],
    *,
    start: Start = "earliest",
    offsets: Mapping[Partition, int] | None = None,
    offsets_file: Path | None = None,
    skip_lost: bool = False,
    base_dir: Path = Path(),
) -> AsyncIterator[DafkaConsumer]:
    """A consumer of ``topics``, for the block.

    :param start: where it begins a partition without an offset: ``earliest``, ``latest``, or a sequence.
    :param offsets: the next record of partitions that were read before; those of the file, if it has any,
    come first. :param offsets_file: where `DafkaConsumer.save_offsets` saves them. :param skip_lost: go on
    behind records that no node has any more, with a warning in the log. Otherwise `FellBehind` is raised. A
    reader without any offset in a topic begins its partitions with what is left in any case. :param base_dir:
    what file names in ``config`` are relative to. :raises ConfigError: with every problem of the
    configuration. :raises StorageError: the file cannot be read, is in use, or holds something else.
    """
    from garlicfarm_plugin_dafka.mesh import open_mesh

    with ExitStack() as stack:
        file = None
        known = dict(offsets or {})
        if offsets_file is not None:
            file = stack.enter_context(closing(OffsetsFile(offsets_file)))
            known |= file.saved
        async with open_mesh(config, base_dir) as mesh:
            forgot = () if file is None else file.forgot
            core = ConsumerCore(mesh.address, topics, start, known, skip_lost=skip_lost, forgot=forgot)
            async with run_consumer(mesh, core, file) as consumer:
                yield consumer
