"""The server's end of a WebSocket whose client has nothing to say: only control frames come in.

Theory of operation. What a client sends is taken in small pieces, and no faster than `REST_S` allows, so an
endless stream of pings costs little. wsproto refuses a control frame of more than 125 bytes by its header
(RFC 6455, section 5.5). It hands on what came of a data frame at once, and the first such piece ends the
WebSocket. So no more than a piece is ever stored, whatever a header announces. Nothing is read after the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import CloseConnection, Ping, Pong

PIECE_BYTES = 1024
REST_S = 0.1
"""From one piece to the next."""

UNSUPPORTED, ABNORMAL = 1003, 1006
"""The client sent data; it left without a close (RFC 6455, section 7.4.1)."""


class WebSocketServer:
    """A WebSocket after its handshake.

    :param receive: gives at most so many bytes of the client's; none: it has left.
    :param send: sends all of its argument; several tasks may call it.
    :param early: what the client sent right behind its request.
    """

    def __init__(
        self,
        receive: Callable[[int], Awaitable[bytes]],
        send: Callable[[bytes], Awaitable[None]],
        early: bytes,
    ) -> None:
        self._receive = receive
        self._send = send
        self._frames = Connection(ConnectionType.SERVER, trailing_data=early)

    async def send_frames(self, frames: bytes) -> None:
        """Send whole frames as they are; after the end they are dropped."""
        if self._frames.state is ConnectionState.OPEN:
            await self._send(frames)

    async def close(self, code: int) -> None:
        """Close it, unless it is closed."""
        if self._frames.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            await self._send(self._frames.send(CloseConnection(code)))

    async def wait_closed(self) -> int:
        """Answer pings until the client closes the WebSocket, leaves, or sends anything else; the code. The
        WebSocket is closed then. Cancelled: it is open, but this must not be called again."""
        next_s = 0.0
        while True:
            for event in self._frames.events():
                if isinstance(event, Ping):
                    await self._send(self._frames.send(event.response()))
                elif not isinstance(event, Pong):
                    # CloseConnection: the client's, or the code for what wsproto refuses.
                    code = event.code if isinstance(event, CloseConnection) else UNSUPPORTED
                    await self.close(code)
                    return code
            await trio.sleep_until(next_s)
            data = await self._receive(PIECE_BYTES)
            if not data:
                self._frames.receive_data(None)
                return ABNORMAL
            self._frames.receive_data(data)
            next_s = trio.current_time() + REST_S
