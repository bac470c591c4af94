"""A store for Trio programs: `open_store`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from garlicfarm.errors import StorageDamaged
from garlicfarm_plugin_dafka.codec import DirectRecord
from garlicfarm_plugin_dafka.network import AnsweringRole, Network, running, send_in_bursts, warn_of_stalls
from garlicfarm_plugin_dafka.record_files import RecordFiles, RecordReader
from garlicfarm_plugin_dafka.serving import PAGE_BYTES, PAGE_RECORDS
from garlicfarm_plugin_dafka.store_core import SavedPartition, StoreCore

if TYPE_CHECKING:
    from garlicfarm_plugin_dafka.config import MeshConfig

_FIRST_RETENTION_S = 60.0
_RETENTION_S = 10.0


class Retention(msgspec.Struct, frozen=True):
    """How long records are kept: ``max_age_s`` seconds, and ``max_bytes`` of all partitions together; None:
    no limit.

    The oldest are deleted first. The newest records of a partition stay as long as its producer is heard.
    """

    max_age_s: float | None = None
    max_bytes: int | None = None


KEEP_ALL = Retention()


class DafkaStore(AnsweringRole[StoreCore]):
    """Saves the records of all producers; `open_store` makes one.

    What was received when it is cancelled is still saved then. `run` raises `StorageError`: the disk is full
    or fails. Nothing is acknowledged that is not saved.
    """

    def __init__(
        self,
        network: Network,
        core: StoreCore,
        files: RecordFiles,
        reader: RecordReader,
        retention: Retention,
        wall_clock_s: Callable[[], float],
    ) -> None:
        super().__init__("store", network, core)
        self._files = files
        self._reader = reader
        self._retention = retention
        self._wall_clock_s = wall_clock_s
        self._turn = trio.Lock()  # of the core and the files, which change together
        self._subscribe()

    @property
    def size_bytes(self) -> int:
        """How much the records take on disk."""
        return self._files.size_bytes

    def partitions(self) -> list[SavedPartition]:
        """What is saved."""
        return self._core.partitions()

    def _tasks(self) -> tuple[Callable[[], Awaitable[Any]], ...]:
        more = () if self._retention == KEEP_ALL else (self._retain,)
        return *super()._tasks(), self._greet, partial(warn_of_stalls, self._core.stalled, self._log), *more

    async def _receive(self) -> None:
        core = self._core
        while True:
            batch = await self._network.receive()
            async with self._turn:
                now = trio.current_time()
                for command, _ in batch:
                    core.receive(command, now)
                await self._save()
                self._wake_answers()

    async def _tick(self) -> None:
        async with self._turn:
            self._core.tick(trio.current_time())
            await self._save()

    async def _save(self) -> None:
        """Save what the core has, and send what it says then."""
        core = self._core
        if unsaved := core.take_unsaved():
            await trio.to_thread.run_sync(self._files.save, unsaved, int(self._wall_clock_s() * 1000))
            core.on_saved(unsaved)
        await send_in_bursts(self._network, core.take_commands(trio.current_time()))

    async def _greet(self) -> None:
        while True:
            for each in await self._network.subscriptions():
                self._core.on_subscription(each.command, each.routing, each.is_on)
            await send_in_bursts(self._network, self._core.take_commands(trio.current_time()))

    async def _send_page(self) -> None:
        turn = self._core.fetches.turn()
        if turn is None:
            return
        first, end = turn.first, min(turn.end, turn.first + PAGE_RECORDS)
        place = turn.topic, turn.partition
        read = partial(self._reader.read, *place, first, end, max_bytes=PAGE_BYTES)
        try:
            contents = await trio.to_thread.run_sync(read)
        except StorageDamaged as error:
            self._log.error("records-damaged", topic=turn.topic, partition=turn.partition, error=str(error))
            contents = ()
        records = [DirectRecord(turn.requester, *place, *each) for each in enumerate(contents, first)]
        await send_in_bursts(self._network, records)
        await send_in_bursts(self._network, self._core.on_served(turn, first, first + len(contents)))

    async def _retain(self) -> None:
        await trio.sleep(_FIRST_RETENTION_S)  # by then producers that live were heard
        while True:
            after: int | None = 0
            while after is not None:
                after = await self._expire(after)
            await trio.sleep(_RETENTION_S)

    async def _expire(self, after: int) -> int | None:
        age_s = self._retention.max_age_s
        before_ms = 0 if age_s is None else int((self._wall_clock_s() - age_s) * 1000)
        async with self._turn:
            now = trio.current_time()
            tails, following = await trio.to_thread.run_sync(
                self._files.expire,
                before_ms,
                self._retention.max_bytes,
                lambda topic, partition: self._core.is_live(topic, partition, now),
                after,
            )
            for topic, partition, tail in tails:
                self._core.on_deleted(topic, partition, tail)
        if tails:
            self._log.info("records-deleted", partitions=len(tails), bytes_left=self._files.size_bytes)
        return following


@asynccontextmanager
async def run_store(
    network: Network,
    directory: Path,
    *,
    topics: Iterable[str] | None = None,
    retention: Retention = KEEP_ALL,
    wall_clock_s: Callable[[], float] = time.time,
) -> AsyncIterator[DafkaStore]:
    """A store on a node that exists already."""
    files = await trio.to_thread.run_sync(RecordFiles, directory)
    with closing(files), closing(RecordReader(files)) as reader:
        core = StoreCore(network.address, files.partitions(), topics)
        async with running(DafkaStore(network, core, files, reader, retention, wall_clock_s)) as store:
            yield store


@asynccontextmanager
async def open_store(
    config: MeshConfig,
    directory: Path,
    *,
    topics: Iterable[str] | None = None,
    retention: Retention = KEEP_ALL,
    base_dir: Path = Path(),
) -> AsyncIterator[DafkaStore]:
    """A store for the block, with its files in ``directory``, which is made if it does not exist.

    :param topics: what it stores; None: every topic. :param base_dir: what file names in ``config`` are
    relative to. :raises ConfigError: with every problem of the configuration. :raises StorageError: the
    directory is in use, damaged, or cannot be written to; during the block, in a group: the disk is full or
    fails.
    """
    from garlicfarm_plugin_dafka.mesh import open_mesh

    async with (
        open_mesh(config, base_dir) as mesh,
        run_store(mesh, directory, topics=topics, retention=retention) as store,
    ):
        yield store
