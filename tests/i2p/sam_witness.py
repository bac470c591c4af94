"""Between a node and its router's SAM: prints when a session of the service is opened and when it ends.

i2pd logs when it makes a session's destination, and not which connection has ended; this tells both, on a
clock that all hosts share. ``sam_witness.py LISTEN_PORT SAM_PORT TARGET_PORT DESTINATION``; it also accepts
the service's streams at ``TARGET_PORT``. A line of JSON for each: ``[seconds, "opened" | "closed"]``.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from functools import partial

import trio

LONGEST = 8192


def tell(what: str) -> None:
    print(json.dumps([time.monotonic(), what]), flush=True)


async def relay(sam_port: int, destination: bytes, node: trio.SocketStream) -> None:
    """One connection. A session counts from its request on, until the router has seen the connection end."""
    is_service = False

    async def carry(source: trio.SocketStream, target: trio.SocketStream) -> None:
        nonlocal is_service
        seen = b""
        with suppress(trio.BrokenResourceError):
            while data := await source.receive_some():
                seen = (seen + data)[-LONGEST:]
                if not is_service and source is node and b"SESSION CREATE" in seen and destination in seen:
                    is_service = True
                    tell("opened")
                await target.send_all(data)
        nursery.cancel_scope.cancel()

    with suppress(OSError):  # no router listens
        async with (
            node,
            await trio.open_tcp_stream("127.0.0.1", sam_port) as router,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(carry, node, router)
            nursery.start_soon(carry, router, node)
    if is_service:
        tell("closed")


async def accept(stream: trio.SocketStream) -> None:
    await stream.aclose()


async def main(listen: str, sam: str, target: str, destination: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_tcp, accept, int(target))
        await trio.serve_tcp(partial(relay, int(sam), destination.encode()), int(listen), host="127.0.0.1")


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:]))
