"""Run inside a network namespace: a farm publishes its Meta LeaseSet over I2CP; a node dies, and a router.

Three nodes with an i2pd each, and two floodfills. The nodes reach each other over loopback, so that routers'
deaths leave the farm alone. They sign with the ``long-term`` key, or each with its ``bundle``. Prints what
came about, a line of JSON each; `test_meta_farm.py` judges them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import GarlicFarmError
from garlicfarm.i2p.encoding import decode, encode
from garlicfarm.i2p.lease_set import verify_meta_lease_set
from garlicfarm.lab.i2pd import I2pdNetwork, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.lab.processes import FAST, ProcessFarm, free_ports, process_farm
from garlicfarm.lab.service import router_table
from garlicfarm.setup.provision import FarmPlan, MemberPlan
from tests.i2p.meta_over_i2cp import Floodfills
from tests.i2p.script import tell

NODES = (1, 2, 3)
FLOODFILLS = 2
STEP_S = 200.0
INTERVAL_MS = 3000
QUIET_S = 25.0
"""A second publication for one order would come 20 s after the first."""
PLANS = [
    *[RouterPlan(is_floodfill=False, has_i2cp=True)] * len(NODES),
    *[RouterPlan(has_leaf=False)] * FLOODFILLS,
]
STATUSES = 4
"""of the member whose router has died, during which it must not be named again"""
LAST = ("lastPublishedTime", "lastPublishedLS")


async def command(*arguments: str) -> dict[str, Any]:
    """What a command of the CLI answers, as JSON."""
    ended = await trio.run_process(
        [sys.executable, "-m", "garlicfarm", *arguments, "--output", "json"], capture_stdout=True
    )
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def last_published(meta: Mapping[str, Any]) -> list[Any]:
    return [meta.get(name) for name in LAST]


class MetaFarm:
    """A farm that publishes, and what its floodfills have stored of it."""

    def __init__(self, farm: ProcessFarm, floodfills: Floodfills, destination: bytes) -> None:
        self._farm = farm
        self._floodfills = floodfills
        self._destination = destination
        self._newest_s = 0

    def config(self, member: int) -> str:
        return str(self._farm.nodes[member].directory / "garlicfarm.toml")

    async def ranking(self) -> dict[str, Any]:
        """That of any node, with statuses."""
        while True:
            for node in self._farm.nodes.values():
                if node.process is not None:
                    with suppress(GarlicFarmError):
                        async with node.client() as client:
                            return await client.ranking(self._farm.name, statuses=True)
            await trio.sleep(0.2)

    async def status(self, member: int, after_date: int = 0) -> dict[str, Any]:
        """A member's newest status, once that is dated later."""
        while True:
            for row in (await self.ranking())["members"]:
                if row["id"] == member and row["status"] and row["status"]["date"] > after_date:
                    found: dict[str, Any] = row["status"]
                    return found
            await trio.sleep(0.2)

    async def names(self) -> list[int]:
        """Who was named, in order, as far as any node has kept that."""
        longest: list[int] = []
        for node in self._farm.nodes.values():
            if node.process is not None:
                async with node.client() as client:
                    events = (await client.status(self._farm.name))["events"]
                named = [event["publisher"] for event in events if event["publisher"] is not None]
                longest = max(longest, named, key=len)
        return longest

    async def published(self, but: int = 0) -> int:
        """The member, other than ``but``, that reports a newer Meta LeaseSet, once a floodfill has it."""
        counts = await self._floodfills.counts()
        while True:
            ranking = await self.ranking()
            publisher, publication = ranking["publisher"], ranking["publication"]
            last_s = publication["last_published_ms"] // 1000
            if publisher not in (None, but) and publication["publishing"] and last_s > self._newest_s:
                break
            await trio.sleep(0.2)
        meta = (await self.status(publisher))["meta"]
        lease_set = verify_meta_lease_set(decode(meta["lastPublishedLS"]), last_s)
        assert lease_set.destination == self._destination
        assert lease_set.published_s > self._newest_s
        self._newest_s = lease_set.published_s
        newer = await self.stored(counts)
        offline = lease_set.offline is not None
        tell("published", by=publisher, offline=offline, leases=len(lease_set.leases), newer=newer)
        return int(publisher)

    async def stored(self, counts: list[int], *, again: bool = False) -> list[int]:
        """How many newer ones each floodfill has stored since ``counts``, once one of them has; with
        ``again`` one that had an earlier one. Whether it passes that on to the other is i2pd's affair."""
        while True:
            now = await self._floodfills.counts()
            newer = [after - before for before, after in zip(counts, now, strict=True)]
            if any(new and (old or not again) for old, new in zip(counts, newer, strict=True)):
                return newer
            await trio.sleep(0.2)

    async def order(self, member: int) -> None:
        """Have it publish now, as an administrator does, and give it time to do so twice."""
        counts = await self._floodfills.counts()
        ordered = await command("publish", "now", "--config", self.config(member))
        await trio.sleep(QUIET_S)
        newer = await self.stored(counts, again=True)
        shown = await command("publish", "show", "--config", self.config(member))
        self._newest_s = shown["last_published_ms"] // 1000
        tell("ordered", ordered=ordered["rows"], shown=shown, newer=newer)


async def live(meta: MetaFarm, farm: ProcessFarm, network: I2pdNetwork) -> None:
    with trio.fail_after(STEP_S):
        first = await meta.published()
    with trio.fail_after(STEP_S):
        await meta.order(first)

    before = await meta.status(first)
    await farm.kill(first)
    with trio.fail_after(STEP_S):
        second = await meta.published(but=first)
    await farm.start(first)
    with trio.fail_after(STEP_S):
        after = await meta.status(first, before["date"])
        while after["meta"].get("publishing") is None:  # its router is being asked
            after = await meta.status(first, after["date"])
    tell("restarted", kept=[last_published(status["meta"]) for status in (before, after)])

    network.kill(second)
    with trio.fail_after(STEP_S):
        third = await meta.published(but=second)
        for _ in range(STATUSES):
            date = (await meta.status(second))["date"]
            await meta.status(second, date)
    shown = await command("publish", "show", "--config", meta.config(second))
    tell("end", names=await meta.names(), turns=[first, second, third], shown=shown)


async def main(directory: Path, keys: str) -> None:
    master_file = directory / "master.key"
    master = create_keys(master_file)
    async with i2pd_network(directory / "routers", PLANS) as network:
        ports = free_ports(len(NODES))
        members = {
            router.id: MemberPlan(
                endpoint=f"ssl://127.0.0.1:{port}",
                admin_url="https://127.0.0.1:0",
                router=router_table(router),
                leaves=(encode(router.leaf),),
                publishers=({"plugin": "i2cp", "address": router.i2cp, "hops": 0},),
            )
            for router, port in zip(network[: len(NODES)], ports, strict=True)
        }
        plan = FarmPlan(
            raft=FAST, interval_ms=INTERVAL_MS, master=encode(master.destination), master_key_file=master_file
        )
        async with process_farm(directory / "farm", members, plan, start=False) as farm:
            if keys == "bundle":
                await hand_out_bundles(farm, master_file)
            for node_id in farm.nodes:
                await farm.start(node_id)
            floodfills = Floodfills(network[-FLOODFILLS:], master.destination)
            await live(MetaFarm(farm, floodfills, master.destination), farm, network)


async def hand_out_bundles(farm: ProcessFarm, master_file: Path) -> None:
    """Each node gets its own in place of the long-term key."""
    ids = ",".join(map(str, farm.nodes))
    out = str(master_file.parent)
    await command("keys", "offline", str(master_file), "--nodes", ids, "--out", out, "--hops", "0")
    for node in farm.nodes.values():
        bundle = master_file.with_name(f"master-{node.id}.bundle")
        (node.directory / "data/secrets/farm.master.key").write_bytes(bundle.read_bytes())


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2])
