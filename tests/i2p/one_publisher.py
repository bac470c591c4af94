"""Run inside a network namespace: the publisher of a farm changes so many times, and never are there two.

Three nodes with a router each, on hosts of their own; a witness stands between each node and the SAM of its
router. Prints a line of JSON for each change, and at the end all sessions of the service that the witnesses
have seen: ``[node, opened, closed]``, in seconds.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import trio

from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import GarlicFarmError
from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.i2pd import I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.lab.processes import FAST, ProcessFarm, process_farm
from garlicfarm.lab.service import router_table, sam_table
from garlicfarm.lab.tun_network import LinkFaults, Network, network
from garlicfarm.setup.provision import FarmPlan, MemberPlan

NODES = (1, 2, 3)
FLOODFILLS = 2
WITNESS_PORT, TARGET_PORT = 7600, 8080
CHANGE_S = 240.0
INTERVAL_MS = 3000
PLANS = [
    *[RouterPlan(is_floodfill=False, has_sam=True)] * len(NODES),
    *[RouterPlan(has_leaf=False)] * FLOODFILLS,
]

Sessions = dict[int, list[tuple[float, str]]]
"""By node: what its witness has told."""


async def witness(node_id: int, router: I2pdRouter, destination: str, told: Sessions) -> None:
    sam_port = router.sam.rpartition(":")[2]
    arguments = [str(WITNESS_PORT), sam_port, str(TARGET_PORT), destination]
    script = str(Path(__file__).with_name("sam_witness.py"))
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                ["nsenter", f"--net={router.place}", sys.executable, script, *arguments],
                stdout=subprocess.PIPE,
            )
        )
        rest = b""
        async for data in process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            told[node_id] += [tuple(json.loads(line)) for line in lines]


def is_open(told: list[tuple[float, str]]) -> bool:
    return bool(told) and told[-1][1] == "opened"


class Turns:
    """Ways to make the farm name another publisher; each ends when that one publishes."""

    def __init__(self, farm: ProcessFarm, wires: Network, told: Sessions) -> None:
        self._farm = farm
        self._wires = wires
        self._told = told
        self.ways: dict[str, Callable[[int], Awaitable[None]]] = {
            "override": self.override,
            "partition": self.partition,
            "kill": self.kill,
        }

    async def publishing(self, but: int = 0) -> int:
        """The node that publishes, other than ``but``: it says so."""
        while True:
            for node in self._farm.nodes.values():
                if node.process is None or node.id == but:
                    continue
                with suppress(GarlicFarmError):
                    status = await self._status(node.id)
                    if any(each["state"] == "publishing" for each in status.get("publishers") or ()):
                        return node.id
            await trio.sleep(0.5)

    async def _status(self, node_id: int) -> dict[str, Any]:
        async with self._farm.nodes[node_id].client() as client:
            return await client.status(self._farm.name)

    async def override(self, before: int) -> None:
        """In order: an administrator takes the role from it."""
        await self._administer(before, "off")
        await self.publishing(but=before)
        await self._administer(before, None)

    async def _administer(self, member: int, mode: str | None) -> None:
        async with self._farm.nodes[member].client() as client:
            await client.administer(self._farm.name, "override", {"member": member, "mode": mode})

    async def partition(self, before: int) -> None:
        """Its host, its router included, reaches no other one, and is not reached."""
        others = [host for host in range(1, len(PLANS) + 1) if host != before]
        cut = [pair for host in others for pair in ((before, host), (host, before))]
        await self._wires.set_faults(LinkFaults(cut=cut))
        await self.publishing(but=before)
        await self._wires.set_faults(LinkFaults())

    async def kill(self, before: int) -> None:
        """Its process is killed, and started again."""
        await self._farm.kill(before)
        await self.publishing()
        await self._farm.start(before)

    def _others_publish(self, but: int) -> bool:
        return any(is_open(told) for node_id, told in self._told.items() if node_id != but)

    async def stop(self, before: int) -> float:
        """Its process is stopped while its router lives; how long after it is resumed its session ends, s."""
        process = self._farm.nodes[before].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        while not self._others_publish(before):  # noqa: ASYNC110 - another process does
            await trio.sleep(0.1)
        assert is_open(self._told[before]), "its session has ended while it was stopped"
        resumed_s = time.monotonic()
        process.send_signal(signal.SIGCONT)
        while is_open(self._told[before]):  # noqa: ASYNC110 - another process closes it
            await trio.sleep(0.01)
        return self._told[before][-1][0] - resumed_s


def sessions(told: Sessions) -> list[tuple[int, float, float]]:
    """Every session of the service: its node, when it was opened, and when it ended."""
    found = []
    for node_id, moments in told.items():
        opened_s = 0.0
        for at_s, what in moments:
            if what == "opened":
                opened_s = at_s
            else:
                found.append((node_id, opened_s, at_s))
        if is_open(moments):
            found.append((node_id, opened_s, time.monotonic()))
    return sorted(found, key=lambda each: each[1])


async def main(directory: Path, changes: int) -> None:
    keys = create_keys(directory / "site.key")
    master_file = directory / "master.key"
    master = create_keys(master_file)
    told: Sessions = {node_id: [] for node_id in NODES}
    async with (
        network(len(PLANS)) as wires,
        i2pd_network(directory / "routers", PLANS, wires) as routers,
        trio.open_nursery() as nursery,
    ):
        members, places = {}, {}
        for node_id, router in zip(NODES, routers, strict=False):
            nursery.start_soon(witness, node_id, router, encode(keys.destination)[:500], told)
            address, target = f"127.0.0.1:{WITNESS_PORT}", f"127.0.0.1:{TARGET_PORT}"
            members[node_id] = MemberPlan(
                endpoint=f"ssl://{router.address}:27150",
                admin_url=f"https://{router.address}:27151",
                router=router_table(router),
                leaves=(encode(router.leaf),),
                publishers=(sam_table(directory, keys, node_id, address, target),),
            )
            places[node_id] = router.place
        plan = FarmPlan(
            raft=FAST,
            master=encode(master.destination),
            master_key_file=master_file,
            interval_ms=INTERVAL_MS,
        )
        async with process_farm(directory / "farm", members, plan, places=places) as farm:
            made = Turns(farm, wires, told)
            with trio.fail_after(CHANGE_S):
                before = await made.publishing()
            for name in islice(cycle(made.ways), changes):
                begun_s = time.monotonic()
                with trio.fail_after(CHANGE_S):
                    await made.ways[name](before)
                    after = await made.publishing()
                took_s = round(time.monotonic() - begun_s, 1)
                print(json.dumps({"way": name, "from": before, "to": after, "took_s": took_s}), flush=True)
                before = after
            print(json.dumps({"sessions": sessions(told)}), flush=True)
            with trio.fail_after(CHANGE_S):
                print(json.dumps({"resumed_s": await made.stop(before)}), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
