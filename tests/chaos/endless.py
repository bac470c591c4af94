"""A fault that needs no broken machine: a reader sends messages without end over WebSockets of a node.

The node has to live on, with the memory that it had: what is sent, it may not store.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from garlicfarm.client.https import HttpsClient
from garlicfarm.client.trust import client_tls
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.lab.processes import NodeProcess
from tests.crash.crash_checks import Violation
from tests.crash.crash_client import PASSWORD

if TYPE_CHECKING:
    from tests.chaos.chaos_farm import ChaosFarm

CONNECTIONS = 4
MESSAGE_BYTES = 64 << 20  # of each
MOST_GROWTH_BYTES = 64 << 20  # for all that the node does meanwhile; all messages are four times that
USER = "endless"
PATH = "/v1/farms/farm/events"
HANDSHAKE = (
    "GET {} HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
FRAME = b"\x82\xff" + (2**62).to_bytes(8, "big") + bytes(4)
FRAGMENT = b"\x00\x81" + bytes(4) + b"x"


async def endless(chaos: ChaosFarm, rnd: random.Random) -> str:
    """Strike as `faults.Kind` says."""
    node = chaos.farm.nodes[rnd.choice(chaos.nodes)]
    UserStore(node.directory / "data" / "users").add(USER, "reader", PASSWORD)
    before, most = _memory_bytes(node), 0
    is_in_fragments = rnd.random() < 0.5
    first, piece = (b"\x02" + FRAGMENT[1:], FRAGMENT * 9000) if is_in_fragments else (FRAME, bytes(1 << 16))
    sent = 0

    async def send() -> None:
        nonlocal most, sent
        stream = await _websocket(node)
        try:
            await stream.send_all(first)
            for _ in range(MESSAGE_BYTES // len(piece)):
                await stream.send_all(piece)
                sent += len(piece)
        except trio.BrokenResourceError:
            pass
        finally:
            most = max(most, _memory_bytes(node))
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS):
            nursery.start_soon(send)
    if most - before > MOST_GROWTH_BYTES:
        raise Violation(
            f"node {node.id} grew from {before >> 20} to {most >> 20} MiB by messages without end"
        )
    what = "fragments" if is_in_fragments else "frames"
    return f"{CONNECTIONS} messages without end, in {what}, to {node.id}, which took {sent >> 10} KiB"


async def _websocket(node: NodeProcess) -> trio.SSLStream[trio.SocketStream]:
    """Live events of a node, whose answer is not read on."""
    assert node.url is not None
    tls = client_tls(pin=pin_of_file(node.directory / "data" / "tls" / "node.crt"), ca=None)
    client = HttpsClient(node.url, user=USER, password=PASSWORD, tls=tls)
    answer = await client.request("GET", "/v1/node", headers={})
    await client.aclose()
    login = client.authorization("GET", PATH)
    if answer.status != 200 or login is None:
        raise Violation(f"node {node.id} answered a reader's login with {answer.status}")
    stream = await client.open_stream()
    await stream.send_all(HANDSHAKE.format(PATH, client.authority, login).encode())
    head = bytes(await stream.receive_some())
    if not head.startswith(b"HTTP/1.1 101"):
        raise Violation(f"node {node.id} answered a reader's WebSocket with {head[:40]!r}")
    return stream


def _memory_bytes(node: NodeProcess) -> int:
    """What it holds; nothing if it is no more."""
    try:
        lines = Path(f"/proc/{node.pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))
