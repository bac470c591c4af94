"""The real admin listener over TLS, on a log in memory, in a thread of its own: Spark's calls block."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import trio

from garlicfarm.client.trust import NodeAccess
from garlicfarm.raft.types import Entry
from tests.admin.fake_node import FakeFarm, FakeNode
from tests.spark.script import Node

USER, PASSWORD = "local", "local's word"
FARM_ID = FakeFarm().farm_id.hex()


class FoldedFarm(FakeFarm):
    """Answers for its log what a node would."""

    def __init__(self, name: str = "farm") -> None:
        super().__init__(name)
        self.node, self.before = Node(), Node()

    def append(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.node.apply(entry)
            self.log.append(entry)
        self._commit_event.set()
        self._commit_event = trio.Event()

    def state(self) -> tuple[int, bytes]:
        return self.commit_index, self.node.farm.snapshot()

    def compact(self, first_index: int) -> None:
        for entry in self.log[: first_index - self.first_index]:
            self.before.apply(entry)
        super().compact(first_index)
        self.snapshot = self.before.farm.snapshot()

    def ranking(self, *, statuses: bool = False) -> dict[str, Any]:
        return {"index": self.commit_index, **self.node.farm.ranking()}


class FeedServer:
    """One node; ``url`` carries its pin. Made by `feed_server`."""

    def __init__(self, directory: Path) -> None:
        self.node = FakeNode(directory)
        self.farm = FoldedFarm()
        self.farm.store_rankings(directory / "farms" / "farm" / "rankings")
        self.node.farms["farm"] = self.farm
        self.directory = directory
        self.url = ""
        self.token: trio.lowlevel.TrioToken
        self._shutdown: trio.Event

    @property
    def password_file(self) -> Path:
        return self.directory / "local.password"

    @property
    def farm_id(self) -> str:
        return self.farm.farm_id.hex()

    @property
    def access(self) -> NodeAccess:
        return NodeAccess((self.url,), USER, self.password_file)

    def options(self, **changes: str) -> dict[str, str]:
        """Those of the data source."""
        given = {
            "url": self.url,
            "farm": "farm",
            "user": USER,
            "passwordFile": str(self.password_file),
        }
        return given | changes

    def append(self, entries: Sequence[Entry]) -> None:
        """Commit entries; their indexes must be the next ones."""
        trio.from_thread.run_sync(self.farm.append, entries, trio_token=self.token)

    def add_farm(self, name: str, log: Sequence[Entry]) -> FoldedFarm:
        """Another farm of this node, with ``log`` committed."""
        farm = FoldedFarm(name)
        farm.farm_id = sha256(name.encode()).digest()[:16]
        farm.log.extend(log)
        self.node.farms[name] = farm
        return farm

    def compact(self, first_index: int) -> None:
        """Drop the entries before ``first_index``."""
        trio.from_thread.run_sync(self.farm.compact, first_index, trio_token=self.token)

    def stored_ranking(self, query: str) -> str:
        """As the sink has stored it at this node."""
        body = trio.from_thread.run(self.farm.rankings.body, query, trio_token=self.token)
        assert body is not None
        return body.decode()

    def stop(self) -> None:
        trio.from_thread.run_sync(self._shutdown.set, trio_token=self.token)

    async def run(self, ready: threading.Event) -> None:
        self.token = trio.lowlevel.current_trio_token()
        self._shutdown = trio.Event()
        async with trio.open_nursery() as nursery:
            url = await nursery.start(self.node.serve, self._shutdown)
            self.url = f"{url}?pin={self.node.pin}"
            ready.set()


@contextmanager
def feed_server(directory: Path, log: Sequence[Entry] = ()) -> Iterator[FeedServer]:
    """A node with ``log`` committed, for as long as the block lasts."""
    directory.mkdir(parents=True, exist_ok=True)
    server = FeedServer(directory)
    ready = threading.Event()
    thread = threading.Thread(target=trio.run, args=(server.run, ready))
    thread.start()
    try:
        assert ready.wait(240)
        server.append(log)
        yield server
    finally:
        server.stop()
        thread.join(240)
        assert not thread.is_alive()
