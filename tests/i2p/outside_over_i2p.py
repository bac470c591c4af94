"""Members test what one of them publishes, through real routers (D25): also the one whose router has the same
destination on standby, and with controls at which routers answer. Prints what came about, a JSON document per
line. In a network namespace: python -m tests.i2p.outside_over_i2p DIRECTORY"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from hashlib import sha256
from pathlib import Path

import trio

from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.lab.i2pd import I2pdNetwork, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from tests.i2p.measured_over_i2p import is_reached, measure, plugin
from tests.i2p.script import tell
from tests.i2p.service_over_i2cp import publish, publisher_at, standby
from tests.running import wait_until

DEADLINE_S = 480.0
A, B, C = 1, 2, 3
PLANS = (
    *[RouterPlan(is_floodfill=False, has_leaf=False, has_i2cp=True, has_sam=True)] * 3,
    *[RouterPlan(has_leaf=False)] * 2,
)


async def serve(asked: Counter[int], id_: int, *, task_status: trio.TaskStatus[int]) -> None:
    """A site that counts its connections. Tells its port."""

    async def answer(stream: trio.SocketStream) -> None:
        asked[id_] += 1
        while await stream.receive_some():
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    task_status.started(listener.socket.getsockname()[1])
    await trio.serve_listeners(answer, [listener])


async def run(directory: Path, network: I2pdNetwork, nursery: trio.Nursery) -> None:
    keys = create_keys(directory / "site.key")
    service = sha256(keys.destination).digest()
    asked: Counter[int] = Counter()
    at = {id_: await nursery.start(partial(serve, asked, id_)) for id_ in (A, B)}
    a, b = (publisher_at(directory, keys, network[id_ - 1], at[id_]) for id_ in (A, B))
    asker, answerer = plugin(network[A - 1]), plugin(network[C - 1])
    nursery.start_soon(answerer.answer_tests)
    async with a, b:
        for each in (a, b):
            await standby(each)
        tell("measures", asks_network=asker.measures_served)
        asked.clear()  # by the publishers, which see whether it listens
        before = await measure(asker, service, lambda found: True)
        tell("nobody publishes", ok=is_reached(before), asked=dict(asked))
        await publish(b, 1)
        await measure(asker, service, is_reached)
        tell("published", asked=dict(asked))
        await wait_until(lambda: answerer.control is not None)
        assert answerer.control is not None
        await measure(asker, answerer.control, is_reached)
        tell("control", is_reached=True)
        network.kill(B)
        await measure(asker, service, lambda found: not is_reached(found))
        await measure(asker, answerer.control, is_reached)
        tell("gone", asked_standby=asked[A])
        nursery.cancel_scope.cancel()


async def main(directory: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with i2pd_network(directory / "routers", PLANS) as network, trio.open_nursery() as nursery:
            await run(directory, network, nursery)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
