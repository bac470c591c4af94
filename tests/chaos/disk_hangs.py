"""The fault "the disk hangs": syncs are not answered, and no process ends because of it."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import trio

from tests.chaos.chaos_farm import ChaosFarm


async def hang_disks(farm: ChaosFarm, nodes: Collection[int], for_s: float) -> int:
    """Let a minority's disks hang until their nodes have noticed, another one leads and commits, and for a
    while longer; then they answer, and the nodes notice that too. Returns who led."""
    for node_id in nodes:
        await farm.disks[node_id].fail("hang")
    for node_id in nodes:
        noticed = partial(_hangs, farm, node_id, True)
        await farm.until(f"node {node_id} did not notice that its disk hangs", noticed)
    leader = await farm.until("no node whose disk answers led", partial(_leads_among_others, farm, nodes))
    await farm.progress()
    await farm.until("nothing was committed while disks hung", farm.progress)
    await trio.sleep(for_s)
    for node_id in nodes:
        await farm.disks[node_id].fail("none")
    for node_id in nodes:
        noticed = partial(_hangs, farm, node_id, False)
        await farm.until(f"node {node_id} did not notice that its disk answers", noticed)
    return leader


async def _hangs(farm: ChaosFarm, node_id: int, expected: bool) -> bool | None:
    status = await farm.ask(farm.farm.nodes[node_id], lambda client: client.status("farm"))
    if status is None or (status["disk_hangs_s"] is not None) is not expected:
        return None
    return True


async def _leads_among_others(farm: ChaosFarm, nodes: Collection[int]) -> int | None:
    leader = await farm.leader()
    return None if leader in nodes else leader
