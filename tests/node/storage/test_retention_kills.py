"""Real processes that shorten their logs all the time are killed: nothing acknowledged is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from garlicfarm.errors import Compacted, NoQuorum, OutcomeUnknown, UnreachableError
from garlicfarm.lab.processes import ProcessFarm, process_farm
from garlicfarm.log_application import LogApplication
from garlicfarm.raft import Entry
from garlicfarm.setup.provision import FarmPlan
from garlicfarm.wire.messages import ValueType
from tests.node.support.cluster import let_post, posting
from tests.running import background, wait_until

KILLS = 10
RAFT = {
    "election_timeout_min_s": 0.6,
    "election_timeout_max_s": 1.2,
    "heartbeat_s": 0.2,
    "rpc_timeout_s": 1.0,
}
RETENTION = {"snapshot_every_entries": 30, "keep_entries": 100}


async def leader_of(farm: ProcessFarm, among: set[int]) -> int:
    with trio.fail_after(240):
        while True:
            for node_id in among:
                async with farm.nodes[node_id].client() as client:
                    status = await client.status(farm.name)
                if status["leader"] in among:
                    return int(status["leader"])
            await trio.sleep(0.05)


async def state_of(farm: ProcessFarm, node_id: int, upto: int) -> tuple[int, bytes, int]:
    """(index, state, first index) of a node that has applied ``upto``."""
    with trio.fail_after(240):
        while True:
            async with farm.nodes[node_id].client() as client:
                index, state = await client.state(farm.name)
                if index >= upto:
                    return index, state, (await client.status(farm.name))["first_index"]
            await trio.sleep(0.05)


@pytest.mark.slow
async def test_processes_killed_while_they_shorten_their_logs_agree_on_all_acknowledged(
    tmp_path: Path,
) -> None:
    rnd = random.Random(5)
    plan = FarmPlan(application="log", raft=RAFT, retention=RETENTION)
    acknowledged: dict[int, bytes] = {}
    log: dict[int, Entry] = {}
    async with process_farm(tmp_path / "farm", 3, plan, start=False) as farm:
        let_post(farm)
        async with trio.open_nursery() as nursery:
            for node_id in farm.nodes:
                nursery.start_soon(farm.start, node_id)
        ids = set(farm.nodes)

        async def post() -> None:
            async with posting(farm, timeout_s=3.0) as client:
                number = 0
                while True:
                    number += 1
                    batch = [b"entry %d.%d" % (number, i) for i in range(5)]
                    try:
                        last, _ = await client.post(batch)
                    except (OutcomeUnknown, NoQuorum):
                        continue
                    acknowledged.update(zip(range(last - 4, last + 1), batch, strict=True))

        async def read(node_id: int) -> None:
            """All that this node shows, before it is deleted."""
            after = 0
            while True:
                try:
                    async with farm.nodes[node_id].client() as client:
                        while True:
                            page, _ = await client.page(farm.name, after, wait_s=1, all_types=True)
                            for entry in page.entries:
                                assert log.setdefault(entry.index, entry) == entry
                            after = page.next_after
                except UnreachableError:
                    await trio.sleep(0.05)
                except Compacted as gone:
                    after = gone.first_index - 1

        async def be_killed() -> None:
            async with background(post):
                for _ in range(KILLS):
                    enough = len(acknowledged) + 100
                    await wait_until(lambda: len(acknowledged) >= enough)  # noqa: B023 - it is over before
                    leader = await leader_of(farm, ids)
                    victim = leader if rnd.random() < 0.7 else rnd.choice(sorted(ids - {leader}))
                    await trio.sleep(rnd.uniform(0, 0.1))
                    await farm.kill(victim)
                    await trio.sleep(rnd.uniform(0, 0.3))
                    await farm.start(victim)

        async with trio.open_nursery() as reading:
            for node_id in ids:
                reading.start_soon(read, node_id)
            await be_killed()
            with trio.fail_after(240):
                while True:  # until the last posts are in
                    states = [await state_of(farm, node_id, max(acknowledged)) for node_id in sorted(ids)]
                    last = max(index for index, _, _ in states)
                    if {index for index, _, _ in states} == {last} and len(log) == last:
                        break
                    await trio.sleep(0.1)
            reading.cancel_scope.cancel()

    chain = LogApplication()
    for index in sorted(log):
        if log[index].value_type is ValueType.APPLICATION:
            chain.apply(index, log[index].term, log[index].value)
    assert {state for _, state, _ in states} == {chain.snapshot()}
    assert max(first for _, _, first in states) > 100 * KILLS / 2, "the last leader shortened its log"
    assert {index: log[index].value for index in acknowledged} == acknowledged
    assert len(acknowledged) > 100 * KILLS
