"""A farm's topic by Raft index: any range, from any place that is known, and what is deleted is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from garlicfarm.errors import Compacted, UnreachableError
from garlicfarm.raft import Entry
from garlicfarm.wire import ValueType
from garlicfarm_plugin_dafka import farm_reader
from garlicfarm_plugin_dafka.farm_reader import FarmReader
from garlicfarm_plugin_dafka.store import DafkaStore, run_store
from tests.dafka.memory_network import MemoryNetwork
from tests.dafka.meshes import until
from tests.dafka.test_dafka_farm_feed import FarmInMemory, farm_of, no_threads

__all__ = ["no_threads"]


def fill(farm: FarmInMemory, count: int) -> None:
    """Every fourth entry is a Configuration, and the last one is none."""
    for number in range(len(farm.log), len(farm.log) + count):
        kind = ValueType.APPLICATION if number % 4 else ValueType.CONFIGURATION
        farm.commit(b"%d" % number, value_type=kind)


async def all_stored(store: DafkaStore, count: int) -> None:
    with trio.fail_after(240):
        await until(lambda: sum(each.next for each in store.partitions()) >= count)


@asynccontextmanager
async def stored_log(network: MemoryNetwork, directory: Path) -> AsyncIterator[FarmInMemory]:
    """A store that has a log of 100 indexes in epochs of 10 records, and no member any more."""
    async with farm_of(1, network) as farm, run_store(network.node("s"), directory) as store:
        farm.lead(0)
        fill(farm, 100)
        await all_stored(store, 75)
        farm.kill(0)
        yield farm


async def read(reader: FarmReader, after: int, upto: int) -> list[tuple[int, bytes]]:
    found: list[Entry] = []
    while after < upto:
        found += await reader.read(after, upto)
        after = found[-1].index
    return [(entry.index, entry.value) for entry in found]


def expected(after: int, upto: int) -> Sequence[tuple[int, bytes]]:
    return [(index, b"%d" % (index - 1)) for index in range(after + 1, upto + 1)]


async def test_any_range_is_read_exactly(network, autojump_clock, tmp_path):
    async with stored_log(network, tmp_path) as farm:
        for after, upto in [(0, 100), (0, 1), (1, 2), (37, 61), (99, 100), (12, 13), (50, 100)]:
            reader = FarmReader(network.node(f"r{after}-{upto}"), "farm", farm.sources[0].farm_id)
            await reader.find_newest()
            assert reader.index == 100
            assert await read(reader, after, upto) == expected(after, upto)


async def test_reader_goes_on_from_what_it_read_last(network, autojump_clock, tmp_path):
    """Also far beyond the newest record that it knew, and back."""
    async with farm_of(1, network) as farm, run_store(network.node("s"), tmp_path) as store:
        farm.lead(0)
        fill(farm, 8)
        await all_stored(store, 6)
        reader = FarmReader(network.node("r"), "farm", farm.sources[0].farm_id)
        await reader.find_newest()
        assert reader.index == 8
        fill(farm, 2000)
        await all_stored(store, 6 + 1500)
        assert await read(reader, 1900, 2008) == expected(1900, 2008)
        assert await read(reader, 2, 30) == expected(2, 30)


async def test_page_ends_where_it_is_full(network, autojump_clock, tmp_path, monkeypatch):
    monkeypatch.setattr(farm_reader, "PAGE_BYTES", 1)
    async with stored_log(network, tmp_path) as farm:
        reader = FarmReader(network.node("r"), "farm", farm.sources[0].farm_id)
        await reader.find_newest()
        first = await reader.read(0, 100)
        assert 0 < len(first) <= 100
        assert await read(reader, 0, 100) == expected(0, 100)


async def test_follower_knows_the_newest_index_through_epochs(network, autojump_clock):
    async with farm_of(1, network) as farm, trio.open_nursery() as nursery:
        farm.lead(0)
        fill(farm, 4)
        reader = FarmReader(network.node("r"), "farm", farm.sources[0].farm_id)
        await reader.find_newest()
        nursery.start_soon(reader.follow)
        for _ in range(30):
            fill(farm, 4)
            with trio.fail_after(60):
                await until(lambda: reader.index == len(farm.log))
        nursery.cancel_scope.cancel()


async def test_entries_that_no_node_has_are_told_with_the_first_that_is_left(network, autojump_clock):
    async with farm_of(1, network) as farm:
        farm.lead(0)
        fill(farm, 100)
        farm.sources[0].compact(45)  # the members' records begin behind an Application entry
        reader = FarmReader(network.node("r"), "farm", farm.sources[0].farm_id)
        await reader.find_newest()
        with pytest.raises(Compacted) as raised:
            await reader.read(0, 100)
        first = raised.value.first_index
        assert first >= 45
        assert await read(reader, first - 1, 100) == expected(first - 1, 100)


async def test_topic_of_another_farm_is_none(network, autojump_clock, tmp_path):
    async with stored_log(network, tmp_path):
        reader = FarmReader(network.node("r"), "farm", bytes(16))
        with pytest.raises(UnreachableError, match="no node has records of this farm under the topic farm"):
            await reader.find_newest()


async def test_index_that_does_not_come_is_told(network, autojump_clock, tmp_path):
    async with stored_log(network, tmp_path) as farm:
        reader = FarmReader(network.node("r"), "farm", farm.sources[0].farm_id)
        await reader.find_newest()
        with pytest.raises(UnreachableError, match="the topic farm has not reached index 101"):
            await reader.read(100, 101)
