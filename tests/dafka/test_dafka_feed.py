"""The feed `dafka` on real sockets: the contract of feeds, and a farm whose leader dies in mid-stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.errors import ConfigError
from garlicfarm.feed.contract import Feed, FeedSite
from garlicfarm.feed.lines import decode_lines
from garlicfarm.testing.feed_suite import FeedSuite
from garlicfarm.wire import ValueType
from garlicfarm_plugin_dafka.config import MeshConfig
from garlicfarm_plugin_dafka.consumer import DafkaConsumer, open_consumer
from garlicfarm_plugin_dafka.consumer_core import ReceivedRecord
from garlicfarm_plugin_dafka.farm_core import partition_of
from garlicfarm_plugin_dafka.farm_feed import DafkaFeed, DafkaFeedConfig
from garlicfarm_plugin_dafka.store import open_store
from garlicfarm_plugin_dafka.tower import Tower
from tests.dafka.meshes import plain_tower, until
from tests.node.support.cluster import Cluster, cluster

HANG_GUARD_S = 90.0


@pytest.fixture
async def tower() -> AsyncIterator[Tower]:
    async with plain_tower() as tower:
        yield tower


def values_of(records: Sequence[ReceivedRecord]) -> list[bytes]:
    """The values of the Application entries in these records."""
    values = []
    for record in records:
        *_, entry = decode_lines(record.content)
        assert entry.value_type is ValueType.APPLICATION
        values.append(entry.value)
    return values


class TestDafkaFeed(FeedSuite):
    @pytest.fixture
    def feed(self, tower: Tower, tmp_path: Path) -> Feed:
        site = FeedSite(farm="farm", node_id=1, name="dafka", directory=tmp_path / "site")
        return DafkaFeed(DafkaFeedConfig(towers=(str(tower.endpoint),)), tmp_path, site)

    @pytest.fixture
    async def arrived(self, tower: Tower) -> AsyncIterator[Callable[[], Awaitable[Sequence[bytes]]]]:
        found: list[ReceivedRecord] = []

        async def follow() -> None:
            async for record in consumer:
                found.append(record)

        async def arrived() -> list[bytes]:
            """What has arrived once nothing more has: the suite does not say how much it waits for."""
            known = -1
            while known < len(found):
                known = len(found)
                await trio.sleep(2)
            return values_of(found)

        config = MeshConfig(towers=(str(tower.endpoint),))
        async with open_consumer(config, ["farm"]) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            yield arrived
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"topic": "a\0b"}, "topic: "),
        ({"topic": "x" * 256}, "topic: "),
        ({"listen": "tcp://192.0.2.1:5600"}, "without keys, only loopback addresses"),
        ({"towers": ()}, "name one at least"),
    ],
)
def test_table_that_is_of_no_use_is_refused(table: dict[str, Any], words: str, tmp_path: Path) -> None:
    site = FeedSite(farm="farm", node_id=1, name="dafka", directory=tmp_path / "site")
    with pytest.raises(ConfigError, match=words):
        DafkaFeed(DafkaFeedConfig(**table), tmp_path, site)


def configure(nodes: Cluster, tower: Tower) -> None:
    for directory in nodes.directories.values():
        with (directory / "garlicfarm.toml").open("a") as file:
            towers = json.dumps([str(tower.endpoint)])
            file.write(f'\n[[farm.feed]]\nplugin = "dafka"\ntopic = "log"\ntowers = {towers}\n')


async def take(consumer: DafkaConsumer, found: list[ReceivedRecord]) -> None:
    async for record in consumer:
        found.append(record)


@pytest.mark.slow
async def test_leader_that_dies_in_mid_stream_costs_no_record_and_repeats_none(
    tower: Tower, tmp_path: Path
) -> None:
    config = MeshConfig(towers=(str(tower.endpoint),))
    keep = {"snapshot_every_entries": 20, "keep_entries": 25, "keep_bytes": 1 << 20}
    async with (
        cluster(tmp_path, 3, start=False, retention=keep, epoch_length=25) as nodes,
        open_store(config, tmp_path / "store") as store,
        open_consumer(config, ["log"]) as consumer,
        trio.open_nursery() as nursery,
    ):
        configure(nodes, tower)
        await nodes.start()
        found: list[ReceivedRecord] = []
        nursery.start_soon(take, consumer, found)
        posted: list[bytes] = []
        with trio.fail_after(HANG_GUARD_S):
            for _ in range(2):
                leader = await nodes.leader()
                farm = nodes.node(leader).farms["farm"]
                for _ in range(30):
                    posted.append(b"%d" % len(posted))
                    await farm.post(posted[-1], "alice")
                nodes.running[leader].scope.cancel()  # at once: not in order
                await nodes.running[leader].ended.wait()
                other = await nodes.leader()
                for _ in range(5):
                    posted.append(b"%d" % len(posted))
                    await nodes.node(other).farms["farm"].post(posted[-1], "alice")
                await until(lambda: len(found) >= len(posted))
                await nodes.start(leader)
            epochs = [partition_of(nodes.farm_id, epoch) for epoch in range(3)]
            in_order = sorted(found, key=lambda each: (epochs.index(each.partition), each.sequence))
            assert [(epochs.index(each.partition), each.sequence) for each in in_order] == [
                divmod(number, 25) for number in range(len(posted))
            ]
            assert values_of(in_order) == posted
            for partition in epochs:
                sequences = [each.sequence for each in found if each.partition == partition]
                assert sequences == sorted(sequences)
            # A consumer that comes late gets the same from the members and the store.
            late: list[ReceivedRecord] = []
            async with open_consumer(config, ["log"]) as other_consumer, trio.open_nursery() as reading:
                reading.start_soon(take, other_consumer, late)
                await until(lambda: len(late) >= len(posted))
                reading.cancel_scope.cancel()
            assert sorted(late, key=lambda each: (epochs.index(each.partition), each.sequence)) == in_order
            await until(
                lambda: (
                    {each.partition: each.next for each in store.partitions()}
                    == dict(zip(epochs, (25, 25, 20), strict=True))
                )
            )
            assert {each.tail for each in store.partitions()} == {0}
        nursery.cancel_scope.cancel()
