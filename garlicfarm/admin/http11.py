"""HTTP/1.1 on one connection after the other: hypercorn, inside the admin listener's own tasks.

hypercorn has one `TCPServer` per connection. HTTP/1.1 only, and WebSockets where the API has one: hypercorn
would switch to HTTP/2 or WebSocket for any stranger that asks, at any path.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.h11 import H11Protocol, H11WSConnection
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from garlicfarm.admin.access import LOGGED_IN
from garlicfarm.admin.watch import SEND_RAW
from garlicfarm.credentials.users import Login
from garlicfarm.transport import Place, Stage

__all__ = ["AsgiApp", "HttpServer"]

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

MAX_HEADER_BYTES = 16 << 10
MAX_MESSAGE_BYTES = 1024  # that a client sends over a WebSocket
WEBSOCKETS = re.compile(rb"/v1/farms/[^/?]+/events(\?.*)?")

_PLACE = "garlicfarm.place"


class HttpServer:
    """Serves ``app`` on connections; what hypercorn has to say goes to ``logger``.

    :param header_s: within which a request's header must be complete, in seconds.
    :param handshake_s: within which the TLS handshake must be.
    """

    def __init__(self, app: AsgiApp, logger: logging.Logger, *, header_s: float, handshake_s: float) -> None:
        self._app = ASGIWrapper(app)
        self._context = WorkerContext(None)
        self._config = config = Config()
        config.accesslog = None
        config.errorlog = logger
        config.include_server_header = False
        config.h11_max_incomplete_size = MAX_HEADER_BYTES
        config.websocket_max_message_size = MAX_MESSAGE_BYTES
        config.keep_alive_timeout = header_s
        config.ssl_handshake_timeout = handshake_s

    async def run(self, stream: trio.abc.Stream, place: Place, on_login: Callable[[Login], None]) -> None:
        """Serve one client to its end. ``on_login`` is called for each request with a password.

        Raises what hypercorn raises: a fault of the client, or a defect.
        """
        state = ConnectionState({LOGGED_IN: on_login, _PLACE: place})
        # hypercorn declares trio.SSLStream[SocketStream]; it only asks the socket for addresses.
        await _Server(self._app, self._config, self._context, state, stream)  # type: ignore[arg-type]

    async def finish(self) -> None:
        """Let each connection end after its current request."""
        await self._context.terminated.set()


class _Server(TCPServer):
    async def _read_data(self) -> None:
        wrapper = self.protocol
        wrapper.state[SEND_RAW] = self._send_raw
        wrapper.protocol = _Http11(
            wrapper.app,
            wrapper.config,
            wrapper.context,
            wrapper.task_group,
            wrapper.state,
            wrapper.ssl,
            wrapper.client,
            wrapper.server,
            wrapper.send,
        )
        self.state[_PLACE].advance(Stage.STREAM)
        await super()._read_data()
        # The client left. hypercorn would keep the connection until its keep-alive ends.
        await self.idle_task.stop()

    async def _send_raw(self, data: bytes) -> None:
        await self.protocol_send(RawData(data))


class _Http11(H11Protocol):
    """HTTP/1.1 and WebSockets only: ignores Upgrade elsewhere, and refuses HTTP/2 by prior knowledge."""

    async def handle(self, event: Event) -> None:
        if isinstance(event, RawData) and event.data:
            self.connection_state[_PLACE].advance(Stage.REQUEST)
            if isinstance(self.stream, WSStream) and not self.stream.handshake.accepted:
                await self.send(Closed())  # frames too early: hypercorn would answer beside the application
                return
        await super().handle(event)

    async def _check_protocol(self, event: h11.Request) -> None:
        pass

    async def _create_stream(self, request: h11.Request) -> None:
        if request.http_version not in (b"1.0", b"1.1"):
            await self._send_error_response(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
            await self.send(Closed())
            return
        # Compressing for each watcher would cost the farm more than the bytes are worth.
        ignored = {b"sec-websocket-extensions"}
        if not WEBSOCKETS.fullmatch(request.target):
            ignored.add(b"upgrade")
        headers = [(name, value) for name, value in request.headers if name not in ignored]
        await super()._create_stream(
            h11.Request(
                method=request.method,
                target=request.target,
                headers=headers,
                http_version=request.http_version,
            )
        )
        if isinstance(self.connection, H11WSConnection) and self.connection.buffer:
            self.connection.buffer.clear()
            await self.send(Closed())  # as above
