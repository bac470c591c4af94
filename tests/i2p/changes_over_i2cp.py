"""A service published through I2CP changes its publisher again and again, and floodfills are looked at.

Routers share one namespace; each node has one of its own, whose links to the other nodes fail on command, and
reaches its router's loopback through relays of this process. So a node can be stopped or cut off while its
router lives. A wall clock of a node is that of `tests.chaos.launch`. Prints a JSON document per line. In a
network namespace: python -m tests.i2p.changes_over_i2cp DIRECTORY CHANGES
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NoReturn

import httpx
import trio

from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import GarlicFarmError
from garlicfarm.i2p.destination import split_destination
from garlicfarm.i2p.encoding import b32_address, encode
from garlicfarm.lab.i2pd import I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import CONTROL_PORT, RouterPlan
from garlicfarm.lab.processes import FAST, ProcessFarm, process_farm
from garlicfarm.lab.service import i2cp_table, router_table, server_plan
from garlicfarm.lab.site import Client, serve_site
from garlicfarm.lab.tun_network import LinkFaults, Network, address, network
from garlicfarm.setup.provision import FarmPlan, MemberPlan
from tests.chaos.launch import Clock
from tests.i2p.script import tell

NODES = (1, 2, 3)
CLIENT = 4
FLOODFILLS = 2
I2CP_PORT, SITE_PORT = 7654, 8080
INTERVAL_MS = 1000
HEADER_S = 90
CHANGE_S = 240.0
LOOK_S = 0.5
SETTLED_S = 2.0
REPUBLISHES_S = 32.0
"""The plugin publishes again each 30 s. A fault lasts so long that one that goes on shows."""
CLOCKS_OFF_S = (120.0, -120.0, 3600.0, -3600.0)
NEWNET = 0x40000000
PLANS = (
    *[server_plan(has_leaf=True, has_i2cp=True)] * len(NODES),
    RouterPlan(is_floodfill=False, has_leaf=False, has_proxy=True),
    *[RouterPlan(has_leaf=False, has_console=True)] * FLOODFILLS,
)
_LEASE_SET = r"<label[^>]*>{}</label>(.*?)</div>"
_EXPIRES = re.compile(r"Expires:</b> (\d+/\d+/\d+ [\d:]+)")
_GATEWAY = re.compile(r"Gateway:</b> ([\w~-]+=*)")


def listen_in(place: str, port: int) -> trio.SocketListener:
    """At a port of the loopback of another network namespace. Run it in a thread of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as home, open(place) as there:
        if libc.setns(there.fileno(), NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter the namespace")
        try:
            made = socket.create_server(("127.0.0.1", port))
        finally:
            if libc.setns(home.fileno(), NEWNET):
                os._exit(70)  # no thread may go on in the wrong namespace
    made.setblocking(False)
    return trio.SocketListener(trio.socket.from_stdlib_socket(made))


async def relay(host: str, port: int, near: trio.SocketStream) -> None:
    """Carry one connection until either side ends it."""

    async def carry(source: trio.SocketStream, target: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                await target.send_all(data)
        nursery.cancel_scope.cancel()

    with suppress(OSError):
        async with near, await trio.open_tcp_stream(host, port) as far, trio.open_nursery() as nursery:
            nursery.start_soon(carry, near, far)
            nursery.start_soon(carry, far, near)


class Looks:
    """Looks at floodfills and nodes, and tells what has changed."""

    def __init__(self, farm: ProcessFarm, routers: list[I2pdRouter], destination: bytes) -> None:
        self._farm = farm
        name = b32_address(destination).removesuffix(".b32.i2p")
        self._entry = re.compile(_LEASE_SET.format(name), re.DOTALL)
        self._floodfills = routers[-FLOODFILLS:]
        self._owners = {encode(_hash(router)): router.id for router in routers[: len(NODES)]}
        self._newest: dict[int, tuple[int, int]] = {}
        self.applied: dict[int, list[tuple[float, int]]] = {node_id: [] for node_id in NODES}
        self.namings: dict[int, int] = {}
        self.count = 0

    async def floodfill(self, router: I2pdRouter) -> NoReturn:
        async with httpx.AsyncClient(trust_env=False, timeout=CHANGE_S) as client:
            while True:
                page = (await client.get(f"{router.console}/?page=leasesets")).text
                self.count += 1
                for published_s, owner in self._read(page):
                    if self._newest.get(router.id) != (published_s, owner):
                        self._newest[router.id] = published_s, owner
                        facts = {"floodfill": router.id, "published_s": published_s, "owner": owner}
                        tell("seen", at_s=trio.current_time(), **facts)
                await trio.sleep(LOOK_S)

    def _read(self, page: str) -> Iterator[tuple[int, int]]:
        for entry in self._entry.findall(page):
            expires = _EXPIRES.search(entry)
            gateways = {self._owners[gateway] for gateway in _GATEWAY.findall(entry)}
            if expires and gateways:  # it shows only leases that last
                [owner] = gateways
                ends = datetime.strptime(expires[1], "%d/%m/%Y %H:%M:%S")  # local time, as i2pd's
                yield round(ends.timestamp()) - HEADER_S, owner

    async def node(self, node_id: int) -> NoReturn:
        while True:
            began_s = trio.current_time()
            with trio.move_on_after(5 * LOOK_S), suppress(GarlicFarmError):
                async with self._farm.nodes[node_id].client() as client:
                    status = await client.status(self._farm.name)
                self.applied[node_id].append((began_s, status["applied"]))
                for event in status["events"]:
                    if event.get("publisher"):
                        self.namings[event["index"]] = event["publisher"]
            await trio.sleep(LOOK_S)

    async def published(self, but: int = 0) -> int:
        """The owner of the newest LeaseSet at all floodfills, once it is another than ``but``."""
        while True:
            owners = {owner for _, owner in self._newest.values()}
            if len(self._newest) == FLOODFILLS and len(owners) == 1 and owners != {but}:
                return owners.pop()
            await trio.sleep(LOOK_S / 5)

    def tell_namings(self) -> None:
        for index, member in sorted(self.namings.items()):
            not_before_s = 0.0
            for at_s, applied in self.applied[member]:
                if applied >= index:  # a process that is started again begins with less once more
                    break
                not_before_s = at_s
            tell("naming", index=index, member=member, not_before_s=not_before_s)


def _hash(router: I2pdRouter) -> bytes:
    identity, _ = split_destination((router.data_dir / "router.info").read_bytes())
    return sha256(identity).digest()


class Changes:
    """Ways to make the farm name another member; each ends when that one's LeaseSet is at all floodfills, and
    undoes the fault."""

    def __init__(self, farm: ProcessFarm, wires: Network, looks: Looks, clocks: dict[int, Clock]) -> None:
        self._farm = farm
        self._wires = wires
        self._looks = looks
        self._clocks = clocks
        self._off_s = cycle(CLOCKS_OFF_S)
        self.ways: dict[str, Callable[[int], Awaitable[None]]] = {
            "stop": self.stop,
            "override": self.override,
            "kill": self.kill,
            "clock": self.clock,
            "partition": self.partition,
        }

    async def stop(self, before: int) -> None:
        """Its process is stopped, and continued once the next one publishes; its router lives."""
        process = self._farm.nodes[before].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        began_s = trio.current_time()
        try:
            await self._looks.published(but=before)
            await trio.sleep_until(began_s + REPUBLISHES_S)  # a publication is overdue when it is continued
        finally:
            process.send_signal(signal.SIGCONT)

    async def kill(self, before: int) -> None:
        await self._farm.kill(before)
        await self._looks.published(but=before)
        await self._farm.start(before)

    async def partition(self, before: int) -> None:
        """It reaches no other node; its router lives, and clients."""
        others = [node_id for node_id in NODES if node_id != before]
        await self._wires.set_faults(
            LinkFaults(cut=[pair for other in others for pair in ((before, other), (other, before))])
        )
        await self._looks.published(but=before)
        await trio.sleep(REPUBLISHES_S)
        await self._wires.set_faults(LinkFaults())

    async def override(self, before: int) -> None:
        await self._administer(before, "off")
        await self._looks.published(but=before)
        await self._administer(before, None)

    async def clock(self, before: int) -> None:
        """Its wall clock jumps, it loses the role by an override, and the clock is corrected."""
        self._clocks[before].off_s = next(self._off_s)
        await trio.sleep(SETTLED_S)  # it publishes by the wrong clock for a while
        await self.override(before)
        self._clocks[before].off_s = 0.0

    async def _administer(self, member: int, mode: str | None) -> None:
        while True:  # the leader may have changed: again until it is committed
            with suppress(GarlicFarmError):
                async with self._farm.nodes[member].client() as client:
                    await client.administer(self._farm.name, "override", {"member": member, "mode": mode})
                return
            await trio.sleep(LOOK_S)


async def change(directory: Path, changes: int) -> None:
    keys = create_keys(directory / "site.key")
    master_file = directory / "master.key"
    master = create_keys(master_file)
    clocks_dir = directory / "clocks"
    clocks_dir.mkdir()
    clocks = {node_id: Clock(clocks_dir / f"clock-{node_id}") for node_id in NODES}
    async with (
        i2pd_network(directory / "routers", PLANS) as routers,  # first: it has to see no other interface
        network(len(NODES)) as wires,
        trio.open_nursery() as nursery,
    ):
        members: dict[int, MemberPlan] = {}
        places: dict[int, str] = {}
        for node_id, router in zip(NODES, routers, strict=False):
            places[node_id] = await wires.place(node_id)
            site = await nursery.start(serve_site, f"node {node_id}")
            for port, host, far in (
                (I2CP_PORT, "127.0.0.1", int(router.i2cp.rpartition(":")[2])),
                (CONTROL_PORT, router.address, CONTROL_PORT),
                (SITE_PORT, "127.0.0.1", site),
            ):
                listener = await trio.to_thread.run_sync(listen_in, places[node_id], port)
                nursery.start_soon(trio.serve_listeners, partial(relay, host, far), [listener])
            table: dict[str, Any] = i2cp_table(
                directory, keys, node_id, f"127.0.0.1:{I2CP_PORT}", f"127.0.0.1:{SITE_PORT}", "fast"
            )
            members[node_id] = MemberPlan(
                endpoint=f"ssl://{address(node_id)}:27150",
                admin_url=f"https://{address(node_id)}:27151",
                router=router_table(router) | {"url": f"https://127.0.0.1:{CONTROL_PORT}"},
                leaves=(encode(router.leaf),),
                publishers=(table,),
            )
        plan = FarmPlan(
            raft=FAST, master=encode(master.destination), master_key_file=master_file, interval_ms=INTERVAL_MS
        )
        command = (sys.executable, "-m", "tests.chaos.launch", str(clocks_dir), "-", "node", "start")
        async with process_farm(directory / "farm", members, plan, places=places, command=command) as farm:
            looks = Looks(farm, list(routers), keys.destination)
            for router in routers[-FLOODFILLS:]:
                nursery.start_soon(looks.floodfill, router)
            for node_id in NODES:
                nursery.start_soon(looks.node, node_id)
            client = Client(routers[CLIENT - 1].proxy, b32_address(keys.destination))
            nursery.start_soon(client.run)
            made = Changes(farm, wires, looks, clocks)
            with trio.fail_after(CHANGE_S):
                before = await looks.published()
                await client.wait_answered()
            for way in islice(cycle(made.ways), changes):
                began_s = trio.current_time()
                with trio.fail_after(CHANGE_S):
                    await made.ways[way](before)
                    await trio.sleep(SETTLED_S)
                    after = await looks.published()
                took_s = round(trio.current_time() - began_s, 1)
                tell("change", way=way, before=before, after=after, took_s=took_s)
                before = after
            await trio.sleep(HEADER_S / 3)  # one more publication each, of whoever still publishes
            looks.tell_namings()
            answers = Counter(each.text for each in client.fetches if each.text)
            tell("looks", count=looks.count, answers=answers, requests=len(client.fetches))
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(change, Path(sys.argv[1]), int(sys.argv[2]))
