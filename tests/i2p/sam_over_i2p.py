"""A service that `SamPublisher` publishes on one real router after another; prints what came about, a JSON
document per line. In a network namespace: python -m tests.i2p.sam_over_i2p DIRECTORY"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import h11
import trio

from garlicfarm.credentials.destination_keys import create_keys, read_keys, write_bundle
from garlicfarm.errors import PublisherError
from garlicfarm.i2p.encoding import b32_address
from garlicfarm.i2p.keys import DestinationKeys, make_bundle
from garlicfarm.lab.i2pd import I2pdNetwork, I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.publisher import PublisherSite, PublishOrder
from garlicfarm_plugin_sam import SamConfig, SamPublisher

PAGE = b"served\n"
PORT = 8080
HANG_GUARD_S = 700.0  # a client that meets leases of a dead router keeps them until they expire
A, B, C, D, E = range(5)
PLANS = [
    *[RouterPlan(has_leaf=False, has_sam=True)] * 2,
    *[RouterPlan(has_leaf=False, has_proxy=True, is_floodfill=False)] * 3,
    RouterPlan(has_leaf=False),
]


async def serve(stream: trio.SocketStream) -> None:
    """Answer one HTTP request with `PAGE`, and close."""
    http = h11.Connection(h11.SERVER)
    try:
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive_some())
            elif isinstance(event, h11.ConnectionClosed):
                return
        headers = [("Content-Length", str(len(PAGE))), ("Connection", "close")]
        for answer in (h11.Response(status_code=200, headers=headers), h11.Data(data=PAGE)):
            await stream.send_all(http.send(answer) or b"")
    except (trio.BrokenResourceError, h11.RemoteProtocolError):
        return


def publisher(router: I2pdRouter, keys: Path, address: str = "") -> SamPublisher:
    """A publisher at ``router``, or at another ``address``, without hops."""
    config = SamConfig(address=address or router.sam, keys=keys.name, hops=0, quantity=2)
    return SamPublisher(config, keys.parent, PublisherSite(farm="farm", node_id=1, directory=keys.parent))


def order(due_index: int) -> PublishOrder:
    now_ms = time.time_ns() // 1_000_000
    return PublishOrder(due_index=due_index, published_ms=now_ms, expires_ms=now_ms + 600_000)


async def fetch(router: I2pdRouter, keys: DestinationKeys) -> float:
    """How long it takes until curl, through the HTTP proxy of ``router``, gets the page, s."""
    command = ["curl", "--disable", "--silent", "--fail", "--max-time", "15", "--noproxy", ""]
    command += ["--proxy", router.proxy, f"http://{b32_address(keys.destination)}/"]
    begun = trio.current_time()
    with trio.fail_after(HANG_GUARD_S):
        while True:
            answer = await trio.run_process(command, capture_stdout=True, check=False)
            if answer.returncode == 0 and answer.stdout == PAGE:
                return trio.current_time() - begun
            await trio.sleep(0.5)


def tell(what: str, **facts: object) -> None:
    print(json.dumps({"what": what} | facts), flush=True)


async def publish(made: SamPublisher, due_index: int) -> float:
    begun = trio.current_time()
    with trio.fail_after(HANG_GUARD_S):
        await made.publish(order(due_index))
    assert (await made.status()).is_publishing
    return trio.current_time() - begun


async def lost(made: SamPublisher) -> tuple[float, str]:
    """After how many seconds it no longer publishes, and why."""
    begun = trio.current_time()
    with trio.fail_after(HANG_GUARD_S):
        while (await made.status()).is_publishing:  # noqa: ASYNC110 - as the node asks
            await trio.sleep(0.05)
    (problem,) = (await made.status()).problems
    return trio.current_time() - begun, problem


async def run(directory: Path, network: I2pdNetwork) -> None:
    keys_path = directory / "service.key"
    keys = create_keys(keys_path)

    tell("no-sam", problem=await refused(publisher(network[A], keys_path, address="127.0.0.1:7999")))
    proxy = network[C].proxy.removeprefix("http://")
    tell("no-sam", problem=await refused(publisher(network[A], keys_path, address=proxy)))

    first = publisher(network[A], keys_path)
    async with first:
        await first.standby()
        tell("published", seconds=await publish(first, 1))
        tell("fetched", seconds=await fetch(network[C], keys))
        with trio.fail_after(HANG_GUARD_S):
            await first.retire(None)

        second = publisher(network[B], keys_path)
        async with second:
            await second.standby()
            tell("published", seconds=await publish(second, 2))
            tell("fetched", seconds=await fetch(network[D], keys))
            network.kill(B + 1)
            seconds, problem = await lost(second)
            tell("killed", seconds=seconds, problem=problem)
        await first.standby()
        tell("published", seconds=await publish(first, 3))  # the same destination on the same router
        tell("fetched", seconds=await fetch(network[E], keys))
        os.kill(network[A].pid, signal.SIGSTOP)
        seconds, problem = await lost(first)
        tell("hangs", seconds=seconds, problem=problem)
        os.kill(network[A].pid, signal.SIGCONT)
        await first.standby()
        tell("published", seconds=await publish(first, 4))

    now_ms = time.time_ns() // 1_000_000
    expires_s = now_ms // 1000 + 3600
    seed = secrets.token_bytes(32)
    other = create_keys(directory / "other.key")
    bundle = make_bundle(other, seed, node=1, expires_s=expires_s, now_ms=now_ms, hops=0, quantity=2)
    write_bundle(directory / "other.bundle", bundle)
    async with publisher(network[A], directory / "other.bundle") as third:
        await third.standby()
        tell("published", seconds=await publish(third, 5), transient=third.key is not None)
        tell("fetched", seconds=await fetch(network[C], read_keys(directory / "other.bundle")))


async def refused(made: SamPublisher) -> str:
    async with made:
        try:
            await made.standby()
        except PublisherError as error:
            return str(error)
    return ""


@asynccontextmanager
async def service() -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, serve, PORT, host="127.0.0.1"))
        yield
        nursery.cancel_scope.cancel()


async def main(directory: Path) -> None:
    async with i2pd_network(directory, PLANS) as network, service():
        await run(directory, network)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
