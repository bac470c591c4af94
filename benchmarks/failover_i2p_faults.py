"""The faults of `benchmarks.failover_i2p`: what strikes the machine that serves.

    python -m benchmarks.failover_i2p_faults SAM HOST    in the namespace of a router

holds idle streams to a service, from several destinations of that router. Each line on stdin says how many,
and is answered by how many have been opened: -1 before the router is ready. Ends when stdin closes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import trio

from garlicfarm.admin.health import judge
from garlicfarm.errors import RemoteProtocolError, UnreachableError
from garlicfarm.i2p.session_options import tunnel_options
from garlicfarm.lab.i2pd_files import i2pd_program
from garlicfarm.lab.line_server import LineServer, line_server
from garlicfarm.lab.processes import ProcessFarm
from garlicfarm.lab.service import FARM_LINK, I2P_LINK, Service
from garlicfarm.lab.tun_network import LinkFaults, Network
from garlicfarm.net.sam import SamSession, sam_endpoint

NODES = 3
SERVED_S = 300.0
LEASE_FALLS_S = 1_800.0
UNIT_STARTS_AGAIN_S = 0.5
UNIT_STOPS_S = 90.0
BRIEFLY_S = 3.0
LOOK_S = 0.5
CLOCK = "clock"
"""The file beside a router's or a node's configuration that says by how much its wall clock is off."""
CLOCK_OFF_S = -180
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""Debian's package faketime."""
CLOCKED_NODE = """
import sys, time
from pathlib import Path
file, right_ns = Path(sys.argv.pop(1)), time.time_ns
time.time_ns = lambda: right_ns() + (int(file.read_text()[:-1]) * 10**9 if file.exists() else 0)
time.time = lambda: time.time_ns() / 10**9
from garlicfarm.cli import main
main()
"""
"""libfaketime makes Python's threads wait."""
HOLDERS = 5
"""Destinations that hold streams: each may have a quarter of all."""
STREAMS = 1_100
"""That they hold in all: more than a service has."""


@dataclass(slots=True)
class Machines:
    """The machines that serve, and what strikes one of them, by the id of its router. ``killed``: routers.
    ``holder``: of streams."""

    service: Service
    farm: ProcessFarm | None
    wires: Network
    stopped_s: list[float] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    holder: LineServer | None = None

    @property
    def nodes(self) -> ProcessFarm:
        assert self.farm is not None, "only the router's death strikes what has no farm"
        return self.farm

    async def kill_router(self, victim: int) -> None:
        self.killed.add(victim)
        self.service.network.kill(victim)

    async def kill_node(self, victim: int) -> None:
        await self.nodes.kill(victim)

    async def kill_both(self, victim: int) -> None:
        await self.kill_router(victim)
        await self.kill_node(victim)

    async def restart(self, victim: int) -> None:
        await self.kill_node(victim)
        await trio.sleep(UNIT_STARTS_AGAIN_S)
        await self.nodes.start(victim)

    async def move(self, victim: int) -> None:
        async with self.nodes.nodes[victim].client() as client:
            await client.administer(self.nodes.name, "override", {"member": victim, "mode": "off"})

    async def stop(self, victim: int) -> None:
        began_s = trio.current_time()
        await self.nodes.stop(victim, UNIT_STOPS_S)
        self.stopped_s.append(round(trio.current_time() - began_s, 1))
        await self.nodes.start(victim)

    async def leads(self, node_id: int) -> bool:
        async with self.nodes.nodes[node_id].client() as client:
            return bool((await client.status(self.nodes.name))["role"] == "leader")

    async def kill_leader(self, victim: int) -> None:
        if await self.leads(victim):
            async with self.nodes.nodes[victim].client() as client:
                await client.step_down(self.nodes.name)
        with trio.fail_after(SERVED_S):
            while True:
                for node_id in self.nodes.nodes:
                    if node_id != victim and await self.leads(node_id):
                        return await self.kill_node(node_id)

    async def cut(self, victim: int) -> None:
        await self.wires.set_faults(LinkFaults(down=[(victim, I2P_LINK), (victim, FARM_LINK)]))

    async def cut_i2p(self, victim: int) -> None:
        await self.wires.set_faults(LinkFaults(down=[(victim, I2P_LINK)]))

    async def cut_farm_briefly(self, victim: int) -> None:
        await self.wires.set_faults(LinkFaults(down=[(victim, FARM_LINK)]))
        await trio.sleep(BRIEFLY_S)
        await self.wires.set_faults(LinkFaults())

    async def set_clock(self, victim: int) -> None:
        for place in (self.service.servers[victim - 1].data_dir, self.nodes.nodes[victim].directory):
            (place / CLOCK).write_text(f"{CLOCK_OFF_S:+d}s")

    async def fill(self, victim: int) -> None:
        while await self.hold(STREAMS) < STREAMS:  # noqa: ASYNC110 - asked
            await trio.sleep(LOOK_S)

    async def hold(self, streams: int) -> int:
        assert self.holder is not None, "only in the fault `full`"
        return int(await self.holder.ask(str(streams)))

    async def wait_sensed(self, publisher: int) -> None:
        """Until each other node has found that its tests of what this one publishes are answered."""
        with trio.fail_after(SERVED_S):
            while not all(why.startswith("reaches") for why in await self.sensed(publisher)):  # noqa: ASYNC110
                await trio.sleep(LOOK_S)

    async def sensed(self, publisher: int) -> list[str]:
        """What each other node says of its tests of what this one publishes, "" if nothing."""
        async with self.nodes.nodes[publisher].client() as client:
            members = (await client.ranking(self.nodes.name))["members"]
        return [
            next((why for why in member["why"] if "what member" in why), "")
            for member in members
            if member["id"] != publisher
        ]

    async def wait_healthy(self) -> None:
        """Until each node says that the farm is healthy."""
        with trio.fail_after(SERVED_S):
            for node in self.nodes.nodes.values():
                async with node.client() as client:
                    while judge(await client.status(self.nodes.name)) != "healthy":  # noqa: ASYNC110 - asked
                        await trio.sleep(LOOK_S)

    async def lease_s(self, longest_s: float) -> float:
        """How long a lease lasts, once that is no longer than this, and no longer one of before runs."""
        node = next(iter(self.nodes.nodes.values()))
        with trio.fail_after(LEASE_FALLS_S):
            while True:
                async with node.client() as client:
                    policy = await client.policy(self.nodes.name)
                if policy["lease_ms"] <= 1000 * longest_s and "lease_before_ms" not in policy:
                    return policy["lease_ms"] / 1000
                await trio.sleep(LOOK_S)


def clock_routers(directory: Path) -> None:
    """Have the routers that are started from now on run by clocks of their own."""
    script = directory / "i2pd"
    script.write_text(
        "#!/bin/sh\n"
        f'export LD_PRELOAD={FAKETIME} FAKETIME_TIMESTAMP_FILE="${{1#--datadir=}}/{CLOCK}"\n'
        "export FAKETIME_CACHE_DURATION=1 FAKETIME_DONT_FAKE_MONOTONIC=1\n"
        f'exec {i2pd_program()} "$@"\n'
    )
    script.chmod(0o700)
    os.environ["I2PD"] = str(script)


@asynccontextmanager
async def clocked_nodes(machines: Machines) -> AsyncIterator[None]:
    """With nodes by clocks of their own, too."""
    for node in machines.nodes.nodes.values():
        clock = str(node.directory / CLOCK)
        machines.nodes.commands[node.id] = [sys.executable, "-c", CLOCKED_NODE, clock, "node", "start"]
        await machines.nodes.stop(node.id)
        await machines.nodes.start(node.id)
    yield


@asynccontextmanager
async def holding(machines: Machines) -> AsyncIterator[None]:
    """With one that can hold streams, at the last client's router."""
    router = machines.service.clients[-1]
    command = "nsenter", f"--net={router.place}", sys.executable, "-m", __name__, router.sam
    async with line_server([*command, machines.service.host]) as machines.holder:
        with trio.fail_after(SERVED_S):
            while await machines.hold(0) < 0:  # noqa: ASYNC110 - asked
                await trio.sleep(LOOK_S)
        yield


class Fault(NamedTuple):
    """``strikes``: how many nodes, one after the other. ``may_go_on``: whether the same node may serve on.
    ``senses``: whether the nodes test what the others publish. ``prepared``: what is needed before."""

    strike: Callable[[Machines, int], Awaitable[None]]
    strikes: int = 1
    may_go_on: bool = False
    senses: bool = False
    prepared: Callable[[Machines], AbstractAsyncContextManager[object]] = nullcontext


FAULTS = {
    "router": Fault(Machines.kill_router),
    "node": Fault(Machines.kill_node),
    "both": Fault(Machines.kill_both),
    "move": Fault(Machines.move),
    "stop": Fault(Machines.stop, may_go_on=True),
    "rolling": Fault(Machines.stop, strikes=NODES, may_go_on=True),
    "restarted": Fault(Machines.restart, may_go_on=True),
    "leader": Fault(Machines.kill_leader, may_go_on=True),
    "machine": Fault(Machines.cut),
    "i2p-link": Fault(Machines.cut_i2p, senses=True),
    "farm-link": Fault(Machines.cut_farm_briefly, may_go_on=True),
    "clock": Fault(Machines.set_clock, senses=True, prepared=clocked_nodes),
    "full": Fault(Machines.fill, may_go_on=True, senses=True, prepared=holding),
}


# ---------------------------------------------------------------------- one that holds streams


async def hold_streams(sam: str, host: str) -> None:
    """See the module."""
    begun: list[None] = []
    opened: list[None] = []
    many = trio.CapacityLimiter(32)
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        options = tunnel_options(0, 1) | {"i2cp.leaseSetEncType": "4"}
        made = [SamSession(sam_endpoint(sam), None, options) for _ in range(HOLDERS)]
        sessions = [await stack.enter_async_context(session) for session in made]
        ready: list[SamSession] = []

        async def wait_ready(session: SamSession) -> None:
            await session.wait_ready()
            ready.append(session)

        async def hold(session: SamSession) -> None:
            with suppress(UnreachableError, RemoteProtocolError):
                async with AsyncExitStack() as stream:
                    async with many:
                        await stream.enter_async_context(session.connect(host))
                    opened.append(None)
                    await trio.sleep_forever()

        for session in sessions:
            nursery.start_soon(wait_ready, session)
        turn = cycle(sessions)
        async for data in trio.lowlevel.FdStream(os.dup(0)):  # a line each, as each is waited for
            while len(begun) < int(data):
                begun.append(None)
                nursery.start_soon(hold, next(turn))
            print(len(opened) if len(ready) == HOLDERS else -1, flush=True)
        os._exit(0)  # the router sees to the rest


if __name__ == "__main__":
    sam_address, service_host = sys.argv[1:]
    trio.run(hold_streams, sam_address, service_host)
