"""Records the log of a farm on real i2pd routers whose nodes and routers die at random, for
`garlicfarm rank whatif` (docs/howto/choose-parameters.md).

Five nodes with a router each publish a site through I2CP, as in ``garlicfarm lab --site``, and a client
fetches it each second. One to two minutes after the last one is back a node or a router is killed, in half
of the cases the publisher's, and started again up to a minute later. ``DIRECTORY/farm/node-N/data`` keeps
each node's log. No packet leaves the machine. ::

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
from garlicfarm.lab.service import Service, i2cp_service
from garlicfarm.lab.site import Client

NODES = 5
INTERVAL_MS = 3_000
LIVES_S, DOWN_S = (60.0, 120.0), (5.0, 60.0)


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
    made = i2cp_service(directory, 1, NODES, leases="fast", interval_ms=INTERVAL_MS)
    async with made as (service, farm):
        client = Client(service.clients[0].proxy, service.host)
        with trio.move_on_after(60 * minutes):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                await _die(service, farm, choice)
        for node_id in farm.nodes:
            await farm.stop(node_id)
        answered = sum(each.text is not None for each in client.fetches)
        _tell(f"{answered} of {len(client.fetches)} requests were answered")


async def _die(service: Service, farm: ProcessFarm, choice: random.Random) -> NoReturn:
    while True:
        await trio.sleep(choice.uniform(*LIVES_S))
        victim, is_node = choice.randint(1, NODES), choice.random() < 0.5
        if choice.random() < 0.5:
            async with farm.nodes[victim].client() as node:
                victim = (await node.status(farm.name))["publisher"] or victim
        down_s = choice.uniform(*DOWN_S)
        _tell(f"{'node' if is_node else 'router'} {victim} is killed for {down_s:.0f} s")
        if is_node:
            await farm.kill(victim)
        else:
            service.network.kill(victim)
        await trio.sleep(down_s)
        if is_node:
            await farm.start(victim)
        else:
            await service.network.start(victim)


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
