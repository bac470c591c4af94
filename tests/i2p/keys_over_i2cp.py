"""The bundles of a service are replaced at members that publish or stand by, through real routers, while a
client asks each second. Prints what came about, a JSON document per line. In a network namespace:
python -m tests.i2p.keys_over_i2cp DIRECTORY [--servers java] [--clients java] [--hops 1 --carriers 2]"""

from __future__ import annotations

import trio

from garlicfarm.i2p.encoding import b32_address
from garlicfarm.i2p.lease_set import verify_lease_set
from garlicfarm.lab.i2pd import I2pdNetwork, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.lab.site import Client, serve_site
from garlicfarm.publisher import Published, Publisher
from tests.i2p.meta_over_i2cp import Floodfills
from tests.i2p.script import Options, options, tell
from tests.i2p.service_over_i2cp import lost, publish, publisher_at, standby
from tests.publishers.i2cp_keys import long_term_keys, now_ms
from tests.publishers.renewed_keys import renew
from tests.running import wait_until

DEADLINE_S = 1200.0
WATCHED_S = 45.0
"""Since the right one has answered first; clients of i2pd look again within 39 s."""
SETTLED_S = 30.0
STANDBY_S = 15.0
A, B, CLIENT = 1, 2, 3
FLOODFILLS = 3


def plans(told: Options) -> list[RouterPlan]:
    return [
        *[told.servers(is_floodfill=False, carries_tunnels=False, has_leaf=False, has_i2cp=True)] * 2,
        told.clients(is_floodfill=False, has_leaf=False, has_proxy=True),
        *told.carrying(),
        *[RouterPlan(has_leaf=False)] * FLOODFILLS,
    ]


def transient(published: Published) -> bytes:
    """That which has signed it."""
    assert published.lease_set is not None
    offline = verify_lease_set(published.lease_set, published.published_ms // 1000).offline
    assert offline is not None
    return offline.transient


async def wait_not_ready(publisher: Publisher) -> list[str]:
    """Until it has read the new keys."""
    while (status := await publisher.status()).is_ready:
        await publisher.wait_changed()
    return list(status.problems)


async def run(told: Options, network: I2pdNetwork, nursery: trio.Nursery) -> None:
    directory, hops = told.directory, told.hops
    keys = long_term_keys()
    a, b = [
        publisher_at(directory, keys, network[id_ - 1], await nursery.start(serve_site, f"node {id_}"), hops)
        for id_ in (A, B)
    ]
    floodfills = Floodfills(network[-FLOODFILLS:], keys.destination)
    client = Client(network[CLIENT - 1].proxy, b32_address(keys.destination))

    async def watch(but: str | None = None) -> str | None:
        """What the last request was answered, a while after one was that was not answered ``but``."""
        await client.wait_answered(but)
        await trio.sleep(WATCHED_S)
        return client.fetches[-1].text

    def replace(id_: int) -> bytes:
        (path,) = (each for each in directory.rglob("*.bundle") if f"{id_}" in each.name)
        offline = renew(path, now_ms(), node=id_, hops=hops).offline
        assert offline is not None
        return offline.transient

    async with a, b:
        for each in (a, b):
            await standby(each)
        new, before = replace(A), a.key
        await wait_until(lambda: a.key != before)
        await trio.sleep(STANDBY_S)
        tell("unpublished", counts=await floodfills.counts())
        tell("standby", is_ready=(await a.status()).is_ready, is_new=transient(await publish(a, 1)) == new)
        nursery.start_soon(client.run)
        await client.wait_answered()
        await trio.sleep(SETTLED_S)

        begun_s = trio.current_time()
        new = replace(A)
        problems = await wait_not_ready(a)
        await a.retire(None)  # as the node does once it cannot publish
        await publish(b, 2)
        await standby(a)
        text = await watch(but="node 1")
        tell(
            "moved", problems=problems, lost=lost(client.fetches, begun_s, trio.current_time() - 7), text=text
        )

        begun_s = trio.current_time()
        await b.retire(None)
        published = await publish(a, 3)
        await b.retire(published.lease_set)
        await standby(b)
        text = await watch(but="node 2")
        missed = lost(client.fetches, begun_s, trio.current_time() - 7)
        tell("back", is_new=transient(published) == new, lost=missed, text=text)

        begun_s = trio.current_time()
        new = replace(A)
        await wait_not_ready(a)
        await a.retire(None)
        await standby(a)
        published = await publish(a, 4)  # nobody else could
        await watch()
        missed = lost(client.fetches, begun_s, trio.current_time() - 7)
        tell("alone", is_new=transient(published) == new, lost=missed, is_ready=(await a.status()).is_ready)
        nursery.cancel_scope.cancel()


async def main(told: Options) -> None:
    routers = i2pd_network(told.directory / "routers", plans(told), hops=told.hops)
    with trio.fail_after(DEADLINE_S):
        async with routers as network, trio.open_nursery() as nursery:
            await run(told, network, nursery)


if __name__ == "__main__":
    trio.run(main, options())
