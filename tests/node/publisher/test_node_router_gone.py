"""A router that dies moves the role at once, and a role that moves in order loses nothing: three real nodes.

The interval is so long that nothing here happens by a status in its turn.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from garlicfarm.i2p.encoding import decode
from garlicfarm.i2p.lease_set import decode_lease_set
from garlicfarm.node.publisher import PublisherApplication, application
from garlicfarm.publisher import Published, Publisher, PublisherSite, PublishOrder
from garlicfarm_plugin_simulated.publisher import SimulatedPublisher, SimulatedPublisherConfig
from tests.i2p.encodings import lease_set_2, long_term
from tests.node.support.cluster import Cluster, cluster, member
from tests.running import wait_until

INTERVAL_MS = 600_000
KEYS = long_term(b"\7" * 32)


class Service(SimulatedPublisher):
    """A service that all members have. ``serves_s``: the ``published`` date of the LeaseSet by which its
    clients know it, 0: none; it is served until another one has been announced. ``calls``: of all members, in
    their order."""

    calls: list[tuple[int, str]]

    def __init__(self, site: PublisherSite, calls: list[tuple[int, str]]) -> None:
        super().__init__(SimulatedPublisherConfig(), Path(), site)
        self.calls = calls
        self.serves_s = 0

    @property
    def destination(self) -> bytes:
        return KEYS.destination

    async def publish(self, order: PublishOrder) -> Published:
        published = await super().publish(order)
        self.serves_s = order.published_ms // 1000
        self.calls.append((self.site.node_id, "publish"))
        data = lease_set_2(KEYS, self.serves_s, 600, (), offline=None)
        return msgspec.structs.replace(published, lease_set=data)

    async def retire(self, successor: bytes | None) -> None:
        await super().retire(successor)
        self.calls.append((self.site.node_id, "retire" if successor is None else "announce"))
        if successor is not None:
            self.serves_s = decode_lease_set(successor).published_s

    def kill_router(self) -> None:
        super().kill_router()
        self.serves_s = 0
        self.calls.append((self.site.node_id, "killed"))


class ServiceFarm:
    """``services``: of each member. ``calls``: what they did, in order."""

    def __init__(self, nodes: Cluster, services: dict[int, Service], calls: list[tuple[int, str]]) -> None:
        self.nodes = nodes
        self.services = services
        self.calls = calls

    def fold(self, node_id: int = 1) -> Any:
        own = self.nodes.replica(node_id).application
        assert isinstance(own, PublisherApplication)
        return own.fold

    async def publisher(self, other_than: int = 0) -> int:
        """Wait for one that publishes, has told its LeaseSet, and is the only one."""

        def publishing() -> list[int]:
            return [
                node_id
                for node_id, service in self.services.items()
                if service.order is not None and node_id != other_than
            ]

        await wait_until(lambda: publishing() and self.fold().report(publishing()[0]).lease_set is not None)
        (found,) = publishing()
        return found

    def statuses(self, author: int, after: int) -> list[dict[str, Any]]:
        replica = self.nodes.replica()
        if replica.applied_index == after:
            return []
        entries = replica.store.entries(after + 1, replica.applied_index + 1, 1 << 30)
        documents = [json.loads(entry.value) for entry in entries if entry.value_type == 1]
        return [each for each in documents if "admin" not in each["config"] and each["id"] == author]

    async def override(self, member: int, mode: str) -> None:
        view: Any = self.nodes.node(1).farms["farm"]
        await view.administer("override", {"member": member, "mode": mode}, "alice")


@pytest.fixture
async def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServiceFarm]:
    async with made(tmp_path, monkeypatch) as farm:
        yield farm


@asynccontextmanager
async def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServiceFarm]:
    services: dict[int, Service] = {}
    calls: list[tuple[int, str]] = []

    def make_publishers(section: Any, node_id: int, *rest: Any) -> list[Publisher]:
        site = PublisherSite(farm="farm", node_id=node_id, directory=tmp_path / f"site{node_id}")
        services[node_id] = Service(site, calls)
        return [services[node_id]]

    monkeypatch.setattr(application, "make_publishers", make_publishers)
    tables: Any = {"publishers": ({"plugin": "simulated"},)}
    members = {n: member(router={"plugin": "simulated", "seed": n}, **tables) for n in (1, 2, 3)}
    async with cluster(tmp_path, 3, members=members, application="publisher") as nodes:
        await nodes.leader()
        view: Any = nodes.node(1).farms["farm"]
        await view.administer("interval", {"ms": INTERVAL_MS}, "alice")
        farm = ServiceFarm(nodes, services, calls)
        await wait_until(lambda: len(farm.fold().scores()) == 3)  # each has posted its first status
        yield farm


async def test_router_that_dies_costs_two_statuses_of_its_member_and_one_of_the_next(
    farm: ServiceFarm,
) -> None:
    first = await farm.publisher()
    index = farm.nodes.replica().applied_index
    farm.services[first].kill_router()
    second = await farm.publisher(other_than=first)
    withdrawn, released = farm.statuses(first, index)
    assert "publishing" not in withdrawn["meta"]
    assert "publishing" not in released["meta"]
    assert withdrawn["config"]["node"]["applied"] < released["config"]["node"]["applied"]
    (published,) = farm.statuses(second, index)
    lease_set = decode_lease_set(decode(published["config"]["node"]["leaseSet"]))
    assert published["meta"]["publishing"] is True
    assert lease_set.destination == KEYS.destination
    assert lease_set.published_s * 1000 <= published["meta"]["lastPublishedTime"]
    # One whose router is gone has no clients left to tell.
    await wait_until(lambda: farm.services[first].serves_s == 0)
    assert (first, "announce") not in farm.calls


async def test_member_on_standby_whose_router_dies_is_not_named(farm: ServiceFarm) -> None:
    first = await farm.publisher()
    second, third = (node_id for node_id in farm.services if node_id != first)
    index = farm.nodes.replica().applied_index
    farm.services[second].kill_router()
    await wait_until(lambda: farm.statuses(second, index))
    farm.services[first].kill_router()
    assert await farm.publisher(other_than=first) == third
    (withdrawn,) = farm.statuses(second, index)
    assert "publishing" not in withdrawn["meta"]
    assert (second, "publish") not in farm.calls


async def test_role_that_moves_in_order_loses_nothing(farm: ServiceFarm) -> None:
    """The predecessor stops before the next one begins, continues to serve, and is told of it once."""
    first = await farm.publisher()
    for _ in range(2):
        first = await _move_from(farm, first)


async def _move_from(farm: ServiceFarm, first: int) -> int:
    """Move the role in order; returns its new holder."""
    begun, before = len(farm.calls), farm.services[first]
    begun_s = before.serves_s
    await farm.override(first, "off")
    second = await farm.publisher(other_than=first)
    await wait_until(lambda: (first, "announce") in farm.calls[begun:])
    assert farm.calls[begun:] == [(first, "retire"), (second, "publish"), (first, "announce")]
    assert before.successor == decode(farm.fold().report(second).lease_set)
    assert before.serves_s == farm.services[second].serves_s > begun_s
    assert before.order is None
    return second
