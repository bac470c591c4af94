"""A service that `SamPublisher` publishes on one real router after another; prints what came about, a JSON
document per line. In a network namespace:
python -m tests.i2p.sam_over_i2p DIRECTORY [--servers java] [--clients java] [--hops 1]"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import trio

from garlicfarm.credentials.destination_keys import create_keys, write_bundle
from garlicfarm.errors import PublisherError, UnreachableError
from garlicfarm.i2p.encoding import b32_address
from garlicfarm.lab import site
from garlicfarm.lab.i2pd import I2pdNetwork, I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.publisher import PublisherSite, PublishOrder
from garlicfarm_plugin_sam import SamConfig, SamPublisher
from tests.i2p.meta_over_i2cp import Floodfills
from tests.i2p.script import Options, options, tell
from tests.publishers.i2cp_keys import bundle, now_ms

PAGE = "served"
PORT = 8080
HANG_GUARD_S = 700.0  # a client that meets leases of a dead router keeps them until they expire
A, B, C, D, E = range(5)
FLOODFILLS = 3


def plans(told: Options) -> list[RouterPlan]:
    return [
        *[told.servers(has_leaf=False, has_sam=True, is_floodfill=False)] * 2,
        *[told.clients(has_leaf=False, has_proxy=True, is_floodfill=False)] * 3,
        *told.carrying(),
        *[RouterPlan(has_leaf=False)] * FLOODFILLS,
    ]


def publisher(router: I2pdRouter, keys: Path, hops: int, address: str = "") -> SamPublisher:
    """A publisher at ``router``, or at another ``address``."""
    config = SamConfig(address=address or router.sam, keys=keys.name, hops=hops, quantity=2)
    return SamPublisher(config, keys.parent, PublisherSite(farm="farm", node_id=1, directory=keys.parent))


async def fetch(router: I2pdRouter, destination: bytes) -> float:
    """How long it takes until the service's page comes through the HTTP proxy of ``router``, s."""
    begun = trio.current_time()
    with trio.fail_after(HANG_GUARD_S):
        while True:
            with suppress(UnreachableError), trio.move_on_after(15):
                assert await site.fetch(router.proxy, b32_address(destination)) == PAGE
                return trio.current_time() - begun
            await trio.sleep(0.5)


async def publish(made: SamPublisher, due_index: int) -> float:
    begun = trio.current_time()
    with trio.fail_after(HANG_GUARD_S):
        date_ms = now_ms()
        await made.publish(
            PublishOrder(due_index=due_index, published_ms=date_ms, expires_ms=date_ms + 600_000)
        )
    assert (await made.status()).is_publishing
    return trio.current_time() - begun


async def succeed(made: SamPublisher, due_index: int, floodfills: Floodfills) -> float:
    """The same after another publisher. Returns once all floodfills have the LeaseSet: a client that is given
    the former one keeps that for as long as its leases last."""
    before = await floodfills.counts()
    took_s = await publish(made, due_index)
    await floodfills.all_newer(before)
    return took_s


async def lost(made: SamPublisher) -> tuple[float, str]:
    """After how many seconds it no longer publishes, and why."""
    begun = trio.current_time()
    with trio.fail_after(HANG_GUARD_S):
        while (await made.status()).is_publishing:  # noqa: ASYNC110 - as the node asks
            await trio.sleep(0.05)
    (problem,) = (await made.status()).problems
    return trio.current_time() - begun, problem


async def run(directory: Path, network: I2pdNetwork, hops: int) -> None:
    keys_path = directory / "service.key"
    keys = create_keys(keys_path)
    floodfills = Floodfills(network[-FLOODFILLS:], keys.destination)

    tell("no-sam", problem=await refused(publisher(network[A], keys_path, hops, "127.0.0.1:7999")))
    proxy = network[C].proxy.removeprefix("http://")
    tell("no-sam", problem=await refused(publisher(network[A], keys_path, hops, proxy)))

    first = publisher(network[A], keys_path, hops)
    async with first:
        await first.standby()
        tell("published", seconds=await publish(first, 1))
        tell("fetched", seconds=await fetch(network[C], keys.destination))
        with trio.fail_after(HANG_GUARD_S):
            await first.retire(None)

        second = publisher(network[B], keys_path, hops)
        async with second:
            await second.standby()
            tell("published", seconds=await succeed(second, 2, floodfills))
            tell("fetched", seconds=await fetch(network[D], keys.destination))
            network.kill(B + 1)
            seconds, problem = await lost(second)
            tell("killed", seconds=seconds, problem=problem)
        await first.standby()
        # The same destination on the same router.
        tell("published", seconds=await succeed(first, 3, floodfills))
        tell("fetched", seconds=await fetch(network[E], keys.destination))
        os.kill(network[A].pid, signal.SIGSTOP)
        seconds, problem = await lost(first)
        tell("hangs", seconds=seconds, problem=problem)
        os.kill(network[A].pid, signal.SIGCONT)
        await first.standby()
        tell("published", seconds=await publish(first, 4))

    other = bundle(now_ms(), hops=hops)
    write_bundle(directory / "other.bundle", other)
    async with publisher(network[A], directory / "other.bundle", hops) as third:
        await third.standby()
        tell("published", seconds=await publish(third, 5), transient=third.key is not None)
        tell("fetched", seconds=await fetch(network[C], other.destination))


async def refused(made: SamPublisher) -> str:
    async with made:
        try:
            await made.standby()
        except PublisherError as error:
            return str(error)
    return ""


async def main(told: Options) -> None:
    routers = i2pd_network(told.directory, plans(told), hops=told.hops)
    async with routers as network, trio.open_nursery() as nursery:
        await nursery.start(site.serve_site, PAGE, PORT)
        await run(told.directory, network, told.hops)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, options())
