"""A service that the publisher `i2cp` publishes at one real router after another: elected, moved in order,
and after the death of a router. Prints what came about, a JSON document per line. In a network namespace:
python -m tests.i2p.service_over_i2cp DIRECTORY [--servers java] [--clients java]
[--hops 3 --carriers 12]"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import trio

from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import PublisherError
from garlicfarm.i2p.encoding import b32_address
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.lab.i2pd import I2pdNetwork, I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.lab.service import i2cp_table
from garlicfarm.lab.site import Client, Fetch, serve_site
from garlicfarm.plugins import make_publisher
from garlicfarm.publisher import Published, Publisher, PublisherSite, PublishOrder
from garlicfarm_plugin_i2cp.service_keeper import LAST_WORDS_S
from tests.i2p.meta_over_i2cp import Floodfills
from tests.i2p.script import Options, options, tell
from tests.publishers.i2cp_keys import now_ms

DEADLINE_S = 1500.0
DRIP_S = 0.1
DRIP = "/drip"
STANDBY_S = 15.0
DRAINED_S = 90 + 60 + LAST_WORDS_S
A, B, C = 1, 2, 3
CLIENT = 4
FLOODFILLS = 4


def plans(told: Options) -> list[RouterPlan]:
    return [
        *[told.servers(is_floodfill=False, carries_tunnels=False, has_leaf=False, has_i2cp=True)] * 3,
        told.clients(is_floodfill=False, has_leaf=False, has_proxy=True),
        *told.carrying(),
        *[RouterPlan(has_leaf=False)] * FLOODFILLS,
    ]


def publisher_at(
    directory: Path, keys: DestinationKeys, router: I2pdRouter, site_port: int, hops: int = 0
) -> Publisher:
    table = i2cp_table(directory, keys, router.id, router.i2cp, f"127.0.0.1:{site_port}", hops=hops)
    site = PublisherSite(farm="farm", node_id=router.id, directory=directory)
    return make_publisher(table.pop("plugin"), table, directory, site)


async def drip(
    proxy: str, host: str, *, task_status: trio.TaskStatus[trio.Event] = trio.TASK_STATUS_IGNORED
) -> None:
    """Receive from the site without end, through an HTTP proxy ``http://HOST:PORT``. Tells, once something
    has come, the event that the proxy has ended it."""
    address, _, port = proxy.removeprefix("http://").rpartition(":")
    has_ended = trio.Event()
    async with await trio.open_tcp_stream(address, int(port)) as stream:
        await stream.send_all(f"GET http://{host}{DRIP} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        is_served = False
        with suppress(trio.BrokenResourceError):
            while data := await stream.receive_some():
                assert is_served or data.startswith(b"HTTP/1.1 200 "), data
                if not is_served:
                    is_served = True
                    task_status.started(has_ended)
        has_ended.set()


async def serve_drip(site_port: int, *, task_status: trio.TaskStatus[int]) -> None:
    """In front of a site: at one path, bytes without end. Tells the port."""

    async def copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
        async for data in source:
            await target.send_all(data)
        await target.send_eof()

    async def handle(client: trio.SocketStream) -> None:
        try:
            async with client:
                head = bytes(await client.receive_some())
                if DRIP.encode() in head:
                    await client.send_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
                    while True:
                        await client.send_all(b"drop\n")
                        await trio.sleep(DRIP_S)
                async with await trio.open_tcp_stream("127.0.0.1", site_port) as site:
                    await site.send_all(head)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(copy, client, site)
                        nursery.start_soon(copy, site, client)
        except* trio.BrokenResourceError:
            pass  # streams are reset where their session ends

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    task_status.started(listener.socket.getsockname()[1])
    await trio.serve_listeners(handle, [listener])


async def standby(publisher: Publisher) -> float:
    """As a node does: again, until it is ready. How long that took, s."""
    begun_s = trio.current_time()
    while True:
        try:
            await publisher.standby()
        except PublisherError as error:
            print(error, file=sys.stderr)
            await trio.sleep(1)
        else:
            return trio.current_time() - begun_s


async def publish(publisher: Publisher, due_index: int) -> Published:
    order = PublishOrder(due_index=due_index, published_ms=now_ms(), expires_ms=now_ms() + 600_000)
    published = await publisher.publish(order)
    assert (await publisher.status()).is_publishing
    return published


async def figures(publisher: Publisher) -> object:
    """What is reported of its leaf."""
    return msgspec.to_builtins((await publisher.status()).leaf)


async def wait_acknowledged(publisher: Publisher) -> None:
    """Until a client has acknowledged something of a stream that is open."""
    while True:
        leaf = (await publisher.status()).leaf
        if leaf and leaf.streams and leaf.streams.round_trip_ms is not None:
            return
        await trio.sleep(0.1)  # no figure wakes anyone


async def wait_published_again(publisher: Publisher) -> None:
    """Until its router has been given another LeaseSet than now."""
    until_ms = (await publisher.status()).until_ms
    while (await publisher.status()).until_ms == until_ms:
        await publisher.wait_changed()


async def wait_not_ready(publisher: Publisher) -> float:
    """How long it took, s."""
    begun_s = trio.current_time()
    while (await publisher.status()).is_ready:
        await publisher.wait_changed()
    return trio.current_time() - begun_s


def lost(fetches: list[Fetch], since_s: float, until_s: float) -> int:
    """How many requests that began in this time were not answered."""
    return sum(each.text is None for each in fetches if since_s <= each.began_s < until_s)


async def run(told: Options, network: I2pdNetwork, nursery: trio.Nursery) -> None:
    directory, hops = told.directory, told.hops
    # Clients at i2pd, which are handed over, are reset long before they give up by themselves.
    reset_s = DRAINED_S / 2 if told.servers is RouterPlan else DRAINED_S
    keys = create_keys(directory / "site.key")
    floodfills = Floodfills(network[-FLOODFILLS:], keys.destination)
    made = {}
    for router in network[:3]:
        port = await nursery.start(serve_site, f"node {router.id}")
        target = await nursery.start(serve_drip, port)
        made[router.id] = publisher_at(directory, keys, router, target, hops)
    a, b, c = made[A], made[B], made[C]
    host = b32_address(keys.destination)
    client = Client(network[CLIENT - 1].proxy, host)
    async with a, b, c:
        tell("standby", seconds=[await standby(each) for each in (a, b, c)])
        await trio.sleep(STANDBY_S)
        tell("unpublished", counts=await floodfills.counts())
        # At the beginning of a second: a date that is rounded up is ahead of the clock by almost a second.
        await trio.sleep(1 - now_ms() % 1000 / 1000)
        begun_s = trio.current_time()
        await publish(a, 1)
        nursery.start_soon(client.run)
        first = await client.wait_answered()
        tell("elected", seconds=first.ended_s - begun_s)

        await trio.sleep(STANDBY_S)
        await wait_published_again(a)  # the successor's LeaseSet has to be newer than this one, too
        has_ended = await nursery.start(drip, network[CLIENT - 1].proxy, host)
        await wait_acknowledged(a)
        tell("figures", publishes=await figures(a), stands_by=await figures(b))
        until_ms = (await a.status()).until_ms or 0
        begun_s = trio.current_time()
        await a.retire(None)
        published = await publish(b, 2)
        await a.retire(published.lease_set)
        problems = (await a.status()).problems
        first = await client.wait_answered(but="node 1")
        left_s = until_ms / 1000 - time.time()
        tell("moved", seconds=first.ended_s - begun_s, left_s=left_s, problems=problems, text=first.text)
        with trio.move_on_after(reset_s) as waiting:
            await has_ended.wait()
        tell("drained", has_ended=not waiting.cancelled_caught)
        await trio.sleep(STANDBY_S)
        tell(
            "stays", lost=lost(client.fetches, begun_s, trio.current_time() - 7), text=client.fetches[-1].text
        )

        begun_s = trio.current_time()
        network.kill(B)
        tell("gone", seconds=await wait_not_ready(b), problems=(await b.status()).problems)
        await publish(c, 3)
        first = await client.wait_answered(but="node 2")
        tell("survived", seconds=first.ended_s - begun_s)

        await network.start(B)
        tell("restarted", seconds=await standby(b))
        await trio.sleep(max(0.0, DRAINED_S - (trio.current_time() - begun_s)))
        await standby(a)
        counts = await floodfills.counts()
        await c.retire(None)
        await publish(a, 4)
        first = await client.wait_answered(but="node 3")
        tell("back", counts=counts)


async def main(told: Options) -> None:
    routers = i2pd_network(told.directory / "routers", plans(told), hops=told.hops)
    with trio.fail_after(DEADLINE_S):
        async with routers as network, trio.open_nursery() as nursery:
            await run(told, network, nursery)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, options())
