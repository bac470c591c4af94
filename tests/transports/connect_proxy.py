"""An HTTP proxy of the tests' own: it forwards CONNECT to ports of this machine, or does as it is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from tests.running import background

NAMES = ("a" * 52, "b" * 51 + "a", "c" * 51 + "a", "d" * 51 + "a")
B32 = tuple(f"{name}.b32.i2p" for name in NAMES)
ESTABLISHED = b"HTTP/1.1 200 OK\r\nDate: 2026-Nov-21 02:19:01\r\n\r\n"
NO_LEASESET = b"<h1>Proxy error: CONNECT error</h1>\r\n<p>Failed to Connect</p>\r\n"


def page(body: bytes, status: bytes = b"500 Internal Server Error", headers: bytes = b"") -> bytes:
    """An answer as i2pd gives it."""
    html = (
        b"<html>\r\n<head>\r\n  <title>I2Pd HTTP proxy</title>\r\n</head>\r\n<body>%b</body>\r\n</html>\r\n"
        % body
    )
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(html), headers, html)


class ConnectProxy:
    """``names`` says where each I2P name leads: a port of 127.0.0.1. ``script``, while it is set, serves
    whoever asks, given the stream and the head of the request. ``heads`` are those heads, ``early`` what
    came with them or before they were answered; ``dead``: how often each name is answered
    200, and nothing ever after."""

    def __init__(self) -> None:
        self.port = 0
        self.names: dict[str, int] = {}
        self.script: Callable[[trio.SocketStream, bytes], Awaitable[None]] | None = None
        self.heads: list[bytes] = []
        self.early = b""
        self.dead = Counter[str]()
        self._tunnels: set[tuple[str, trio.CancelScope]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self, name: str) -> int:
        """Break what leads to ``name`` now; how many streams that were."""
        scopes = [scope for target, scope in self._tunnels if target == name]
        for scope in scopes:
            scope.cancel()
        return len(scopes)

    async def serve(self, stream: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            data = await stream.receive_some()
            if not data:
                return
            head += data
        head, _, early = head.partition(b"\r\n\r\n")
        self.heads.append(head)
        self.early += early
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # who asked left
            await (self.script or self._connect)(stream, head)

    async def _connect(self, stream: trio.SocketStream, head: bytes) -> None:
        name, _, _ = head.split()[1].decode().rpartition(":")
        if self.dead[name]:
            self.dead[name] -= 1
            await stream.send_all(ESTABLISHED)
            while await stream.receive_some():
                pass
            return
        try:
            behind = await trio.open_tcp_stream("127.0.0.1", self.names[name])
        except (KeyError, OSError):
            await stream.send_all(page(NO_LEASESET))
            return
        await stream.send_all(ESTABLISHED)
        scope = trio.CancelScope()
        self._tunnels.add((name, scope))
        with scope:
            async with behind, trio.open_nursery() as nursery:
                nursery.start_soon(_forward, stream, behind)
                nursery.start_soon(_forward, behind, stream)
        self._tunnels.discard((name, scope))


async def _forward(source: trio.SocketStream, target: trio.SocketStream) -> None:
    try:
        while data := await source.receive_some():
            await target.send_all(data)
        await target.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        await trio.aclose_forcefully(source)  # and so the other side hears of it
        await trio.aclose_forcefully(target)


@asynccontextmanager
async def connect_proxy(port: int = 0) -> AsyncIterator[ConnectProxy]:
    """A `ConnectProxy` on loopback while the block lasts."""
    proxy = ConnectProxy()
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    proxy.port = listeners[0].socket.getsockname()[1]
    async with background(partial(trio.serve_listeners, proxy.serve, listeners)):
        yield proxy
