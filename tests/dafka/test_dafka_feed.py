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
from garlicfarm.lab.processes import free_ports
from garlicfarm.testing.feed_suite import FeedSuite, MemorySource
from garlicfarm.wire import ValueType
from garlicfarm_plugin_dafka.config import MeshConfig, TowerConfig
from garlicfarm_plugin_dafka.consumer import DafkaConsumer, open_consumer, run_consumer
from garlicfarm_plugin_dafka.consumer_core import ConsumerCore, ReceivedRecord
from garlicfarm_plugin_dafka.farm_core import partition_of
from garlicfarm_plugin_dafka.farm_feed import DafkaFeed, DafkaFeedConfig
from garlicfarm_plugin_dafka.store import open_store
from garlicfarm_plugin_dafka.tower import Tower, open_tower
from tests.dafka.meshes import KeyRing
from tests.node.support.cluster import STEADY, Cluster, cluster
from tests.running import wait_until


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
    async def arrived(
        self, tower: Tower, source: MemorySource
    ) -> AsyncIterator[Callable[[], Awaitable[Sequence[bytes]]]]:
        found: list[ReceivedRecord] = []

        async def follow() -> None:
            async for record in consumer:
                found.append(record)

        async def arrived() -> list[bytes]:
            """What has arrived once there is a record of each entry that the source has."""
            await wait_until(lambda: len(found) >= source.count_entries(source.commit_index))
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
        ({"towers": ()}, "name at least one"),
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
async def test_leader_that_dies_in_mid_stream_costs_no_record_and_repeats_none(tower, tmp_path):
    config = MeshConfig(towers=(str(tower.endpoint),))
    keep = {"snapshot_every_entries": 20, "keep_entries": 25, "keep_bytes": 1 << 20}
    async with (
        cluster(tmp_path, 3, start=False, raft=STEADY, retention=keep, epoch_length=25) as nodes,
        open_store(config, tmp_path / "store") as store,
        open_consumer(config, ["log"]) as consumer,
        trio.open_nursery() as nursery,
    ):
        configure(nodes, tower)
        await nodes.start()
        found: list[ReceivedRecord] = []
        nursery.start_soon(take, consumer, found)
        posted: list[bytes] = []
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
            await wait_until(lambda: len(found) >= len(posted))
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
            await wait_until(lambda: len(late) >= len(posted))
            reading.cancel_scope.cancel()
        assert sorted(late, key=lambda each: (epochs.index(each.partition), each.sequence)) == in_order
        await wait_until(
            lambda: (
                {each.partition: each.next for each in store.partitions()}
                == dict(zip(epochs, (25, 25, 20), strict=True))
            )
        )
        assert {each.tail for each in store.partitions()} == {0}
        nursery.cancel_scope.cancel()


async def test_farm_with_the_key_of_a_producer_is_heard_by_those_with_other_roles(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path, farm="producer", store="store", reader="consumer")
    source = MemorySource()
    source.commit(b"before")
    async with ring.tower() as tower, trio.open_nursery() as nursery:
        endpoint = f"{tower.endpoint}&peer=tower"
        table = DafkaFeedConfig(towers=(endpoint,), key_file="farm.key", peers_file="peers.toml")
        site = FeedSite(farm="farm", node_id=1, name="dafka", directory=tmp_path / "site")
        config = MeshConfig(towers=(endpoint,), key_file="store.key", peers_file="peers.toml")
        await nursery.start(DafkaFeed(table, tmp_path, site).run, source)
        async with (
            open_store(config, tmp_path / "store", base_dir=tmp_path) as store,
            ring.mesh("reader", tower) as mesh,
        ):
            async with run_consumer(mesh, ConsumerCore(mesh.address, ["farm"])) as consumer:
                source.commit(b"later")
                assert values_of([await anext(consumer) for _ in range(2)]) == [b"before", b"later"]
            await wait_until(lambda: [each.next for each in store.partitions()] == [2])
        nursery.cancel_scope.cancel()


async def test_node_without_a_tower_commits_and_ends_as_any_and_says_what_is_missing(tmp_path: Path) -> None:
    port, out_port = free_ports(2)
    endpoint = f"tcp://127.0.0.1:{port}?out={out_port}"
    async with cluster(tmp_path, start=False) as nodes:
        with (nodes.directories[1] / "garlicfarm.toml").open("a") as file:
            file.write(f'\n[[farm.feed]]\nplugin = "dafka"\ntowers = ["{endpoint}"]\n')
        await nodes.start()
        await nodes.leader()
        view = nodes.node().farms["farm"]
        index, _ = await view.post(b"one", "alice")
        await wait_until(lambda: view.status()["feeds"][0]["index"] == index)
        (row,) = view.status()["feeds"]
        assert (row["state"], row["lag"]) == ("running", 0)
        missing = f"no tower answers, of {endpoint}"
        await wait_until(lambda: view.status()["feeds"][0]["problem"] == missing)
        async with open_tower(TowerConfig(listen=endpoint)):
            await wait_until(lambda: view.status()["feeds"][0]["problem"] is None)
        await nodes.stop(1)
