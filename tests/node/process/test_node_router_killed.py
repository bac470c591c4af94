"""A router that dies moves the role at once, also between processes.

The interval is so long that nothing here happens by a status in its turn.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.i2p.encoding import decode
from garlicfarm.i2p.lease_set import decode_lease_set
from garlicfarm.lab.processes import FAST, ProcessFarm, process_farm
from garlicfarm.lab.service import i2cp_table
from garlicfarm.lab.site import serve_site
from garlicfarm.setup.provision import FarmPlan
from tests.node.support.cluster import member
from tests.publishers.i2cp_router import FakeRouter

SHORT_MS, LONG_MS = 1_000, 600_000
MARGIN = 1_000_000
"""By its score no other member takes the role."""


class Router:
    """A router's I2CP at ``address``."""

    def __init__(self) -> None:
        self.fake = FakeRouter(lambda: time.time_ns() // 1_000_000)
        self.serving = trio.CancelScope()
        self.address = ""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.serving:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
            task_status.started()
            await trio.serve_listeners(self.fake.serve, [listener])

    def kill(self) -> None:
        """End its connections, and refuse others."""
        self.serving.cancel()


@asynccontextmanager
async def service_farm(directory: Path) -> AsyncIterator[tuple[ProcessFarm, Mapping[int, Router]]]:
    """Three nodes that may publish a service, each through the router with its id."""
    keys = create_keys(directory / "site.key")
    routers = {node_id: Router() for node_id in (1, 2, 3)}
    members = {}
    async with trio.open_nursery() as nursery:
        site = await nursery.start(serve_site, "site")
        for node_id, router in routers.items():
            await nursery.start(router.run)
            publisher = i2cp_table(directory, keys, node_id, router.address, f"127.0.0.1:{site}")
            members[node_id] = member(
                router={"plugin": "simulated", "seed": node_id}, publishers=(publisher,)
            )
        plan = FarmPlan(raft=FAST, interval_ms=SHORT_MS)
        async with process_farm(directory / "farm", members, plan) as farm:
            yield farm, routers
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_router_that_dies_moves_the_role_without_a_status_in_its_turn(tmp_path: Path) -> None:
    async with service_farm(tmp_path) as (farm, routers):
        async with farm.nodes[1].client() as client:
            await client.administer(farm.name, "publisher", {"margin": MARGIN})
            first, _ = await _until(farm, _publisher)
            await client.administer(farm.name, "interval", {"ms": LONG_MS})
        await _until(farm, _has_long_interval)
        _, before = await _until(farm, _publisher)

        routers[first].kill()
        second, after = await _until(farm, partial(_publisher, other_than=first))

        (third,) = set(routers) - {first, second}
        assert after[third] == before[third], "it had nothing to say"
        assert "publishing" not in after[first]["meta"]
        assert after[first]["config"]["node"]["applied"] > before[first]["config"]["node"]["applied"]
        node = after[second]["config"]["node"]
        assert node["applied"] > after[first]["config"]["node"]["applied"]
        lease_set = decode_lease_set(decode(node["leaseSet"]))
        assert lease_set.published_s * 1000 <= after[second]["meta"]["lastPublishedTime"]
        assert routers[second].fake.streams, "through its own router"


Statuses = dict[int, dict[str, Any]]


def _publisher(statuses: Statuses, *, other_than: int = 0) -> int:
    """The only member that says that it publishes, with its LeaseSet; 0: none does."""
    found = [
        node_id
        for node_id, status in statuses.items()
        if status["meta"].get("publishing") and "leaseSet" in status["config"]["node"]
    ]
    return found[0] if len(found) == 1 and len(statuses) == 3 and found[0] != other_than else 0


def _has_long_interval(statuses: Statuses) -> bool:
    return all(status["config"]["node"]["interval_ms"] == LONG_MS for status in statuses.values())


async def _until(farm: ProcessFarm, condition: Callable[[Statuses], Any]) -> tuple[Any, Statuses]:
    """What is true of the newest statuses, and they, as the first node knows them."""
    with trio.fail_after(120):
        async with farm.nodes[1].client() as client:
            while True:
                ranking = await client.ranking(farm.name, statuses=True)
                statuses = {row["id"]: row["status"] for row in ranking["members"] if row["status"]}
                if found := condition(statuses):
                    return found, statuses
                await trio.sleep(0.05)
