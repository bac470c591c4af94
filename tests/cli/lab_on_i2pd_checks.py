"""Run inside a network namespace: the lab on three real i2pd routers, and what its members committed.

Prints one line of JSON; `test_lab.py` judges the exit code.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import trio

from garlicfarm.cli.lab import running_lab
from garlicfarm.lab.processes import ProcessFarm

DEADLINE_S = 240.0
KIB = 1024


async def statuses(farm: ProcessFarm, node_id: int) -> list[dict[str, Any]]:
    """The statuses in the log, read from one node."""
    async with farm.nodes[node_id].client() as client:
        page, _ = await client.page(farm.name, 0)
    documents = [json.loads(entry.value) for entry in page.entries]
    return [one for one in documents if "admin" not in one["config"]]


async def publishers(farm: ProcessFarm) -> set[int | None]:
    found: set[int | None] = set()
    for node in farm.nodes.values():
        async with node.client() as client:
            found.add((await client.ranking(farm.name))["publisher"])
    return found


async def main(directory: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with running_lab(directory, 3, 1000, "i2pcontrol") as farm:
            told: dict[int, list[dict[str, Any]]] = {}
            while len(told) < 3 or min(map(len, told.values())) < 4:
                await trio.sleep(0.5)
                told = {}
                for status in await statuses(farm, 1):
                    told.setdefault(status["id"], []).append(status)
            named = await publishers(farm)
    for node_id, posted in told.items():
        routers = [status["router"] for status in posted]
        uptimes = [router["uptime"] for router in routers]
        assert uptimes == sorted(uptimes), uptimes
        assert uptimes[-1] > uptimes[0], uptimes
        bandwidth = (4096 + 512 * (node_id - 1)) * KIB  # what the configuration file of each router says
        assert routers[-1]["configuredBandwidth"] == {"in": bandwidth, "out": bandwidth}
        assert isinstance(routers[-1]["participatingTunnels"], int)
        assert not {"jobLag", "exploratoryTunnels"} & routers[-1].keys()  # i2pd has none: not invented
        assert "publishing" not in posted[-1]["meta"]  # I2PControl cannot publish
    assert len(named) == 1, named
    assert named != {None}
    print(json.dumps({"publisher": named.pop(), "statuses": {k: len(v) for k, v in told.items()}}))


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
