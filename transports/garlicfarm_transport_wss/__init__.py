"""The transport ``wss``: the whole byte stream in binary WebSocket frames (RFC 6455), over TLS.

For reverse proxies and CDNs that pass nothing else. It listens on loopback, without TLS, behind a reverse
proxy that has the certificate; it dials that proxy. See README.md beside this file.

wsproto handles the frames. trio-websocket, which also uses wsproto, gives each connection a task of its own,
in a nursery that outlives `open_stream`; a `trio.abc.Stream` needs neither.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Event, RejectConnection, Request
from wsproto.utilities import ProtocolError

from garlicfarm.credentials.certificates import pin_of
from garlicfarm.errors import ConfigError, TransportError, UnreachableError
from garlicfarm.net.tcp import check_loopback, serve_tcp
from garlicfarm.plugin_settings import setting
from garlicfarm.regular_files import check_regular
from garlicfarm.transport import Endpoint, Peer, Transport
from garlicfarm_transport_wss._stream import WebSocketStream

__all__ = ["WebSocketStream", "WssConfig", "WssTransport"]

HANDSHAKE_TIMEOUT_S = 10.0
CHUNK_BYTES = 65536
# The status codes of a reverse proxy without a listener behind it.
UPSTREAM_DOWN = (502, 503, 504)


class WssConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The table ``[transport.wss]``."""

    ca: Annotated[
        str, setting("File with the authorities for endpoints without a pin. Without it: the system's.")
    ] = ""


class WssTransport(Transport):
    """WebSockets. `serve` drops connections with reason ``websocket`` or ``timeout``."""

    scheme = "wss"
    Config = WssConfig
    config: WssConfig

    def __init__(self, config: WssConfig, base_dir: Path) -> None:
        super().__init__(config, base_dir)
        self._pinned = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._pinned.check_hostname = False
        self._pinned.verify_mode = ssl.CERT_NONE  # open_stream checks the pin instead
        ca = base_dir / config.ca if config.ca else None
        try:
            if ca is not None:
                check_regular(ca)
            self._trusting = ssl.create_default_context(cafile=ca)
        except ssl.SSLError as exc:
            raise ConfigError([f"{ca}: no certificate in PEM form in it"]) from exc
        except OSError as exc:
            raise ConfigError([f"{ca}: {exc.strerror}"]) from exc
        for context in (self._pinned, self._trusting):
            context.set_alpn_protocols(["http/1.1"])

    async def open_stream(self, endpoint: Endpoint) -> WebSocketStream:
        """See `Transport.open_stream`. The parameters of the endpoint are ``path`` (default ``/``) and
        ``pin``, that of the reverse proxy's certificate."""
        try:
            tcp = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        except (OSError, UnicodeError) as exc:
            raise UnreachableError(
                f"{endpoint}: {exc}", "is the reverse proxy up, and the port open?"
            ) from exc
        pin = endpoint.params.get("pin", "")
        context = self._pinned if pin else self._trusting
        stream = trio.SSLStream(tcp, context, server_hostname=endpoint.host, https_compatible=True)
        try:
            await stream.do_handshake()
            shown = pin_of(stream.getpeercert(binary_form=True) or b"") if pin else ""
            if shown != pin:
                hint = "nothing was sent; if the reverse proxy has a new certificate, change the endpoint"
                raise TransportError(f"{endpoint} shows another certificate, {shown}", hint)
            return await _open(stream, endpoint)
        except trio.BrokenResourceError as exc:
            await trio.aclose_forcefully(stream)
            hint = (
                "its certificate must match the pin, or come from the ca in [transport.wss] and name its host"
            )
            raise TransportError(f"{endpoint}: TLS failed: {exc.__cause__ or exc}", hint) from exc
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise

    def check_url(self, url: Endpoint) -> None:
        """See `Transport.check_url`."""
        check_loopback(url, "a reverse proxy")

    async def serve(
        self,
        url: Endpoint,
        handler: Callable[[trio.abc.Stream, Peer], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[Endpoint],
    ) -> NoReturn:
        """See `Transport.serve`. All streams come from the reverse proxy: addresses are meaningless."""

        async def connection(tcp: trio.SocketStream, peer: Peer) -> None:
            stream, reason = None, "timeout"
            with trio.move_on_after(HANDSHAKE_TIMEOUT_S):
                try:
                    stream = await _accept(tcp)
                except (ProtocolError, trio.BrokenResourceError):
                    reason = "websocket"
            if stream is None:
                self.on_drop(peer, reason)
                return
            await handler(stream, peer)
            await stream.finish()

        await serve_tcp(self, url, connection, address_is_peer=False, task_status=task_status)


async def _next_event(stream: trio.abc.Stream, web: WSConnection) -> Event:
    """The event that ends a handshake. Raises `ProtocolError`, `trio.BrokenResourceError`."""
    while True:
        for event in web.events():
            return event
        data = await stream.receive_some(CHUNK_BYTES)
        if not data:
            raise trio.BrokenResourceError("closed during the WebSocket handshake")
        web.receive_data(bytes(data))


async def _open(stream: trio.SSLStream[trio.SocketStream], endpoint: Endpoint) -> WebSocketStream:
    web = WSConnection(ConnectionType.CLIENT)
    await stream.send_all(web.send(Request(host=endpoint.authority, target=endpoint.params.get("path", "/"))))
    try:
        event = await _next_event(stream, web)
    except ProtocolError as exc:
        raise TransportError(
            f"{endpoint} is not a WebSocket server: {exc}", "is it the reverse proxy?"
        ) from exc
    if isinstance(event, AcceptConnection):
        return WebSocketStream(stream, web)
    status = event.status_code if isinstance(event, RejectConnection) else 0
    if status in UPSTREAM_DOWN:
        raise UnreachableError(f"{endpoint} answers {status}", "is the node behind the reverse proxy up?")
    hint = "does the reverse proxy pass Upgrade on, and is path in the endpoint right?"
    raise TransportError(f"{endpoint} answers {status} instead of opening a WebSocket", hint)


async def _accept(tcp: trio.SocketStream) -> WebSocketStream | None:
    web = WSConnection(ConnectionType.SERVER)
    await _next_event(tcp, web)  # a Request, or it raises ProtocolError
    await tcp.send_all(web.send(AcceptConnection()))
    return WebSocketStream(tcp, web)
