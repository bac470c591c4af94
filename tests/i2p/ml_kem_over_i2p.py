"""A service that offers ML-KEM where its routers have it, through real i2pd routers: elected, moved in order,
after the death of a router by a node that has just been started, and moved in order once more. Prints what
came about, a JSON document per line. In a network namespace:
python -m tests.i2p.ml_kem_over_i2p DIRECTORY SECONDS HOPS

Three routers serve, by the publisher `i2cp` in this process; of two clients, one prefers ML-KEM if its i2pd
has it, and one knows X25519 only. A member publishes once it knows that its router has ML-KEM, or so many
seconds after it is on standby. With 0, the rest is left out: `service_over_i2cp` shows the same.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import trio

from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.i2p.encoding import b32_address
from garlicfarm.lab.i2pd import I2pdNetwork, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.lab.service import i2cp_table
from garlicfarm.lab.site import Client, serve_site
from garlicfarm.plugins import make_publisher
from garlicfarm.publisher import Publisher, PublisherSite
from tests.i2p.meta_over_i2cp import Floodfills
from tests.i2p.script import tell
from tests.i2p.service_over_i2cp import (
    lost,
    publish,
    standby,
    wait_not_ready,
    wait_published_again,
)
from tests.running import wait_until

SERVED_S = 180.0
SETTLED_S = 15.0
A, B, C = 1, 2, 3
CLIENTS = slice(3, 5)
FLOODFILLS = 3


class X25519Plan(RouterPlan):
    """Its HTTP proxy knows no other encryption."""

    def command(self, data_dir: Path) -> list[str]:
        return [*super().command(data_dir), "--httpproxy.i2cp.leaseSetEncType=4"]


PLANS = [
    *[RouterPlan(is_floodfill=False, has_leaf=False, has_i2cp=True)] * 3,
    *[
        kind(is_floodfill=False, has_leaf=False, has_proxy=True, has_console=True)
        for kind in (RouterPlan, X25519Plan)
    ],
    *[RouterPlan(has_leaf=False)] * FLOODFILLS,
]


async def encryption(publisher: Publisher) -> str:
    return (await publisher.status()).encryption


async def wait_ml_kem(publisher: Publisher, wait_s: float) -> None:
    async def has_it() -> bool:
        return "ML-KEM" in await encryption(publisher)

    await standby(publisher)
    with trio.move_on_after(wait_s):
        await wait_until(has_it, every_s=1)
        await standby(publisher)


async def page(client: httpx.AsyncClient, url: str) -> str:
    """A page of a console of i2pd, which now and then closes the connection without an answer."""
    for _ in range(3):
        with suppress(httpx.RemoteProtocolError):
            return (await client.get(url)).text
    raise AssertionError(f"{url} was not answered")


async def chosen(console: str, host: str) -> list[int]:
    """The type of encryption with which each destination of a client's router sends to the service, by the
    console of that router: that of i2pd 2.45 does not know it."""
    name = host.removesuffix(".b32.i2p")
    async with httpx.AsyncClient(trust_env=False) as client:
        index = await page(client, f"{console}/?page=local_destinations")
        pages = [
            await page(client, f"{console}/?page=local_destination&b32={each}")
            for each in set(re.findall(r"page=local_destination&b32=([a-z2-7]{52})", index))
        ]
    row = re.compile(rf"<td>{name}</td>\s*<td>.*?</td>\s*<td>\d+</td>\s*<td>(\d+)</td>", re.DOTALL)
    return sorted(int(each) for page in pages for each in row.findall(page))


async def run(directory: Path, wait_s: float, hops: int, network: I2pdNetwork, nursery: trio.Nursery) -> None:
    keys = create_keys(directory / "site.key")
    host = b32_address(keys.destination)
    ports = {id_: await nursery.start(serve_site, f"node {id_}") for id_ in (A, B, C)}
    floodfills = Floodfills(network[-FLOODFILLS:], keys.destination)
    clients = [Client(each.proxy, host) for each in network[CLIENTS]]

    tables = {
        id_: i2cp_table(directory, keys, id_, network[id_ - 1].i2cp, f"127.0.0.1:{port}", hops=hops)
        for id_, port in ports.items()
    }

    def made(id_: int) -> Publisher:
        site = PublisherSite(farm="farm", node_id=id_, directory=directory)
        table = tables[id_] | {"encryption": "auto"}
        return make_publisher(table.pop("plugin"), table, directory, site)

    async def tell_served(what: str, by: Publisher, id_: int, since_s: float) -> None:
        """Once all clients are served by this node, and for a while."""
        with trio.fail_after(SERVED_S):
            for client in clients:
                while (await client.wait_answered()).text != f"node {id_}":
                    pass
        seconds = trio.current_time() - since_s
        await trio.sleep(SETTLED_S)
        tell(
            what,
            seconds=round(seconds, 1),
            encryption=await encryption(by),
            chosen=[await chosen(each.console, host) for each in network[CLIENTS]],
            lost=[lost(each.fetches, since_s, trio.current_time() - 7) for each in clients],
            texts=[each.fetches[-1].text for each in clients],
        )

    async def move(to: Publisher, due_index: int, *, by: Publisher) -> float:
        await wait_published_again(by)  # the successor's LeaseSet has to be newer than this one, too
        begun_s = trio.current_time()
        await by.retire(None)
        published = await publish(to, due_index)
        await by.retire(published.lease_set)
        return begun_s

    async with made(B) as b, made(C) as c:
        async with made(A) as a:
            for each in (a, b, c):
                await wait_ml_kem(each, wait_s)
            await trio.sleep(SETTLED_S)
            tell("standby", counts=await floodfills.counts())
            begun_s = trio.current_time()
            await publish(a, 1)
            for client in clients:
                nursery.start_soon(client.run)
            await tell_served("elected", a, A, begun_s)
            if not wait_s:
                return

            begun_s = await move(b, 2, by=a)
            await tell_served("moved", b, B, begun_s)

        async with made(A) as a:
            await standby(a)
            begun_s = trio.current_time()
            network.kill(B)
            await wait_not_ready(b)
            await publish(a, 3)  # which may not know yet that its router has ML-KEM
            await tell_served("survived", a, A, begun_s)

            begun_s = await move(c, 4, by=a)
            await tell_served("moved again", c, C, begun_s)


async def main(directory: Path, wait_s: float, hops: int) -> None:
    routers = i2pd_network(directory / "routers", PLANS, hops=hops)
    async with routers as network, trio.open_nursery() as nursery:
        await run(directory, wait_s, hops, network, nursery)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
