"""A farm whose publisher's bundle is replaced while it runs, through real routers, while a client asks each
second. Prints what came about, a JSON document per line. In a network namespace:
python -m tests.i2p.renewed_over_i2cp DIRECTORY"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import trio

from garlicfarm.credentials.destination_keys import read_keys, write_bundle
from garlicfarm.i2p.keys import make_bundle
from garlicfarm.lab.processes import ProcessFarm
from garlicfarm.lab.service import i2cp_service
from garlicfarm.lab.site import Client
from tests.i2p.script import tell
from tests.i2p.service_over_i2cp import lost
from tests.publishers.i2cp_keys import DAY_S, now_ms
from tests.running import wait_until

DEADLINE_S = 540.0
WATCHED_S = 60.0
SETTLED_S = 30.0


async def status(farm: ProcessFarm, node_id: int = 1) -> dict[str, Any]:
    async with farm.nodes[node_id].client() as client:
        return await client.status(farm.name)


async def row(farm: ProcessFarm, node_id: int) -> dict[str, Any]:
    """The node's publisher of the service."""
    (found,) = (await status(farm, node_id))["publishers"]
    return dict(found)


async def publisher(farm: ProcessFarm, but: int = 0) -> int:
    """The member that publishes."""

    async def found() -> int:
        named = (await status(farm))["publisher"] or 0
        stands = named not in (0, but) and (await row(farm, named))["state"] == "publishing"
        return int(named) if stands else 0

    return int(await wait_until(found, 0.2))


async def transients(farm: ProcessFarm, node_id: int) -> list[str]:
    """Of the node's newest status."""
    async with farm.nodes[node_id].client() as client:
        ranking = await client.ranking(farm.name, statuses=True)
    (one,) = (member for member in ranking["members"] if member["id"] == node_id)
    return list(one["status"]["config"]["node"]["transients"])


async def run(directory: Path) -> None:
    async with i2cp_service(directory, 1, senses=True) as (service, farm), trio.open_nursery() as nursery:
        first = await publisher(farm)
        client = Client(service.clients[0].proxy, service.host)
        nursery.start_soon(client.run)
        await client.wait_answered()

        async def is_reached() -> bool:
            return "reached it in" in (await row(farm, first))["seen"]

        await wait_until(is_reached, 1)
        tell("seen", text=(await row(farm, first))["seen"])
        await trio.sleep(SETTLED_S)

        begun_s = trio.current_time()
        path = directory / f"site-{first}.bundle"
        bundle = make_bundle(
            read_keys(directory / "site.key"),
            bytes(32),
            node=first,
            expires_s=now_ms() // 1000 + DAY_S * 30,
            now_ms=now_ms(),
            hops=0,
            quantity=2,
        )
        path.unlink()
        write_bundle(path, bundle)
        second = await publisher(farm, but=first)
        moved_s = trio.current_time() - begun_s
        await client.wait_answered(but=f"node {first}")
        await trio.sleep(WATCHED_S)
        told = lost(client.fetches, begun_s, trio.current_time() - 7)
        tell("moved", seconds=moved_s, lost=told, text=client.fetches[-1].text, by=f"node {second}")

        async def is_used() -> bool:
            return bundle.transient in await transients(farm, first)

        await wait_until(is_used, 1)
        tell("used", seconds=trio.current_time() - begun_s, problems=(await row(farm, first))["problems"])
        nursery.cancel_scope.cancel()


async def main(directory: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        await run(directory)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
