"""The feed ``dafka``: a farm's log as a topic, one partition for each epoch.

A record is one Application entry, with the Configurations since the one before it, as lines of JSON
(`garlicfarm.feed.lines`). So it carries indexes and terms, and all records in their order are the whole log.
Only the leader sends records and heads; every member answers for what it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import trio

from garlicfarm.errors import Compacted, ConfigError, FellBehind, LocalProtocolError
from garlicfarm.feed import Entry, Feed, FeedSite, FeedSource, ValueType, encode_lines
from garlicfarm.plugin_settings import setting
from garlicfarm_plugin_dafka.codec import DirectRecord, GetHeads, encode
from garlicfarm_plugin_dafka.config import MeshConfig
from garlicfarm_plugin_dafka.farm_core import FarmProducerCore
from garlicfarm_plugin_dafka.mesh import Mesh, open_mesh
from garlicfarm_plugin_dafka.network import TICK_S, AnsweringRole, Network, send_in_bursts
from garlicfarm_plugin_dafka.serving import PAGE_BYTES, PAGE_RECORDS, Range

_IDLE_S = 0.001
"""A node that returns from a checkpoint within this time has nothing else to do."""
_BUSY_SHARE = 0.02
"""How much of its time a node that has other work spends on making and sending records. It lags then."""


class DafkaFeedConfig(MeshConfig, frozen=True, kw_only=True):
    """``[[farm.feed]]`` with ``plugin = "dafka"``."""

    topic: Annotated[
        str, setting("What consumers subscribe to, 1 to 255 bytes. Without it: the farm's name.")
    ] = ""


class DafkaFeed(Feed):
    """A Dafka node with a `FarmProducer`."""

    Config = DafkaFeedConfig
    has_epochs = True

    def __init__(self, config: Any, base_dir: Path, site: FeedSite) -> None:
        super().__init__(config, base_dir, site)
        self._topic = config.topic or site.farm
        try:
            encode(GetHeads(self._topic, "any"))
        except LocalProtocolError as error:
            raise ConfigError([f"feed dafka: topic: {error}"]) from error
        config.check(base_dir)

    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        async with open_mesh(self.config, self.base_dir) as mesh, trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_towers, mesh, source)
            await FarmProducer(mesh, self._topic, source).run(task_status)
        raise AssertionError("unreachable: the producer only ends by an error")

    async def _watch_towers(self, mesh: Mesh, source: FeedSource) -> NoReturn:
        """Report that readers cannot find this member."""
        problem = f"no tower answers, of {', '.join(self.config.towers)}"
        while True:
            source.report_problem("" if mesh.has_tower else problem)
            await trio.sleep(TICK_S)


class FarmProducer(AnsweringRole[FarmProducerCore]):
    """Produces and serves the log of ``source`` under ``topic``, on a node. `run` raises what ``source``
    raises."""

    def __init__(self, network: Network, topic: str, source: FeedSource) -> None:
        super().__init__("farm", network, FarmProducerCore(topic, source.farm_id, source.epoch_length))
        self._source = source

    def _tasks(self) -> tuple[Callable[[], Awaitable[Any]], ...]:
        return self._produce, self._watch_leader, *super()._tasks()

    # ------------------------------------------------------------------ producing

    async def _produce(self) -> NoReturn:
        """Send the records of new entries while this member leads. Earlier ones are not sent again, whether
        or not the leader before has sent them: the heads say that they exist."""
        while True:
            while not self._source.is_leader:
                await self._source.wait_leader_change()
            try:
                await self._produce_while_leader()
            except (Compacted, FellBehind) as error:
                self._log.warning("records-not-sent", cause=str(error))
                await trio.sleep(TICK_S)

    async def _produce_while_leader(self) -> None:
        core, source = self._core, self._source
        number = source.count_entries(source.commit_index)
        source.report_read(source.commit_index)
        whole = max(number, self._first_whole())  # of an earlier record, Configurations may be deleted
        maker = _RecordMaker()
        async for entries in source.entries(self._index_before(number), PAGE_BYTES):
            begun_at = trio.current_time()
            self._look()
            if not source.is_leader:
                break
            contents = maker.take(entries)
            records = [core.record(n, each) for n, each in enumerate(contents, number) if n >= whole]
            await send_in_bursts(self._network, records)
            source.report_read(entries[-1].index)
            number += len(contents)
            await _give_way(begun_at)

    def _index_before(self, number: int) -> int:
        """Behind which index the record of an entry begins, as far as that is stored."""
        source = self._source
        has_one_before = number > source.count_entries(source.first_index - 1)
        return source.find_entry(number - 1) if has_one_before else source.first_index - 1

    def _first_whole(self) -> int:
        """The number of the first entry whose record can be made: the one before it is stored, too."""
        source = self._source
        return 1 + source.count_entries(source.first_index - 1) if source.first_index > 1 else 0

    async def _watch_leader(self) -> NoReturn:
        while True:
            await self._source.wait_leader_change()
            await self._tick()

    async def _tick(self) -> None:
        self._look()
        if not self._source.is_leader:
            self._source.report_read(self._source.commit_index)
        await send_in_bursts(self._network, self._core.tick(trio.current_time()))

    def _look(self) -> None:
        """Tell the core what the log holds now."""
        core, source = self._core, self._source
        core.lead(source.is_leader)
        try:
            core.on_log(self._first_whole(), source.count_entries(source.commit_index))
        except Compacted:
            return  # a snapshot replaces the log just now
        self._subscribe()

    # ------------------------------------------------------------------ serving

    async def _receive(self) -> NoReturn:
        while True:
            for command, _ in await self._network.receive():
                self._core.receive(command)
            self._wake_answers()

    async def _send_page(self) -> None:
        fetches = self._core.fetches
        if (turn := fetches.turn()) is not None:
            first = turn.first
            fetches.advance(turn, first, first + await self._send_records(turn, first))

    async def _send_records(self, turn: Range, first: int) -> int:
        """Answer the beginning of a FETCH, from the sequence ``first`` on; how many records were sent. None:
        they are deleted, and the next FETCH is told where the partition begins."""
        source, number = self._source, self._core.number(turn.partition, first)
        if number is None:
            return 0
        maker, contents = _RecordMaker(), list[bytes]()
        try:
            upto = source.find_entry(number + min(turn.end - first, PAGE_RECORDS) - 1)
            async for entries in source.entries(self._index_before(number), PAGE_BYTES, upto=upto):
                contents += maker.take(entries)
                if contents:
                    break
        except (Compacted, FellBehind):
            return 0
        place = turn.requester, turn.topic, turn.partition
        begun_at = trio.current_time()
        found = [DirectRecord(*place, sequence, each) for sequence, each in enumerate(contents, first)]
        await send_in_bursts(self._network, found)
        await _give_way(begun_at)
        return len(found)


async def _give_way(begun_at: float) -> None:
    """Let the node do its other work, which comes first: all of it has waited since ``begun_at``."""
    done_at = trio.current_time()
    await trio.lowlevel.checkpoint()
    if trio.current_time() - done_at > _IDLE_S:
        await trio.sleep((done_at - begun_at) * (1 / _BUSY_SHARE - 1))


class _RecordMaker:
    """Makes the contents of records of the entries of a log, from behind an Application entry on."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []  # of the record that is not whole yet

    def take(self, entries: Sequence[Entry]) -> list[bytes]:
        """The contents that become whole with these entries."""
        contents = []
        for entry in entries:
            self._entries.append(entry)
            if entry.value_type is ValueType.APPLICATION:
                contents.append(encode_lines(self._entries)[:-1])
                self._entries = []
        return contents
