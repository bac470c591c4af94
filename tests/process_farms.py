"""What tests wait for at a farm of processes. Nothing here has a deadline but what ends a test that hangs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from garlicfarm.errors import UnreachableError
from garlicfarm.lab.processes import ProcessFarm

HANG_GUARD_S = 240


async def status_when(
    farm: ProcessFarm, node_id: int, condition: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """What a node says of its farm, once that fulfils the condition."""
    with trio.fail_after(HANG_GUARD_S):
        while True:
            with suppress(UnreachableError):  # on a busy machine a connection may take longer than it has
                async with farm.nodes[node_id].client() as client:
                    status = await client.status(farm.name)
                if condition(status):
                    return status
            await trio.sleep(0.1)


async def leader_of(farm: ProcessFarm) -> int:
    """The one that leads, as itself says."""
    with trio.fail_after(HANG_GUARD_S):
        while True:
            for node_id, node in farm.nodes.items():
                if node.process is None:
                    continue
                with suppress(UnreachableError):
                    async with node.client() as client:
                        if (await client.status(farm.name))["role"] == "leader":
                            return node_id
            await trio.sleep(0.05)
