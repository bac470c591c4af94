"""A producer for Trio programs: `open_producer`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from garlicfarm.errors import LocalProtocolError
from garlicfarm_plugin_dafka.codec import Record
from garlicfarm_plugin_dafka.identity import ProducerIdentity
from garlicfarm_plugin_dafka.network import BURST, AnsweringRole, Network, running
from garlicfarm_plugin_dafka.producer_core import Backlog, ProducerCore

if TYPE_CHECKING:
    from garlicfarm_plugin_dafka.config import MeshConfig

MAX_CONTENT_BYTES = 8 << 20


class DafkaProducer(AnsweringRole[ProducerCore]):
    """Produces one partition of a topic; `open_producer` makes one. Several tasks may use it."""

    def __init__(
        self, network: Network, core: ProducerCore, identity: ProducerIdentity | None = None
    ) -> None:
        super().__init__("producer", network, core)
        self._identity = identity
        self._turn = trio.Lock()  # to write into it
        self.first = core.first
        """The first record that was not acknowledged when this producer began; others are of the past."""
        self._acked = trio.Event()  # something was, since the last look
        self._subscribe()

    @property
    def topic(self) -> str:
        """What consumers subscribe to."""
        return self._core.topic

    @property
    def partition(self) -> str:
        """The address of the partition, which is this producer's alone."""
        return self._core.partition

    @property
    def next_sequence(self) -> int:
        """How many records there are: the sequence of the next one."""
        return self._core.next_sequence

    @property
    def acked(self) -> int:
        """How many records, from the first one on, enough stores have acknowledged."""
        return self._core.acked

    async def send(self, content: bytes) -> int:
        """Send a record, once there is room for it; returns its sequence.

        Cancelled: it was not sent.
        :raises LocalProtocolError: it has more than `MAX_CONTENT_BYTES`.
        """
        return await self.send_many([content]) - 1

    async def send_many(self, contents: Iterable[bytes]) -> int:
        """Send records, each once there is room for it; returns how many records there are then.

        This is several times as fast as `send` for each. Cancelled: some were sent, as `next_sequence` tells.
        :raises LocalProtocolError: one has more than `MAX_CONTENT_BYTES`; those before it were sent.
        """
        await trio.lowlevel.checkpoint()
        if self._identity is not None:
            return await self._send_kept(self._identity, contents)
        burst: list[Record] = []
        now = trio.current_time()
        try:
            for content in contents:
                if len(burst) == BURST or not self._has_room(content):
                    self._network.send_all(burst)
                    burst.clear()
                    await self._wait_for_room(content)
                    now = trio.current_time()
                burst.append(self._core.append(content, now))
        finally:
            self._network.send_all(burst)
        return self._core.next_sequence

    async def wait_acked(self) -> None:
        """Wait until all records sent before the call are acknowledged by enough stores; without a store, for
        ever."""
        upto = self._core.next_sequence
        await trio.lowlevel.checkpoint()
        while self._core.acked < upto:
            await self._acked.wait()

    async def _send_kept(self, identity: ProducerIdentity, contents: Iterable[bytes]) -> int:
        """Send what is in the file first: no other record will ever have its sequence."""
        async with self._turn:
            burst: list[bytes] = []
            for content in contents:
                if burst and (len(burst) == BURST or not self._has_room(*burst, content)):
                    await self._keep_and_send(identity, burst)
                if not burst:
                    await self._wait_for_room(content)
                burst.append(content)
            if burst:
                await self._keep_and_send(identity, burst)
            return self._core.next_sequence

    async def _keep_and_send(self, identity: ProducerIdentity, burst: list[bytes]) -> None:
        core = self._core
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(identity.append, core.next_sequence, tuple(burst), core.first)
        now = trio.current_time()
        self._network.send_all([core.append(content, now) for content in burst])
        burst.clear()

    def _has_room(self, *contents: bytes) -> bool:
        for content in contents:
            if len(content) > MAX_CONTENT_BYTES:
                wrong = f"a record has {MAX_CONTENT_BYTES} bytes at most, not {len(content)}"
                raise LocalProtocolError(wrong)
        return self._core.has_room(*map(len, contents))

    async def _wait_for_room(self, content: bytes) -> None:
        await trio.lowlevel.checkpoint()
        while not self._has_room(content):
            await self._acked.wait()

    async def _receive(self) -> None:
        core = self._core
        while True:
            batch = await self._network.receive()
            acked = core.acked
            for command, sender in batch:
                core.receive(command, sender.name or sender.endpoint)
            if core.acked > acked:
                self._acked.set()
                self._acked = trio.Event()
            self._wake_answers()

    async def _tick(self) -> None:
        self._network.send_all(self._core.tick(trio.current_time()))


def run_producer(
    network: Network, core: ProducerCore, identity: ProducerIdentity | None = None
) -> AbstractAsyncContextManager[DafkaProducer]:
    """A producer on a node that exists already, for the block."""
    return running(DafkaProducer(network, core, identity))


@asynccontextmanager
async def open_producer(
    config: MeshConfig,
    topic: str,
    *,
    acks: int = 1,
    limit_records: int = 1_000_000,
    limit_bytes: int = 256 << 20,
    identity: Path | None = None,
    base_dir: Path = Path(),
) -> AsyncIterator[DafkaProducer]:
    """A producer of ``topic``, for the block: of a new partition, or of that in the file ``identity``. Its
    end waits for nothing: `DafkaProducer.wait_acked` does.

    :param acks: of how many stores each record needs an ACK; until then it is kept. 0: records are not
    waited for; the newest are kept for those who fetch them. :param limit_records: how many records are kept
    at most. `DafkaProducer.send` waits then. :param limit_bytes: how many bytes they may have together, in
    the same way. :param identity: a file that keeps the partition, and each record from before it is sent
    until it is acknowledged: a later producer goes on with them. It is made if it is not there. :param
    base_dir: what file names in ``config`` are relative to. :raises ConfigError: with every problem of the
    configuration. :raises StorageError: the file cannot be used, as `ProducerIdentity` says. Sending raises
    it when nothing can be written.
    """
    from garlicfarm_plugin_dafka.mesh import open_mesh

    async with open_mesh(config, base_dir) as mesh:
        make = partial(
            ProducerCore,
            topic,
            acks=acks,
            limit_records=limit_records,
            limit_bytes=limit_bytes,
            asks_stores=not config.key_file,  # with keys, all stores are ours
        )
        if identity is None:
            async with run_producer(mesh, make(partition=mesh.address)) as producer:
                yield producer
            return
        kept = await trio.to_thread.run_sync(ProducerIdentity, identity, topic)
        core = make(partition=kept.partition, backlog=Backlog(kept.first, kept.contents))
        try:
            async with run_producer(mesh, core, kept) as producer:
                yield producer
        finally:
            kept.close(core.first)
