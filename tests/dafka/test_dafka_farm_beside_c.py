"""A farm as a producer beside the C implementation, whose consumer and store read the log, whoever leads."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.lab.processes import free_ports
from garlicfarm.transport import Endpoint
from garlicfarm_plugin_dafka.farm_core import partition_of
from tests.dafka.c_programs import CProgram, c_consumer, c_store, c_tower
from tests.dafka.meshes import plain_tower
from tests.node.support.cluster import Cluster, cluster

pytestmark = pytest.mark.cdafka
DEADLINE_S = 120.0  # ends what hangs
LENGTH = 25
KEEP = {"snapshot_every_entries": 20, "keep_entries": LENGTH, "keep_bytes": 1 << 20}


@pytest.fixture(params=["our tower", "C tower"])
async def tower(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Endpoint]:
    is_ours = request.param == "our tower"
    opened: AbstractAsyncContextManager[Any] = plain_tower() if is_ours else c_tower(tmp_path, *free_ports(2))
    with trio.fail_after(DEADLINE_S):
        async with opened as running:
            yield running.endpoint


async def post(nodes: Cluster, member: int, posted: list[str], count: int) -> None:
    for _ in range(count):
        posted.append(f"entry-{len(posted)}")
        await nodes.node(member).farms["farm"].post(posted[-1].encode(), "alice")


def read_of(lines: Sequence[str], nodes: Cluster) -> list[str]:
    """The values that a C consumer has printed, in the order of their epochs; each record once, in order."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    partition = ""
    for line in lines:
        if line.startswith("log "):
            _, partition, line = line.split(" ", 2)
        found[partition].append(json.loads(line))
    epochs = [partition_of(nodes.farm_id, epoch) for epoch in range(len(found))]
    assert {*epochs} == {*found}
    entries = [entry for partition in epochs for entry in found[partition]]
    indexes = [entry["index"] for entry in entries]
    assert indexes == [*range(1, len(indexes) + 1)], "the whole log, each entry once and in order"
    return [entry["value"] for entry in entries if entry["type"] == "application"]


async def printed(program: CProgram, count: int) -> None:
    """Wait for so many records."""
    while sum(line.startswith("log ") for line in program.lines) < count:
        await program.printed(len(program.lines) + 1)


async def read_late(directory: Path, tower: Endpoint, count: int) -> list[str]:
    """What a new consumer in C prints, once one has printed so many records.

    It fetches the records of a head once. If the answers get lost while it connects, and no producer is there
    that repeats the head, it waits for ever. Then another one reads; what is stored, it can get.
    """
    while True:
        async with c_consumer(directory, tower, "log") as late:
            with trio.move_on_after(10):
                await printed(late, count)
                return late.lines


async def test_c_consumer_and_c_store_get_each_entry_once_when_leaders_die(
    tower: Endpoint, tmp_path: Path
) -> None:
    async with cluster(tmp_path, 3, start=False, retention=KEEP, epoch_length=LENGTH) as nodes:
        for directory in nodes.directories.values():
            with (directory / "garlicfarm.toml").open("a") as file:
                towers = json.dumps([str(tower)])
                file.write(f'\n[[farm.feed]]\nplugin = "dafka"\ntopic = "log"\ntowers = {towers}\n')
        await nodes.start()
        posted: list[str] = []
        async with c_store(tmp_path, tower), c_consumer(tmp_path, tower, "log") as live:
            for _ in range(2):
                leader = await nodes.leader()
                await post(nodes, leader, posted, 30)
                nodes.running[leader].scope.cancel()  # at once: not in order
                await nodes.running[leader].ended.wait()
                await post(nodes, await nodes.leader(), posted, 5)
                await printed(live, len(posted))
                await nodes.start(leader)
            assert read_of(live.lines, nodes) == posted
            await trio.sleep(3)  # the store has what the consumer has: it reads the same heads
            await nodes.stop(*nodes.running)
            assert read_of(await read_late(tmp_path, tower, len(posted)), nodes) == posted
