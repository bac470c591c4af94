"""Run inside a network namespace: what plans make of routers, printed as a line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio

from garlicfarm.lab.i2pd import I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan

STORED_S = 240.0
PLANS = (
    RouterPlan(log_level="info", has_leaf=False),
    RouterPlan(log_level="info", has_leaf=False),
    RouterPlan(is_floodfill=False, has_sam=True, has_i2cp=True),
    RouterPlan(is_floodfill=False, has_sam=True, has_leaf=False, has_proxy=True),
)


async def hello(router: I2pdRouter) -> str:
    """What SAM answers, "" if there is none."""
    if not router.sam:
        return ""
    host, _, port = router.sam.rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(b"HELLO VERSION MIN=3.0 MAX=3.1\n")
        return (await stream.receive_some(100)).decode().strip()


async def stored(router: I2pdRouter) -> int:
    """How many LeaseSets a floodfill has stored so far, once it has stored one."""
    log = trio.Path(router.data_dir / "i2pd.log")
    while not (lines := (await log.read_text()).count("LeaseSet2 updated: ")):  # noqa: ASYNC110 - of another process
        await trio.sleep(0.2)
    return lines


def runs(router: I2pdRouter) -> bool:
    return Path(f"/proc/{router.pid}").exists()


async def main(directory: Path) -> None:
    async with i2pd_network(directory, PLANS) as network:
        with trio.fail_after(STORED_S):
            found = {
                "ids": [router.id for router in network],
                "leaves": [len(router.leaf) for router in network],
                "proxies": [router.proxy for router in network],
                "hello": [await hello(router) for router in network],
                "stored": [await stored(router) for router in network[:2]],
            }
            host, _, port = network[2].i2cp.rpartition(":")
            await (await trio.open_tcp_stream(host, int(port))).aclose()
        killed = network[2]
        network.kill(killed.id)
        found["dead"] = not runs(killed) and not network.is_running(killed.id)
        started = await network.start(killed.id)
        found["restarted"] = started == network[2] != killed and runs(started)
        found["running"] = network.is_running(started.id)
        found["hello again"] = await hello(started)
        print(json.dumps(found))


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
