"""Reads a farm's topic in Dafka, in Spark's own Python processes.

A Dafka node is a program for Trio, and hears others only while it runs. Spark calls from plain threads, so
each node runs in a thread of its own, from the first call until its owner closes it or a call fails.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from garlicfarm.errors import ConfigError, FellBehind, GarlicFarmError, UnreachableError
from garlicfarm_plugin_spark.feed import FarmHead

if TYPE_CHECKING:
    from garlicfarm.feed import Entry
    from garlicfarm_plugin_spark.clients import NodeClients

__all__ = ["LISTEN", "Topic", "TopicFeed"]

T = TypeVar("T")

LISTEN = "tcp://127.0.0.1:0"
_HINT = "are the tower and the store running?"


@dataclass(frozen=True, slots=True)
class Topic:
    """A farm's topic, and how to reach it. Hashable, and free of secrets.

    ``towers``, ``listen``: as in `garlicfarm_plugin_dafka.MeshConfig`. ``farm``: the name for the rows;
    ``farm_id``: 32 hex digits. ``key_file``, ``peers_file``: both or none.
    """

    towers: tuple[str, ...]
    topic: str
    farm: str
    farm_id: str
    listen: str = LISTEN
    key_file: Path | None = None
    peers_file: Path | None = None

    def of(self, farm: str) -> Topic:
        """This: a topic is read for one farm."""
        return self

    def open(self, clients: NodeClients | None = None) -> TopicFeed:
        """Raises nothing: nodes are started when they are needed. Uses no ``clients``."""
        return TopicFeed(self)


class TopicFeed:
    """Reads the log of one farm from its topic. Used by one thread at a time.

    Methods raise `UnreachableError` (no node has the topic, or the next entries), `ConfigError` (keys, or a
    tower's URL), `RemoteProtocolError` (a record is none of a farm).
    """

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._followed: _Node | None = None
        self._read: _Node | None = None

    def close(self) -> None:
        """Stop the nodes, and wait for their threads."""
        for node in (self._followed, self._read):
            if node is not None:
                node.close()
        self._followed = self._read = None

    def heads(
        self,
        required: Iterable[str],
        ids: Mapping[str, str],
        after: Mapping[str, int] = {},
        *,
        strict: bool = True,
    ) -> dict[str, FarmHead]:
        """The one farm, as `head`. What was deleted shows only when it is read."""
        return {self._topic.farm: self.head(ids.get(self._topic.farm))}

    def extent(self, after: int, upto: int, max_bytes: int, farm_id: str) -> tuple[int, int]:
        """As `FarmFeed.extent`, found by reading these entries: a topic tells no sizes."""
        last, size = after, 0
        for entry in chain.from_iterable(self.entries(after, upto, farm_id)):
            if last > after and size + len(entry.value) > max_bytes:
                break
            last, size = entry.index, size + len(entry.value)
        return last, size

    def head(self, farm_id: str | None = None) -> FarmHead:
        """The farm as far as the topic has it: up to the last Application entry. Where the topic begins shows
        only when it is read; ``first_index`` is 1.

        :param farm_id: 32 hex digits; `ConfigError` if the topic is read as that of another farm.
        """
        topic = self._topic
        self._check(farm_id)
        if self._followed is None:
            self._followed = _Node(topic, follows=True)
        try:
            return FarmHead(topic.farm_id, None, 1, self._followed.index())
        except GarlicFarmError:
            self.close()
            raise

    def state(self, farm_id: str, least: int = 0) -> NoReturn:
        """A topic holds no state. Raises `FellBehind`."""
        raise FellBehind(
            f"the topic {self._topic.topic} holds no state, and its first entries are deleted: name a store"
            " that has all of them, or the nodes"
        )

    def entries(self, after: int, upto: int, farm_id: str) -> Iterator[Sequence[Entry]]:
        """All committed entries with ``after`` < index ≤ ``upto``, in order, a page at a time.

        :raises Compacted: they were deleted, at every node.
        """
        self._check(farm_id)
        while after < upto:
            if self._read is None:
                self._read = _Node(self._topic, follows=False)
            try:
                entries = self._read.entries(after, upto)
            except GarlicFarmError:
                self.close()  # it may not have found all nodes
                raise
            after = entries[-1].index
            yield entries

    def _check(self, farm_id: str | None) -> None:
        if farm_id not in (None, self._topic.farm_id):
            raise ConfigError(
                [
                    f"the checkpoint belongs to another farm {self._topic.farm!r} (id {farm_id}) than the"
                    f" farmId {self._topic.farm_id}: name the checkpoint of this farm, or a new one"
                ]
            )


class _Node:
    """A Dafka node in a thread. It ends when it is closed, or with the process."""

    def __init__(self, topic: Topic, *, follows: bool) -> None:
        self._topic = topic
        self._follows = follows
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._reader: Any
        self._mesh: Any
        self._token: Any
        self._scope: Any
        self._thread = threading.Thread(target=self._run, name=f"topic {topic.topic}", daemon=True)
        self._thread.start()
        self._ready.wait()  # no longer than `FarmReader.find_newest`
        self._raise_error()

    def index(self) -> int:
        """The last index that the topic is known to have."""

        async def look() -> int:
            if not self._mesh.peers:
                raise UnreachableError(f"no tower knows a node of the topic {self._topic.topic}", _HINT)
            index: int = self._reader.index
            return index

        return self._call(look)

    def entries(self, after: int, upto: int) -> list[Entry]:
        """As `FarmReader.read`."""
        return self._call(partial(self._reader.read, after, upto))

    def close(self) -> None:
        """End it, and wait for that."""
        import trio

        with suppress(trio.RunFinishedError):
            trio.from_thread.run_sync(self._scope.cancel, trio_token=self._token)
        self._thread.join()

    def _call(self, ask: Callable[[], Awaitable[T]]) -> T:
        import trio

        try:
            return trio.from_thread.run(ask, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            self._thread.join()
            self._raise_error()
            raise

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        import trio

        from garlicfarm.errors import first_error

        try:
            trio.run(self._main)
        except (GarlicFarmError, BaseExceptionGroup) as error:
            self._error = first_error(error)
        finally:
            self._ready.set()

    async def _main(self) -> None:
        import trio

        from garlicfarm_plugin_dafka import MeshConfig
        from garlicfarm_plugin_dafka.farm_reader import FarmReader
        from garlicfarm_plugin_dafka.mesh import open_mesh

        topic = self._topic
        config = MeshConfig(
            towers=topic.towers,
            listen=topic.listen,
            key_file=str(topic.key_file or ""),
            peers_file=str(topic.peers_file or ""),
        )
        self._token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as self._scope:
            async with open_mesh(config) as self._mesh:
                self._reader = FarmReader(self._mesh, topic.topic, bytes.fromhex(topic.farm_id))
                await self._reader.find_newest()
                self._ready.set()
                if self._follows:
                    await self._reader.follow()
                await trio.sleep_forever()
