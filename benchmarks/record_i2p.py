"""Records the log of a farm on real i2pd routers whose nodes and routers die at random, for
`garlicfarm rank whatif` (docs/howto/choose-parameters.md).

Five machines, each a namespace with a node, its router and links of its own, publish a site through I2CP and
test it from outside. A client fetches it each second, another one five times a second in every other minute.
One to two minutes after the last one is back a node or a router is killed, and started again up to a minute
later, or a machine loses its links to the other routers for two minutes: in half of the cases the
publisher's. ``DIRECTORY/farm/node-N/data`` keeps each node's log. No packet leaves the machine. ::

    python -m benchmarks.record_i2p --minutes 40 DIRECTORY
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import trio

from garlicfarm.lab.i2pd import check_programs, in_private_network, reexec_in_private_network
from garlicfarm.lab.processes import ProcessFarm
from garlicfarm.lab.service import FLOODFILLS, I2P_LINK, Service, i2cp_service
from garlicfarm.lab.site import Client
from garlicfarm.lab.tun_network import LinkFaults, Network, network

NODES = 5
INTERVAL_MS = 3_000
CLIENTS = 2
LIVES_S, DOWN_S = (60.0, 120.0), (5.0, 60.0)
CUT_OFF_S = 120.0
BUSY_S, BUSY_INTERVAL_S = 60.0, 0.2


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args(argv)
    check_programs()
    if not in_private_network():
        reexec_in_private_network([sys.executable, "-m", "benchmarks.record_i2p", *argv])
    arguments.directory.mkdir(parents=True)
    trio.run(_record, arguments.directory, arguments.minutes, random.Random(arguments.seed))
    return 0


async def _record(directory: Path, minutes: float, choice: random.Random) -> None:
    async with (
        network(NODES + CLIENTS + FLOODFILLS, 2) as wires,
        i2cp_service(
            directory, CLIENTS, NODES, leases="fast", interval_ms=INTERVAL_MS, wires=wires, senses=True
        ) as (service, farm),
    ):
        steady = Client(service.clients[0].proxy, service.host)
        busy = Client(service.clients[1].proxy, service.host, BUSY_INTERVAL_S)
        with trio.move_on_after(60 * minutes):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(steady.run)
                nursery.start_soon(_ask_now_and_then, busy)
                await _die(service, farm, wires, choice)
        for node_id in farm.nodes:
            await farm.stop(node_id)
        answered = sum(each.text is not None for each in steady.fetches)
        _tell(f"{answered} of {len(steady.fetches)} requests were answered")


async def _ask_now_and_then(client: Client) -> NoReturn:
    while True:
        with trio.move_on_after(BUSY_S):
            await client.run()
        await trio.sleep(BUSY_S)


async def _die(service: Service, farm: ProcessFarm, wires: Network, choice: random.Random) -> NoReturn:
    while True:
        await trio.sleep(choice.uniform(*LIVES_S))
        victim, what = choice.randint(1, NODES), choice.choice(("node", "router", "link"))
        if choice.random() < 0.5:
            async with farm.nodes[victim].client() as node:
                victim = (await node.status(farm.name))["publisher"] or victim
        down_s = CUT_OFF_S if what == "link" else choice.uniform(*DOWN_S)
        _tell(f"{what} {victim} is down for {down_s:.0f} s")
        if what == "node":
            await farm.kill(victim)
            await trio.sleep(down_s)
            await farm.start(victim)
        elif what == "router":
            service.network.kill(victim)
            await trio.sleep(down_s)
            await service.network.start(victim)
        else:
            await wires.set_faults(LinkFaults(down=[(victim, I2P_LINK)]))
            await trio.sleep(down_s)
            await wires.set_faults(LinkFaults())


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
