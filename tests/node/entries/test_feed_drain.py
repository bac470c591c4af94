"""Readers that drain a long log take no time away from the heartbeats: three real processes, real TLS."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from garlicfarm.client import AdminClient
from garlicfarm.client.farm import FarmClient
from garlicfarm.config.model import PRESETS
from garlicfarm.errors import NoQuorum, OutcomeUnknown
from garlicfarm.lab.processes import process_farm
from garlicfarm.setup.provision import FarmPlan
from tests.node.support.cluster import let_post, posting
from tests.process_farms import leader_of, status_when

ENTRIES = int(os.environ.get("FEED_ENTRIES", "200000"))
BATCH = 500
WRITERS = 4
READERS = 3  # at the leader, and as many at a follower
RAFT = PRESETS["clearnet"]


async def fill(client: FarmClient) -> int:
    """Returns the newest index. An election, as on a busy machine, leaves some entries twice in the log."""
    newest = 0

    async def post(first: int) -> None:
        nonlocal newest
        for number in range(first, ENTRIES, WRITERS * BATCH):
            batch = [b"%d" % each for each in range(number, min(number + BATCH, ENTRIES))]
            is_posted = False
            while not is_posted:
                with suppress(NoQuorum, OutcomeUnknown):
                    index, _ = await client.post(batch)
                    newest, is_posted = max(newest, index), True

    async with trio.open_nursery() as nursery:
        for writer in range(WRITERS):
            nursery.start_soon(post, writer * BATCH)
    return newest


async def drain(client: AdminClient, farm: str, digests: list[tuple[int, bytes]]) -> None:
    seen, digest = bytearray(ENTRIES), hashlib.sha256()
    async for entry in client.log(farm):
        seen[int(entry.value)] = 1
        digest.update(b"%d %d %d " % (entry.index, entry.term, len(entry.value)) + entry.value)
    digests.append((sum(seen), digest.digest()))


def loop_cpu_s(pid: int) -> float:
    """The processor time of a process's first thread, in which its event loop runs."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


async def watch(client: AdminClient, farm: str, pid: int, turns_s: list[float]) -> None:
    """How long the event loop of this node runs before it answers: heartbeats wait for as long."""
    while True:
        begun = loop_cpu_s(pid)
        await client.status(farm)
        turns_s.append(loop_cpu_s(pid) - begun)


@pytest.mark.slow
async def test_readers_draining_a_follower_and_the_leader_delay_no_heartbeat(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    plan = FarmPlan(application="log", raft=RAFT, retention={"keep_entries": 10 * ENTRIES})
    async with process_farm(tmp_path / "farm", 3, plan, start=False) as farm:
        let_post(farm)
        for node_id in farm.nodes:
            await farm.start(node_id)
        begun = trio.current_time()
        async with posting(farm) as writer:
            newest = await fill(writer)
        filled = trio.current_time()
        leader = await leader_of(farm)
        follower = leader % 3 + 1
        await status_when(farm, follower, lambda status: status["commit"] >= newest)
        digests: list[tuple[int, bytes]] = []
        turns_s: list[float] = []
        process = farm.nodes[leader].process
        assert process is not None
        async with (
            farm.nodes[leader].client() as at_leader,
            farm.nodes[leader].client() as watcher,
            farm.nodes[follower].client() as at_follower,
            trio.open_nursery() as watching,
        ):
            watching.start_soon(watch, watcher, farm.name, process.pid, turns_s)
            async with trio.open_nursery() as draining:
                for client in (at_leader, at_follower) * READERS:
                    draining.start_soon(drain, client, farm.name, digests)
            watching.cancel_scope.cancel()
        drained = trio.current_time()
    report = {
        "fill_s": filled - begun,
        "drain_s": drained - filled,
        "turns": len(turns_s),
        "longest_turn_s": max(turns_s),
        "all_turns_s": sum(turns_s),
    }
    for name, figure in report.items():
        record_property(name, figure)
    print({name: round(figure, 3) for name, figure in report.items()})
    assert len(digests) == 2 * READERS
    assert len(set(digests)) == 1
    assert digests[0][0] == ENTRIES
    assert len(turns_s) >= 10
    assert max(turns_s) < RAFT["election_timeout_min_s"] - RAFT["heartbeat_s"]
