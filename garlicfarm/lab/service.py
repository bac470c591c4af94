"""A web site as a service of a private I2P network, served by one of several routers.

The routers of such a network are, in order: those that serve, those of clients, and floodfills. A router
that is killed takes nothing else with it: neither the store of LeaseSets, nor a client's way in.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import trio

from garlicfarm.credentials.destination_keys import create_keys, write_bundle
from garlicfarm.i2p.encoding import b32_address, encode
from garlicfarm.i2p.keys import DestinationKeys, make_bundle
from garlicfarm.lab.i2pd import I2pdNetwork, I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.lab.processes import FAST, ProcessFarm, free_ports, process_farm
from garlicfarm.lab.site import Fetch, serve_site
from garlicfarm.lab.tun_network import Network, address
from garlicfarm.setup.i2p_tunnel import Tunnel
from garlicfarm.setup.provision import FarmPlan, MemberPlan

FLOODFILLS = 4
I2P_LINK, FARM_LINK = 0, 1
"""Of a node's machine, where the service has wires: to other routers, and to other nodes."""
KEYS = "site.dat"
INTERVAL_MS = 5_000
FARM_TUNNEL = Tunnel("garlicfarm-farm", "127.0.0.1", 27150, 27150, "garlicfarm-farm.dat")
"""To the node of a farm inside I2P, as `garlicfarm i2p setup` makes it."""
BUNDLE_S = 90 * 24 * 3600
QUANTITY = 2

Leases = Literal["default", "fast"]
"""How long the leases last that the publisher `i2cp` composes: key ``leases`` of its table."""


class Kinds(NamedTuple):
    """Which kinds of routers a service's network has: classes of plans. ``more_clients``: in addition to the
    clients that are asked for, behind them in the order of the routers."""

    server: type[RouterPlan] = RouterPlan
    more_clients: tuple[type[RouterPlan], ...] = ()
    floodfills: tuple[type[RouterPlan], ...] = (RouterPlan,) * FLOODFILLS


I2PD = Kinds()


@dataclass(frozen=True, slots=True)
class Service:
    """A running network with a site inside. ``host``: the site's address, ``….b32.i2p``. ``client_ids``: of
    the routers with an HTTP proxy. The site behind a router with the id N says ``node N``."""

    network: I2pdNetwork
    host: str
    client_ids: tuple[int, ...]

    @property
    def servers(self) -> list[I2pdRouter]:
        """The routers that serve, or may."""
        return list(self.network[: self.client_ids[0] - 1])

    @property
    def clients(self) -> list[I2pdRouter]:
        """The routers of clients."""
        return [self.network[router_id - 1] for router_id in self.client_ids]

    @property
    def floodfills(self) -> list[I2pdRouter]:
        """The routers that store LeaseSets, and log it."""
        return list(self.network[-FLOODFILLS:])

    def router_of(self, fetched: Fetch) -> int:
        """The id of the router that has served an answered request."""
        assert fetched.text is not None, "it was not answered"
        return int(fetched.text.removeprefix("node "))


@asynccontextmanager
async def i2cp_service(
    directory: Path,
    clients: int,
    nodes: int = 3,
    *,
    leases: Leases = "default",
    hops: int = 0,
    interval_ms: int = INTERVAL_MS,
    wires: Network | None = None,
    inside: bool = False,
    senses: bool = False,
    kinds: Kinds = I2PD,
) -> AsyncIterator[tuple[Service, ProcessFarm]]:
    """A farm of so many nodes: node N has the router with the id N, and publishes through its I2CP if it is
    elected, with a bundle of keys that were made offline. The nodes reach each other over loopback, so that
    routers' deaths leave the farm alone. ``clients``: their routers; ``hops``: of each tunnel;
    ``interval_ms``: how often the nodes post their statuses. ``wires``: with `I2P_LINK` and `FARM_LINK`; each
    node and its router, and each other router, then has a host of its own, and the farm has the preset's
    timings. ``inside``: with wires, of which it needs `I2P_LINK` only: the nodes reach each other through
    their routers, by the preset ``i2p``. ``senses``: they test what the others publish (D25)."""

    def table(keys: DestinationKeys, router: I2pdRouter, target: str) -> dict[str, Any]:
        return i2cp_table(directory, keys, router.id, router.i2cp, target, leases, hops)

    server = server_plan(kinds.server, has_i2cp=True, has_sam=senses)
    made = elected_service(
        directory, server, clients, nodes, hops, table, interval_ms, wires, inside, senses, kinds
    )
    async with made as running:
        yield running


@asynccontextmanager
async def elected_service(
    directory: Path,
    server: RouterPlan,
    clients: int,
    nodes: int,
    hops: int,
    publisher: Callable[[DestinationKeys, I2pdRouter, str], dict[str, Any]],
    interval_ms: int = INTERVAL_MS,
    wires: Network | None = None,
    inside: bool = False,
    senses: bool = False,
    kinds: Kinds = I2PD,
) -> AsyncIterator[tuple[Service, ProcessFarm]]:
    """``publisher``: the table of the node beside a router, given the service's long-term key and the site's
    HOST:PORT."""
    keys = create_keys(directory / "site.key")
    master_file = directory / "master.key"
    master = create_keys(master_file)
    if inside:
        server = replace(server, tunnels=(FARM_TUNNEL,), has_proxy=True)
    async with (
        trio.open_nursery() as nursery,
        service_network(
            directory, [server] * nodes, keys.destination, clients, hops, wires, kinds
        ) as service,
    ):
        members = {}
        for router, port in zip(service.servers, free_ports(nodes), strict=False):
            site = await nursery.start(serve_site, f"node {router.id}", 0, router.place)
            host = address(router.id, FARM_LINK) if wires else "127.0.0.1"
            inside_i2p = f"i2p://{router.address_of_tunnel}:{FARM_TUNNEL.inport}"
            members[router.id] = MemberPlan(
                endpoint=inside_i2p if inside else f"ssl://{host}:{port}",
                admin_url=f"https://{router.address if wires else host}:0",
                proxy=router.proxy,
                router=router_table(router) | ({"sam": router.sam, "hops": hops} if senses else {}),
                leaves=(encode(router.leaf),),
                publishers=(publisher(keys, router, f"127.0.0.1:{site}"),),
            )
        plan = FarmPlan(
            preset="i2p" if inside else "clearnet",
            raft={} if wires else FAST,
            interval_ms=interval_ms,
            master=encode(master.destination),
            master_key_file=master_file,
        )
        places = {router.id: router.place for router in service.servers if router.place}
        async with process_farm(directory / "farm", members, plan, places=places) as farm:
            yield service, farm
        nursery.cancel_scope.cancel()


def server_plan(kind: type[RouterPlan] = RouterPlan, **more: Any) -> RouterPlan:
    """The plan of a router that serves. It carries nothing for clients: its death must take the service
    only."""
    return kind(is_floodfill=False, carries_tunnels=False, **more)


@asynccontextmanager
async def service_network(
    directory: Path,
    servers: list[RouterPlan],
    destination: bytes,
    clients: int,
    hops: int,
    wires: Network | None = None,
    kinds: Kinds = I2PD,
) -> AsyncIterator[Service]:
    """The routers of a service at ``destination``: those that serve, those of clients, and floodfills."""
    has_wires = wires is not None
    asking = [
        kind(is_floodfill=False, has_leaf=False, has_proxy=True, shares_proxy=has_wires, has_sam=has_wires)
        for kind in (RouterPlan,) * clients + kinds.more_clients
    ]
    storing = [kind(has_leaf=False) for kind in kinds.floodfills]
    plans = [*servers, *asking, *storing]
    client_ids = tuple(range(len(servers) + 1, len(servers) + len(asking) + 1))
    async with i2pd_network(directory / "routers", plans, wires, hops=hops) as network:
        yield Service(network, b32_address(destination), client_ids)


def router_table(router: I2pdRouter) -> dict[str, Any]:
    """The table ``[farm.router]`` of the node beside a router."""
    password_file = str(router.password_file)
    return {"plugin": "i2pcontrol", "url": router.url, "password_file": password_file, "pin": router.pin}


def sam_table(
    directory: Path, keys: DestinationKeys, node_id: int, address: str, target: str, hops: int = 0
) -> dict[str, Any]:
    """The table ``[[farm.publisher]]`` of a node that publishes through SAM. ``keys``: the service's
    long-term key, of which the node gets a bundle, written to ``directory``."""
    return {
        "plugin": "sam",
        "address": address,
        "target": target,
        "keys": str(_write_bundle(directory, keys, node_id, hops)),
        "hops": hops,
        "quantity": QUANTITY,
    }


def i2cp_table(
    directory: Path,
    keys: DestinationKeys,
    node_id: int,
    address: str,
    target: str,
    leases: Leases = "default",
    hops: int = 0,
) -> dict[str, Any]:
    """As `sam_table`, for a node that publishes the service through I2CP."""
    return {
        "plugin": "i2cp",
        "mode": "service",
        "address": address,
        "target": target,
        "keys": str(_write_bundle(directory, keys, node_id, hops)),
        "leases": leases,
        "hops": hops,
        "quantity": QUANTITY,
    }


def _write_bundle(directory: Path, keys: DestinationKeys, node_id: int, hops: int) -> Path:
    now_s = int(time.time())
    bundle = make_bundle(
        keys,
        secrets.token_bytes(32),
        node=node_id,
        expires_s=now_s + BUNDLE_S,
        now_ms=1000 * now_s,
        hops=hops,
        quantity=QUANTITY,
    )
    file = directory / f"site-{node_id}.bundle"
    write_bundle(file, bundle)
    return file
