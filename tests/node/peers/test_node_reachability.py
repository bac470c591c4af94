"""Whom a follower takes for dead: a connection that is open proves nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from garlicfarm.lab.processes import FAST, NodeProcess, ProcessFarm, process_farm
from garlicfarm.setup.provision import FarmPlan

INTERVAL_MS = 1000


async def roles(farm: ProcessFarm, node: NodeProcess) -> dict[int, str]:
    async with node.client() as client:
        return {row["id"]: row["role"] for row in (await client.status(farm.name))["members"]}


@pytest.mark.slow
async def test_follower_that_hangs_is_unreachable_for_the_other_follower_too(tmp_path: Path) -> None:
    with trio.fail_after(240):
        async with process_farm(tmp_path / "farm", 3, FarmPlan(raft=FAST)) as farm:
            seen: dict[int, str] = {}
            while sorted(seen.values()) != ["follower", "follower", "leader"]:
                await trio.sleep(0.1)
                seen = await roles(farm, farm.nodes[1])
            leader = next(node for node, role in seen.items() if role == "leader")
            hangs, watches = sorted({1, 2, 3} - {leader})
            async with farm.nodes[leader].client() as client:
                since, _ = await client.administer(farm.name, "interval", {"ms": INTERVAL_MS})
                newest = 0
                while newest <= since:  # a member is judged by the interval that its newest status names
                    await trio.sleep(0.1)
                    rows = (await client.ranking(farm.name))["members"]
                    newest = min(row["index"] or 0 for row in rows)
            process = farm.nodes[hangs].process
            assert process is not None
            process.send_signal(signal.SIGSTOP)
            try:
                while (await roles(farm, farm.nodes[watches]))[hangs] != "unreachable":  # noqa: ASYNC110
                    await trio.sleep(0.1)
                async with farm.nodes[watches].client() as client:
                    # On a busy machine, the two may be about to elect.
                    while not (status := await client.status(farm.name))["quorum"]:  # noqa: ASYNC110
                        await trio.sleep(0.1)
                assert status["fault_tolerance"] == 0
            finally:
                process.send_signal(signal.SIGCONT)
            while (await roles(farm, farm.nodes[watches]))[hangs] != "follower":  # noqa: ASYNC110
                await trio.sleep(0.1)
