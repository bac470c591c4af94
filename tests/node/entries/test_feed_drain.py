"""Readers that drain a long log take no time away from the heartbeats: three real processes, real TLS."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from garlicfarm.client import AdminClient
from garlicfarm.client.farm import FarmClient
from garlicfarm.config.model import PRESETS
from garlicfarm.lab.processes import ProcessFarm, process_farm
from garlicfarm.setup.provision import FarmPlan
from tests.node.support.cluster import let_post, posting

ENTRIES = int(os.environ.get("FEED_ENTRIES", "200000"))
BATCH = 500
WRITERS = 4
READERS = 3  # at the leader, and as many at a follower
RAFT = PRESETS["clearnet"]


async def leader_and_term(farm: ProcessFarm) -> tuple[int, int]:
    with trio.fail_after(240):
        while True:
            async with farm.nodes[1].client() as client:
                status = await client.status(farm.name)
            if status["leader"]:
                return status["leader"], status["term"]
            await trio.sleep(0.05)


async def fill(client: FarmClient) -> None:
    async def post(first: int) -> None:
        for number in range(first, ENTRIES, WRITERS * BATCH):
            await client.post([b"entry %d" % (number + i) for i in range(min(BATCH, ENTRIES - number))])

    async with trio.open_nursery() as nursery:
        for writer in range(WRITERS):
            nursery.start_soon(post, writer * BATCH)


async def drain(client: AdminClient, farm: str, digests: list[tuple[int, bytes]]) -> None:
    count, digest = 0, hashlib.sha256()
    async for entry in client.log(farm):
        count += 1
        digest.update(b"%d %d %d " % (entry.index, entry.term, len(entry.value)) + entry.value)
    digests.append((count, digest.digest()))


async def watch(client: AdminClient, farm: str, silences: list[float]) -> None:
    while True:
        status = await client.status(farm)
        assert status["role"] == "leader"
        silences += [member["last_contact_s"] for member in status["members"]]
        await trio.sleep(0.02)


@pytest.mark.slow
async def test_readers_draining_a_follower_and_the_leader_delay_no_heartbeat(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    plan = FarmPlan(application="log", raft=RAFT, retention={"keep_entries": 10 * ENTRIES})
    async with process_farm(tmp_path / "farm", 3, plan, start=False) as farm:
        let_post(farm)
        for node_id in farm.nodes:
            await farm.start(node_id)
        leader, term = await leader_and_term(farm)
        begun = trio.current_time()
        async with posting(farm) as writer:
            await fill(writer)
        filled = trio.current_time()
        follower = leader % 3 + 1
        digests: list[tuple[int, bytes]] = []
        silences: list[float] = []
        async with (
            farm.nodes[leader].client() as at_leader,
            farm.nodes[leader].client() as watcher,
            farm.nodes[follower].client() as at_follower,
            trio.open_nursery() as watching,
        ):
            watching.start_soon(watch, watcher, farm.name, silences)
            async with trio.open_nursery() as draining:
                for client in (at_leader, at_follower) * READERS:
                    draining.start_soon(drain, client, farm.name, digests)
            watching.cancel_scope.cancel()
        drained = trio.current_time()
        assert await leader_and_term(farm) == (leader, term), "nobody missed the leader's heartbeats"
    report = {
        "fill_s": filled - begun,
        "drain_s": drained - filled,
        "polls": len(silences) // 3,
        "longest_silence_s": max(silences),
    }
    for name, figure in report.items():
        record_property(name, figure)
    print({name: round(figure, 3) for name, figure in report.items()})
    assert len(digests) == 2 * READERS
    assert len(set(digests)) == 1
    assert digests[0][0] == ENTRIES
    assert len(silences) >= 3 * 10
