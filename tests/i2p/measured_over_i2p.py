"""The router plugin measures leaves of other real routers through SAM; prints what it found, a JSON document
per line. In a network namespace: python -m tests.i2p.measured_over_i2p DIRECTORY

One of them it measures again and again: an i2pd whose client closes a stream and its session at once (see
`SamSession.connect`) ends after some ten measurements.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec
import trio

from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import RouterError
from garlicfarm.i2p.encoding import b32_address
from garlicfarm.lab.i2pd import I2pdNetwork, I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.net.sam import SamSession, sam_endpoint
from garlicfarm.router import RemoteStatus
from garlicfarm_plugin_i2pcontrol import I2PControlConfig, I2PControlRouter
from tests.i2p.script import tell

HANG_GUARD_S = 240.0
AT_ONCE, EACH = 4, 3
USED_AGAIN_S = 25.0
"""i2pd uses a stream that it forgot to end every 20 s, and has freed its destination after 5 s."""
SERVICE_PORT = 9000  # of the tunnel "leaf"
NO_HOPS = {"inbound.length": "0", "outbound.length": "0"}
PLANS = [RouterPlan(has_leaf=False, has_sam=True, is_floodfill=False), RouterPlan(), RouterPlan()]


def plugin(router: I2pdRouter, **more: object) -> I2PControlRouter:
    keys = {
        "url": router.url,
        "password_file": str(router.password_file),
        "pin": router.pin,
        "sam": router.sam,
        "hops": 0,
    } | more
    return I2PControlRouter(msgspec.convert(keys, I2PControlConfig), Path())


def tell_measured(what: str, found: RemoteStatus) -> None:
    test = found.connect_test
    assert test is not None
    tell(what, fetched_ms=found.fetch_time_ms, ms=test.ms, ok=test.ok)


async def measure(
    router: I2PControlRouter, hash_: bytes, is_wanted: Callable[[RemoteStatus], bool]
) -> RemoteStatus:
    """The first measurement that is as wanted: after a start, LeaseSets are published some seconds later."""
    with trio.fail_after(HANG_GUARD_S):
        while True:
            try:
                found = await router.get_remote_measured_status(hash_)
            except RouterError as error:  # it has no tunnels yet
                tell("not-measured", problem=str(error))
                await trio.sleep(1)
                continue
            assert found is not None
            if is_wanted(found):
                return found


def is_reached(found: RemoteStatus) -> bool:
    return found.connect_test is not None and found.connect_test.ok


async def answer(stream: trio.SocketStream) -> None:
    """As servers of HTTP/1.1 do, it leaves the connection open."""
    while request := await stream.receive_some():
        assert request.startswith(b"HEAD / HTTP/1.1\r\n")
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


async def hold(stream: trio.SocketStream) -> None:
    while await stream.receive_some():
        pass


async def run(directory: Path, network: I2pdNetwork) -> None:
    asker, served = plugin(network[0]), network[1]
    leaf = sha256(served.leaf).digest()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_tcp, answer, SERVICE_PORT, host=served.address))
        tell_measured("reached", await measure(asker, leaf, is_reached))
        tell_measured("reached again", await measure(asker, leaf, is_reached))
        async with trio.open_nursery() as measuring:
            for _ in range(AT_ONCE):
                measuring.start_soon(measure_on, network, leaf)
        await trio.sleep(USED_AGAIN_S)
        tell("many", is_running=network.is_running(network[0].id))
        nursery.cancel_scope.cancel()
    tell_measured("service down", await measure(asker, leaf, lambda found: not is_reached(found)))
    network.kill(served.id)
    tell_measured("router dead", await measure(asker, leaf, lambda found: True))
    tell_measured("never published", await measure(asker, secrets.token_bytes(32), lambda found: True))
    await count_streams(directory, plugin(network[0], sam=""), network)


async def measure_on(network: I2pdNetwork, leaf: bytes) -> None:
    for _ in range(EACH):
        if network.is_running(network[0].id):
            await measure(plugin(network[0]), leaf, is_reached)


async def count_streams(directory: Path, asker: I2PControlRouter, network: I2pdNetwork) -> None:
    keys = create_keys(directory / "service.key")
    counts = [(await asker.get_local_leaf_status(keys.destination)).current_connections]
    session = SamSession(sam_endpoint(network[0].sam), keys.sam_private_key(), NO_HOPS)
    with trio.fail_after(HANG_GUARD_S):
        async with trio.open_nursery() as nursery, session, AsyncExitStack() as streams:
            nursery.start_soon(partial(trio.serve_tcp, hold, SERVICE_PORT, host=network[2].address))
            await session.wait_ready()
            for _ in range(3):
                counts.append((await asker.get_local_leaf_status(keys.destination)).current_connections)
                await streams.enter_async_context(session.connect(b32_address(network[2].leaf)))
            nursery.cancel_scope.cancel()
    tell("streams", counts=counts)


async def main(directory: Path) -> None:
    async with i2pd_network(directory, PLANS) as network:
        await run(directory, network)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
