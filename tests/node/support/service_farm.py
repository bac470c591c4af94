"""Three real nodes that publish one service, by publishers that note what they do.

The interval is so long that nothing happens by a status in its turn.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from garlicfarm.errors import NoQuorum, NotLeader, OutcomeUnknown, ProposalDropped
from garlicfarm.i2p.lease_set import decode_lease_set
from garlicfarm.node.publisher import PublisherApplication, application
from garlicfarm.publisher import Published, Publisher, PublisherSite, PublisherStatus, PublishOrder
from garlicfarm_plugin_simulated.publisher import SimulatedPublisher, SimulatedPublisherConfig
from tests.i2p.encodings import lease_set_2, long_term
from tests.node.support.cluster import Cluster, cluster, member
from tests.running import wait_until

INTERVAL_MS = 600_000
KEYS = long_term(b"\7" * 32)


class Service(SimulatedPublisher):
    """A service that all members have. ``serves_s``: the ``published`` date of the LeaseSet by which its
    clients know it, 0: none; it is served until another one has been announced. ``calls``: of all members, in
    their order. ``has_tunnels``: else it never gets ready, and knows only that nothing is published."""

    calls: list[tuple[int, str]]

    def __init__(self, site: PublisherSite, calls: list[tuple[int, str]], *, has_tunnels: bool) -> None:
        super().__init__(SimulatedPublisherConfig(), Path(), site)
        self.calls = calls
        self.has_tunnels = has_tunnels
        self.serves_s = 0
        self.is_dead = False

    @property
    def destination(self) -> bytes:
        return KEYS.destination

    async def standby(self) -> None:
        if not self.has_tunnels:
            await trio.sleep_forever()
        await super().standby()

    async def status(self) -> PublisherStatus:
        status = await super().status()
        return status if self.has_tunnels else msgspec.structs.replace(status, is_withdrawn=True)

    async def publish(self, order: PublishOrder) -> Published:
        published = await super().publish(order)
        self.serves_s = order.published_ms // 1000
        self.calls.append((self.site.node_id, "publish"))
        data = lease_set_2(KEYS, self.serves_s, 600, (), offline=None)
        return msgspec.structs.replace(published, lease_set=data)

    async def retire(self, successor: bytes | None) -> None:
        if self.is_dead:
            return
        await super().retire(successor)
        self.calls.append((self.site.node_id, "retire" if successor is None else "announce"))
        if successor is not None:
            self.serves_s = decode_lease_set(successor).published_s

    def kill_router(self) -> None:
        super().kill_router()
        self.serves_s = 0
        self.calls.append((self.site.node_id, "killed"))


class ServiceFarm:
    """``services``: of each member. ``calls``: what they did, in order. ``without_tunnels``: whose next
    process has a service without any."""

    def __init__(
        self,
        nodes: Cluster,
        services: dict[int, Service],
        calls: list[tuple[int, str]],
        without_tunnels: set[int],
    ) -> None:
        self.nodes = nodes
        self.services = services
        self.calls = calls
        self.without_tunnels = without_tunnels

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

    async def lead(self, node_id: int) -> None:
        """Have that member lead; it does at the moment of the return."""
        while (leader := await self.nodes.leader()) != node_id:
            view: Any = self.nodes.node(leader).farms["farm"]
            with suppress(NotLeader, ProposalDropped, NoQuorum):  # an election came between
                await view.step_down(node_id, "alice")

    def statuses(self, author: int, after: int, of: int = 1) -> list[dict[str, Any]]:
        """Those of ``author`` above an index, in the log of the node ``of``."""
        replica = self.nodes.replica(of)
        if replica.applied_index == after:
            return []
        entries = replica.store.entries(after + 1, replica.applied_index + 1, 1 << 30)
        documents = [json.loads(entry.value) for entry in entries if entry.value_type == 1]
        return [each for each in documents if "admin" not in each["config"] and each["id"] == author]

    async def kill(self, node_id: int) -> None:
        """The node's process dies: it retires nothing, and says nothing."""
        self.services[node_id].is_dead = True
        running = self.nodes.running[node_id]
        running.scope.cancel()
        await running.ended.wait()
        self.services[node_id].order = None  # its router has ended the session

    def entries(self, of: int, action: str) -> list[dict[str, Any]]:
        """The arguments of all entries with this action, in the log of a node."""
        replica = self.nodes.replica(of)
        entries = replica.store.entries(1, replica.applied_index + 1, 1 << 30)
        documents = [json.loads(entry.value) for entry in entries if entry.value_type == 1]
        orders = [each["config"]["admin"] for each in documents if "admin" in each["config"]]
        return [each["args"] for each in orders if each["action"] == action]

    async def override(self, member: int, mode: str) -> None:
        await self._order("override", {"member": member, "mode": mode})

    async def set_interval(self, ms: int) -> None:
        await self._order("interval", {"ms": ms})

    async def _order(self, kind: str, fields: dict[str, Any]) -> None:
        view: Any = self.nodes.node(min(self.nodes.running)).farms["farm"]
        with trio.fail_after(240):
            while True:
                with suppress(NoQuorum, OutcomeUnknown):  # on a busy machine; a repeated one changes nothing
                    await view.administer(kind, fields, "alice")
                    return


@asynccontextmanager
async def service_farm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **plan: Any
) -> AsyncIterator[ServiceFarm]:
    services: dict[int, Service] = {}
    calls: list[tuple[int, str]] = []
    without_tunnels: set[int] = set()

    def make_publishers(section: Any, node_id: int, *rest: Any) -> list[Publisher]:
        site = PublisherSite(farm="farm", node_id=node_id, directory=tmp_path / f"site{node_id}")
        services[node_id] = Service(site, calls, has_tunnels=node_id not in without_tunnels)
        return [services[node_id]]

    monkeypatch.setattr(application, "make_publishers", make_publishers)
    tables: Any = {"publishers": ({"plugin": "simulated"},)}
    members = {n: member(router={"plugin": "simulated", "seed": n}, **tables) for n in (1, 2, 3)}
    async with cluster(tmp_path, 3, members=members, application="publisher", **plan) as nodes:
        await nodes.leader()
        farm = ServiceFarm(nodes, services, calls, without_tunnels)
        await farm.set_interval(INTERVAL_MS)
        await wait_until(lambda: len(farm.fold().scores()) == 3)  # each has posted its first status
        yield farm
