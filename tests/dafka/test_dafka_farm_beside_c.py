"""A farm as a producer beside the C implementation, whose consumer and store read the log, whoever leads."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import trio

from garlicfarm.errors import NoQuorum, NotLeader, OutcomeUnknown
from garlicfarm.transport import Endpoint
from garlicfarm_plugin_dafka import farm_feed
from garlicfarm_plugin_dafka.codec import DirectHead, GetHeads, StoreHello, subscription_prefix
from garlicfarm_plugin_dafka.config import MeshConfig
from garlicfarm_plugin_dafka.farm_core import partition_of
from garlicfarm_plugin_dafka.mesh import Mesh, open_mesh
from garlicfarm_plugin_dafka.network import TICK_S, Peer
from tests.dafka.c_programs import CProgram, c_consumer, c_store
from tests.dafka.transcripts import FarmRecorder
from tests.node.support.cluster import Cluster, cluster

pytestmark = pytest.mark.cdafka
TOPIC = "log"
LENGTH = 25
KEEP = {"snapshot_every_entries": 20, "keep_entries": 2 * LENGTH, "keep_bytes": 1 << 20}
"""More than is posted until readers have caught up: a C reader asks once a second for what it lacks, and for
ever in vain if that is deleted by then."""


@pytest.fixture
def tower(either_tower: Endpoint) -> Endpoint:
    return either_tower


async def post(nodes: Cluster, posted: list[str], count: int) -> int:
    """Post more entries until each is committed, whoever leads by then; returns how many the log has.
    One of a leader that was deposed meanwhile may be in it twice."""
    for _ in range(count):
        posted.append(f"entry-{len(posted)}")
        index = 0
        while not index:
            leader = await nodes.leader()
            with suppress(OutcomeUnknown, NotLeader, NoQuorum):
                index, _ = await nodes.node(leader).farms["farm"].post(posted[-1].encode(), "alice")
    await nodes.applied(index)
    number: int = nodes.node(leader).farms["farm"].status()["application_entries"]
    return number


def read_of(lines: Sequence[str], nodes: Cluster) -> list[str]:
    """The values that a C consumer has printed, in the order of their epochs; each record once, in order. A
    value that was posted twice counts once."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    partition = ""
    for line in lines:
        if line.startswith(f"{TOPIC} "):
            _, partition, line = line.split(" ", 2)
        found[partition].append(json.loads(line))
    epochs = [partition_of(nodes.farm_id, epoch) for epoch in range(len(found))]
    assert {*epochs} == {*found}
    entries = [entry for partition in epochs for entry in found[partition]]
    indexes = [entry["index"] for entry in entries]
    assert indexes == [*range(1, len(indexes) + 1)], "the whole log, each entry once and in order"
    return list(dict.fromkeys(entry["value"] for entry in entries if entry["type"] == "application"))


async def printed(program: CProgram, count: int) -> None:
    """Wait for so many records."""
    while sum(line.startswith(f"{TOPIC} ") for line in program.lines) < count:
        await program.printed(len(program.lines) + 1)


async def until_stored(tower: Endpoint, nodes: Cluster, count: int) -> None:
    """Wait until the store has so many entries: it is asked for its heads until it names these."""
    whole, rest = divmod(count, LENGTH)
    counts = [LENGTH] * whole + [rest] * bool(rest)
    wanted = {partition_of(nodes.farm_id, epoch): count - 1 for epoch, count in enumerate(counts)}
    async with open_mesh(MeshConfig(towers=(str(tower),))) as mesh, trio.open_nursery() as nursery:
        for kind in (StoreHello, DirectHead):
            mesh.subscribe(subscription_prefix(kind, mesh.address))
        nursery.start_soon(ask_for_heads, mesh)
        stores = set[Peer]()  # those that say hello: the members tell their heads, too
        heads = defaultdict[Peer, dict[str, int]](dict)
        while wanted not in [heads[store] for store in stores]:
            for command, sender in await mesh.receive():
                if isinstance(command, StoreHello):
                    stores.add(sender)
                elif isinstance(command, DirectHead):
                    heads[sender][command.partition] = command.sequence
        nursery.cancel_scope.cancel()


async def ask_for_heads(mesh: Mesh) -> None:
    while True:
        mesh.send_all([GetHeads(TOPIC, mesh.address)])
        await trio.sleep(TICK_S)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> FarmRecorder:
    """Notes what passes the feeds of all members."""
    recorder = FarmRecorder()
    monkeypatch.setattr(farm_feed, "open_mesh", recorder.open_mesh)
    monkeypatch.setattr(farm_feed, "FarmProducer", recorder.producer)
    return recorder


async def test_c_consumer_and_c_store_get_each_entry_once_when_leaders_die(tower, recorder, tmp_path):
    farm: dict[str, Any] = {"retention": KEEP, "epoch_length": LENGTH}
    async with cluster(tmp_path, 3, start=False, **farm) as nodes:
        for directory in nodes.directories.values():
            with (directory / "garlicfarm.toml").open("a") as file:
                towers = json.dumps([str(tower)])
                file.write(f'\n[[farm.feed]]\nplugin = "dafka"\ntopic = "{TOPIC}"\ntowers = {towers}\n')
        await nodes.start()
        posted: list[str] = []
        async with c_store(tmp_path, tower), c_consumer(tmp_path, tower, TOPIC) as live:
            while not live.lines:  # what it fetches too early it fetches again when another record comes
                await post(nodes, posted, 1)
                with trio.move_on_after(1):
                    await live.printed(1)
            for _ in range(2):
                await post(nodes, posted, 30)
                leader = await nodes.leader()
                nodes.running[leader].scope.cancel()  # at once: not in order
                await nodes.running[leader].ended.wait()
                count = await post(nodes, posted, 5)
                await printed(live, count)
                await until_stored(tower, nodes, count)
                await nodes.start(leader)
            assert read_of(live.lines, nodes) == posted
            await nodes.stop(*nodes.running)
            async with c_consumer(tmp_path, tower, TOPIC) as late:
                await printed(late, count)
                assert read_of(late.lines, nodes) == posted
            for name, each in zip(
                ("farm-leader-that-dies", "farm-next-leader"), recorder.leaders, strict=False
            ):
                each.save(name, "farm", farm=nodes.farm_id.hex(), epoch_length=LENGTH)
