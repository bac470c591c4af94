"""A client is banned at one member of a farm of real routers, is refused at the publisher, which is another
member, and at the next one, until the ban ends. Prints what came about, a JSON document per line. In a
network namespace: python -m tests.i2p.bans_over_i2p DIRECTORY"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio

from garlicfarm.i2p.destination import hash_of
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.lab.i2pd import I2pdRouter
from garlicfarm.lab.processes import ProcessFarm
from garlicfarm.lab.service import Service, elected_service, i2cp_table, server_plan
from garlicfarm.lab.site import Client
from tests.i2p.script import tell

DEADLINE_S = 500.0
NODES = (1, 2, 3)
BAN_S = 120.0
REFUSED_S = 20.0
"""For so long the banned client asks each publisher, while the other client is answered."""
SETTLED_S = 2.0
"""Requests that begin so soon after an order may still be answered by the one before."""
HEADER = b"X-I2P-DestB32: "


async def serve(node_id: int, *, task_status: trio.TaskStatus[int]) -> None:
    """A site that says which node it is, and who asks. Tells its port."""

    async def answer(stream: trio.SocketStream) -> None:
        head = b""
        with suppress(trio.BrokenResourceError):
            while b"\r\n\r\n" not in head and (data := await stream.receive_some()):
                head += data
            asked_by = head.partition(HEADER)[2].partition(b"\r\n")[0]
            body = f"node {node_id} ".encode() + asked_by
            fields = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            await stream.send_all(f"HTTP/1.1 200 OK\r\n{fields}".encode() + body)
            while await stream.receive_some():
                pass

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    task_status.started(listener.socket.getsockname()[1])
    await trio.serve_listeners(answer, [listener])


async def order(farm: ProcessFarm, node_id: int, action: str, **args: object) -> None:
    async with farm.nodes[node_id].client() as client:
        await client.administer(farm.name, action, args)


def answers(client: Client, since_s: float, until_s: float) -> list[str | None]:
    """Of the requests that began in this time."""
    return [each.text for each in client.fetches if since_s <= each.began_s < until_s]


async def run(service: Service, farm: ProcessFarm, nursery: trio.Nursery) -> None:
    banned, other = clients = [Client(router.proxy, service.host) for router in service.clients]
    for client in clients:
        nursery.start_soon(client.run)
    text, _ = [(await client.wait_answered()).text or "" for client in clients]
    publisher, address = int(text.split()[1]), text.split()[2]
    elsewhere = next(one for one in NODES if one != publisher)
    tell("answered", publisher=publisher)

    until_s = trio.current_time() + BAN_S
    until_ms = time.time_ns() // 1_000_000 + round(1000 * BAN_S)
    await order(farm, elsewhere, "ban", hash=encode(hash_of(address)), until_ms=until_ms)
    began_s = trio.current_time() + SETTLED_S
    await trio.sleep_until(began_s + REFUSED_S)
    tell("banned", banned=answers(banned, began_s, until_s), other=answers(other, began_s, until_s))

    await order(farm, elsewhere, "override", member=publisher, mode="off")
    while ((await other.wait_answered()).text or "").startswith(f"node {publisher} "):
        pass
    began_s = trio.current_time()
    await trio.sleep_until(began_s + REFUSED_S)
    assert trio.current_time() + SETTLED_S < until_s, "the ban is to end later"
    tell("moved", banned=answers(banned, began_s, until_s), other=answers(other, began_s, until_s))

    await trio.sleep_until(until_s - SETTLED_S)
    all_of_it = answers(banned, began_s, until_s - SETTLED_S)
    again = await banned.wait_answered()
    tell("over", banned=all_of_it, seconds=again.began_s - until_s, text=again.text)


async def main(directory: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            ports = {node_id: await nursery.start(partial(serve, node_id)) for node_id in NODES}

            def table(keys: DestinationKeys, router: I2pdRouter, target: str) -> dict[str, Any]:
                target = f"127.0.0.1:{ports[router.id]}"
                made = i2cp_table(directory, keys, router.id, router.i2cp, target, "fast")
                return made | {"client_headers": True}

            plan = server_plan(has_i2cp=True)
            made = elected_service(directory, plan, 2, len(NODES), 0, table, interval_ms=1000)
            async with made as (service, farm):
                await run(service, farm, nursery)
                nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
