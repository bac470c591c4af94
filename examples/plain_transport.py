"""A transport plugin: TCP without TLS, for a network that encrypts by itself, such as WireGuard."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NoReturn

import msgspec
import trio

from garlicfarm.errors import TransportError, UnreachableError
from garlicfarm.transport import Endpoint, Peer, Transport


class PlainTransport(Transport):
    scheme = "plain"
    Config = msgspec.defstruct("PlainConfig", [])  # the table [transport.plain] has no keys

    async def open_stream(self, endpoint: Endpoint) -> trio.abc.Stream:
        try:
            return await trio.open_tcp_stream(endpoint.host, endpoint.port)
        except OSError as error:
            raise UnreachableError(f"{endpoint}: {error}") from error

    async def serve(
        self,
        url: Endpoint,
        handler: Callable[[trio.abc.Stream, Peer], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[Endpoint],
    ) -> NoReturn:
        async def connected(stream: trio.SocketStream) -> None:
            peer = Peer(stream.socket.getpeername()[0], address_is_peer=True, certificate_sha256=None)
            with self.admit(peer) as slot:  # the node limits those that have not logged in
                await handler(stream, replace(peer, slot=slot))

        try:
            (listener, *others) = await trio.open_tcp_listeners(url.port, host=url.host)
        except OSError as error:
            raise TransportError(f"cannot listen on {url}: {error}") from error
        task_status.started(replace(url, port=listener.socket.getsockname()[1]))
        await trio.serve_listeners(connected, [listener, *others])
        raise AssertionError("unreachable: listeners do not end")
