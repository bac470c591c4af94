"""The transport ``jraft``: plain TCP without a handshake, like JRaft's. See README.md beside this file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

import msgspec
import trio

from garlicfarm.errors import UnreachableError
from garlicfarm.net.tcp import serve_tcp
from garlicfarm.transport import Endpoint, Peer, Transport


class JRaftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The table ``[transport.jraft]``; there is nothing to configure."""


class JRaftTransport(Transport):
    """Raft's bytes without a handshake. The core allows it to listen and dial on loopback only."""

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
        """See `Transport.serve`."""
        await serve_tcp(self, url, handler, task_status=task_status)
