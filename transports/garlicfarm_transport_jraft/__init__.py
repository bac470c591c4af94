"""The transport ``jraft``: plain TCP without a handshake, as JRaft speaks. See README.md beside this file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

import msgspec
import trio

from garlicfarm.errors import TransportError, UnreachableError
from garlicfarm.transport import Endpoint, Peer, Transport

__all__ = ["JRaftConfig", "JRaftTransport"]


class JRaftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The table ``[transport.jraft]``; there is nothing to configure."""


class JRaftTransport(Transport):
    """Raft's bytes as they are. The core lets it listen and dial on loopback only."""

    scheme = "jraft"
    Config = JRaftConfig
    handshake = False

    async def open_stream(self, endpoint: Endpoint) -> trio.SocketStream:
        """See `Transport.open_stream`."""
        try:
            return await trio.open_tcp_stream(endpoint.host, endpoint.port)
        except (OSError, UnicodeError) as exc:
            raise UnreachableError(f"{endpoint}: {exc}", "is the node up, and its port right?") from exc

    async def serve(
        self,
        url: Endpoint,
        handler: Callable[[trio.abc.Stream, Peer], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[Endpoint],
    ) -> NoReturn:
        """See `Transport.serve`. A name of several addresses is bound at its first."""
        try:
            first, *others = await trio.open_tcp_listeners(url.port, host=url.host)
        except (OSError, UnicodeError) as exc:
            raise TransportError(f"cannot listen on {url}: {exc}", "is it in use?") from exc
        for other in others:
            other.socket.close()
        host, port = first.socket.getsockname()[:2]
        task_status.started(Endpoint(self.scheme, host, port))

        async def connection(stream: trio.SocketStream) -> None:
            try:
                peer = Peer(stream.socket.getpeername()[0], True, None)
            except OSError:  # it left while it was queued
                self.on_drop(Peer("", False, None), "gone")
                return
            await handler(stream, peer)
            await _end(stream)

        # It closes each stream when its task ends, and survives accept() running out of descriptors.
        await trio.serve_listeners(connection, [first])


async def _end(stream: trio.SocketStream) -> None:
    """Say that this was all, and wait a moment for the peer's end: closing over bytes that were not read
    would reset the connection, and our last ones with it."""
    with trio.move_on_after(2.0):
        try:
            await stream.send_eof()
            while await stream.receive_some():
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
