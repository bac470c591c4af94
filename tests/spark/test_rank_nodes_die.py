"""`garlicfarm rank` over a farm of processes that are killed under it, one and all, and started again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm.cli.lab_rank import RankProcess, rank_process
from garlicfarm.lab.processes import FAST, ProcessFarm, free_ports, process_farm
from garlicfarm.setup.provision import FarmPlan, MemberPlan
from tests.running import without_signs_of_life

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FIRST = "starting Spark; this takes half a minute"


@asynccontextmanager
async def posting_farm(directory: Path) -> AsyncIterator[ProcessFarm]:
    """Three nodes that post what simulated routers report, each at the same URL after a restart."""
    ports = free_ports(6)
    members = {
        node_id: MemberPlan(
            endpoint=f"ssl://127.0.0.1:{ports[node_id - 1]}",
            admin_url=f"https://127.0.0.1:{ports[node_id + 2]}",
            router={"plugin": "simulated", "seed": node_id},
        )
        for node_id in (1, 2, 3)
    }
    async with process_farm(directory, members, FarmPlan(raft=FAST)) as farm:
        async with farm.nodes[1].client() as client:
            await client.administer(farm.name, "interval", {"ms": 1000})
        yield farm


async def ranked_beyond(rank: RankProcess, index: int) -> int:
    """Until it ranks entries after ``index`` as the nodes do; up to which one."""
    with trio.fail_after(240):
        return await rank.wait_equal(index)


async def test_rank_goes_on_when_its_node_dies_and_when_all_die_and_come_back(tmp_path: Path) -> None:
    async with posting_farm(tmp_path / "farm") as farm, rank_process(tmp_path / "rank", farm) as rank:
        index = await ranked_beyond(rank, 0)
        await farm.kill(1)  # the first of its URLs: the one it reads from
        index = await ranked_beyond(rank, index + 5)
        assert without_signs_of_life(rank.log_file.read_text()).splitlines() == [
            FIRST
        ]  # that one died, nobody need know
        for node_id in (2, 3):
            await farm.kill(node_id)
        with trio.fail_after(240):
            while "starts again in" not in rank.log_file.read_text():  # noqa: ASYNC110  (another process)
                await trio.sleep(0.1)
        async with trio.open_nursery() as nursery:
            for node_id in farm.nodes:
                nursery.start_soon(farm.start, node_id)
        await ranked_beyond(rank, index + 5)
    first, *failures, last = without_signs_of_life(rank.log_file.read_text()).splitlines()
    assert (first, last) == (FIRST, "interrupted")
    for line in failures:
        assert line.startswith("the query failed and starts again in ")
        assert line.endswith("is the node running, and the URL right?")
