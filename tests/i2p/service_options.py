"""A service that asks for what server tunnels do for HTTP, through real i2pd routers: a script.

One router serves, by the publisher `i2cp` in this process; one is the client's, with an HTTP proxy and client
tunnels to single I2CP ports; two store LeaseSets. The service listens at two targets, of which one goes away.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

import trio
import trio.lowlevel

from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import PublisherError, RemoteProtocolError, UnreachableError
from garlicfarm.i2p.encoding import b32_address
from garlicfarm.lab.i2pd import i2pd_network
from garlicfarm.lab.i2pd_files import ClientTunnel, RouterPlan
from garlicfarm.lab.site import fetch
from garlicfarm.plugins import make_publisher
from garlicfarm.publisher import PublisherSite, PublishOrder
from tests.i2p.script import Options, options, tell
from tests.running import wait_until

HTTP_PORT, IRC_PORT = 7001, 7002
"""Of the client's loopback."""
HEAD_END = b"\r\n\r\n"
READY_S = 60.0
ANSWER_S = 20.0
REQUESTS_AFTER = 20


class Site:
    """Answers each request of a connection with its name; ``heads``: what came, ``peers``: from where."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heads: list[bytes] = []
        self.peers: set[str] = set()
        self.port = 0
        self.scope = trio.CancelScope()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()
        with self.scope:
            await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, stream: trio.SocketStream) -> None:
        data = b""
        self.peers.add(stream.socket.getpeername()[0])
        async with stream:
            with suppress(trio.BrokenResourceError):
                async for piece in stream:
                    data += piece
                    while HEAD_END in data:
                        head, _, data = data.partition(HEAD_END)
                        self.heads.append(head)
                        await self._answer(stream, head)
                        if b"Connection: close" in head:
                            return

    async def _answer(self, stream: trio.SocketStream, head: bytes) -> None:
        if b"Upgrade: websocket" in head:
            await stream.send_all(b"HTTP/1.1 101 Switching Protocols" + HEAD_END)
            async for piece in stream:
                await stream.send_all(piece)
            return
        body = self.name.encode()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d" % len(body) + HEAD_END + body)


async def ask(port: int, sent: bytes, until: bytes) -> bytes:
    """What comes through a client tunnel until that is in it, or the end, within `ANSWER_S`."""
    got = b""
    with suppress(trio.BrokenResourceError), trio.move_on_after(ANSWER_S):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(sent)
            while until not in got and (piece := await stream.receive_some()):
                got += piece
    return got


async def status_of(sent: bytes) -> str:
    got = await ask(HTTP_PORT, sent, HEAD_END)
    return got.partition(b"\r\n")[0].decode()


async def main(told: Options) -> None:
    directory = told.directory
    keys = create_keys(directory / "site.key")
    host = b32_address(keys.destination)
    tunnels = [
        ClientTunnel(host, port, f"{port}.dat", to_port=to_port)
        for port, to_port in ((HTTP_PORT, 80), (IRC_PORT, 6667))
    ]
    plans = [
        RouterPlan(is_floodfill=False, has_leaf=False, has_i2cp=True),
        RouterPlan(is_floodfill=False, has_leaf=False, has_proxy=True, tunnels=tunnels),
        *told.carrying(),
        *[RouterPlan(has_leaf=False)] * 2,
    ]
    sites = [Site("first"), Site("second")]
    irc = Site("irc")
    async with (
        trio.open_nursery() as nursery,
        i2pd_network(directory / "routers", plans, hops=told.hops) as routers,
    ):
        for site in (*sites, irc):
            await nursery.start(site.run)
        table = {
            "mode": "service",
            "address": routers[0].i2cp,
            "keys": "site.key",
            "hops": told.hops,
            "targets": [f"127.0.0.1:{site.port}" for site in sites],
            "ports": {"6667": [f"127.0.0.1:{irc.port}"]},
            "client_headers": True,
            "client_addresses": True,
            "reject_inproxies": True,
            "max_posts": 2,
        }
        where = PublisherSite(farm="farm", node_id=1, directory=directory / "publisher")
        async with make_publisher("i2cp", table, directory, where) as publisher:
            while True:
                now_ms = time.time_ns() // 1_000_000
                order = PublishOrder(due_index=1, published_ms=now_ms, expires_ms=now_ms + 3_600_000)
                with suppress(PublisherError), trio.move_on_after(READY_S):
                    await publisher.standby()
                    await publisher.publish(order)
                    break
                await trio.sleep(1)
            tell("published")
            proxy = routers[1].proxy
            while True:
                with suppress(UnreachableError, RemoteProtocolError), trio.move_on_after(ANSWER_S):
                    tell("proxy", text=await fetch(proxy, host))
                    break
                await trio.sleep(1)
            for port in (HTTP_PORT, IRC_PORT):  # their destinations have to find the service, too
                await wait_until(partial(ask, port, request(host), HEAD_END), every_s=1)
            await try_all(sites, irc, host)
            sites[0].scope.cancel()
            await trio.lowlevel.checkpoint()
            texts = []
            for _ in range(REQUESTS_AFTER):
                got = await ask(HTTP_PORT, request(host), b"second")
                texts.append(got.rpartition(b"\r\n")[2].decode())
            status = await publisher.status()
            tell("one target left", texts=texts, problems=status.problems, refused=status.refused)
        nursery.cancel_scope.cancel()


def request(host: str, *fields: str, method: str = "GET") -> bytes:
    lines = [f"{method} / HTTP/1.1", f"Host: {host}", *fields]
    return "\r\n".join(lines).encode() + HEAD_END


async def try_all(sites: list[Site], irc: Site, host: str) -> None:
    forged = request(host, "X-I2P-DestB32: forged", "x_i2p_desthash: forged")
    for site in (*sites, irc):
        site.heads.clear()
    got = await ask(HTTP_PORT, 3 * forged + request(host, "Connection: close"), b"never")
    heads = [head for site in sites for head in site.heads]
    tell(
        "kept alive",
        answers=got.count(b"HTTP/1.1 200 OK"),
        requests=len(heads),
        named=all(head.count(b"X-I2P-DestB32: ") == 1 for head in heads),
        forged=any(b"forged" in head for head in heads),
        peers=sorted({peer for site in sites for peer in site.peers}),
    )
    upgrade = request(host, "Connection: Upgrade", "Upgrade: websocket")
    got = await ask(HTTP_PORT, upgrade + b"\x81\n\n frame", b"frame")
    tell("web socket", answer=got.partition(b"\r\n")[0].decode(), frame=got.endswith(b"\x81\n\n frame"))
    posts = [await status_of(request(host, "Content-Length: 0", method="POST")) for _ in range(3)]
    tell("posts", statuses=posts)
    tell("in-proxy", status=await status_of(request(host, "X-Forwarded-For: 192.0.2.1")))
    both = request(host, "Content-Length: 4", "Transfer-Encoding: chunked", method="POST")
    tell("smuggled", status=await status_of(both + b"0\r\n\r\n"))
    got = await ask(IRC_PORT, b"NICK a" + HEAD_END, b"irc")
    tell("port", text=got.rpartition(b"\r\n")[2].decode(), heads=[head.decode() for head in irc.heads])


if __name__ == "__main__":
    trio.run(main, options())
