"""A farm's topic in a Dafka store on loopback, in a thread of its own: Spark's calls block."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import trio

from garlicfarm.raft.types import Entry
from garlicfarm.testing.feed_suite import MemorySource
from garlicfarm.wire.messages import ValueType
from garlicfarm_plugin_dafka.config import MeshConfig
from garlicfarm_plugin_dafka.farm_feed import FarmProducer
from garlicfarm_plugin_dafka.mesh import Mesh, open_mesh
from garlicfarm_plugin_dafka.store import open_store
from garlicfarm_plugin_dafka.tower import Tower
from tests.dafka.meshes import KeyRing, plain_tower, until

EPOCH_LENGTH = 17


class ScriptedSource(MemorySource):
    """A log whose entries have terms of their own."""

    epoch_length: int

    def append(self, entries: Sequence[Entry]) -> None:
        self._log.extend(entries)
        self._wake()


class TopicServer:
    """A tower, and a store that has the whole log. The farm itself is there only while the log grows. Made by
    `topic_server`."""

    def __init__(self, directory: Path, ring: KeyRing | None) -> None:
        self.source = ScriptedSource()
        self.source.epoch_length = EPOCH_LENGTH
        self._directory = directory
        self._ring = ring
        self._towers = ""
        self._token: trio.lowlevel.TrioToken
        self._shutdown: trio.Event
        self._grow: trio.MemorySendChannel[tuple[Sequence[Entry], threading.Event]]

    @property
    def farm_id(self) -> str:
        return self.source.farm_id.hex()

    def options(self, **changes: str) -> dict[str, str]:
        """Those of the data source."""
        given = {"towers": self._towers, "farm": "farm", "farmId": self.farm_id, "topic": "log"}
        if self._ring is not None:
            given |= {
                "keyFile": str(self._ring.directory / "reader.key"),
                "peersFile": str(self._ring.directory / "peers.toml"),
            }
        return given | changes

    def append(self, entries: Sequence[Entry]) -> None:
        """Commit entries; the store has them on return."""
        done = threading.Event()
        trio.from_thread.run(self._grow.send, (entries, done), trio_token=self._token)
        assert done.wait(60)

    def stop(self) -> None:
        trio.from_thread.run_sync(self._shutdown.set, trio_token=self._token)

    async def run(self, ready: threading.Event) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._shutdown = trio.Event()
        self._grow, growing = trio.open_memory_channel(1)
        async with AsyncExitStack() as stack:
            tower = await stack.enter_async_context(self._tower())
            self._towers = str(tower.endpoint) + ("&peer=tower" if self._ring else "")
            config, base_dir = self._config("store")
            store = await stack.enter_async_context(
                open_store(config, self._directory / "store", base_dir=base_dir)
            )
            nursery = await stack.enter_async_context(trio.open_nursery())

            async def grow() -> None:
                async for entries, done in growing:
                    self.source.append(entries)
                    applied = sum(each.value_type is ValueType.APPLICATION for each in self.source._log)
                    async with self._mesh("farm") as mesh, trio.open_nursery() as producing:
                        await producing.start(lambda task_status: self._produce(mesh, task_status))
                        await until(lambda: sum(each.next for each in store.partitions()) >= applied)  # noqa: B023
                        producing.cancel_scope.cancel()
                    done.set()

            nursery.start_soon(grow)
            ready.set()
            await self._shutdown.wait()
            nursery.cancel_scope.cancel()

    async def _produce(self, mesh: Mesh, task_status: trio.TaskStatus[None]) -> None:
        await FarmProducer(mesh, "log", self.source).run(task_status)

    def _tower(self) -> AbstractAsyncContextManager[Tower]:
        return plain_tower() if self._ring is None else self._ring.tower()

    def _config(self, name: str) -> tuple[MeshConfig, Path]:
        if self._ring is None:
            return MeshConfig(towers=(self._towers,)), Path()
        return MeshConfig(towers=(self._towers,), **self._ring.files(name)), self._ring.directory

    @asynccontextmanager
    async def _mesh(self, name: str) -> AsyncIterator[Mesh]:
        config, base_dir = self._config(name)
        async with open_mesh(config, base_dir) as mesh:
            yield mesh


@contextmanager
def topic_server(
    directory: Path, log: Sequence[Entry] = (), ring: KeyRing | None = None
) -> Iterator[TopicServer]:
    """A store with ``log``, for as long as the block lasts. With ``ring``: only for those with its keys, of
    the names ``farm``, ``store`` and ``reader``."""
    directory.mkdir(parents=True, exist_ok=True)
    server = TopicServer(directory, ring)
    ready = threading.Event()
    thread = threading.Thread(target=trio.run, args=(server.run, ready))
    thread.start()
    try:
        assert ready.wait(60)
        if log:
            server.append(log)
        yield server
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()
