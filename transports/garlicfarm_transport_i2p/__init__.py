"""The transport ``i2p``: streams through an I2P router, which encrypts them and hides their ends.

It dials with ``CONNECT name:port`` through the router's HTTP proxy (RFC 2616), and listens on loopback
behind a server tunnel of the router. Between this process and the router bytes are plain, so both ends
must be on loopback. See README.md beside this file.

A proxy responds with 200 as soon as it knows a LeaseSet. Only the farm's handshake shows whether the peer
is there. The node sets its deadline and repeats it on a new stream, as with any transport.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, NoReturn

import h11
import msgspec
import trio

from garlicfarm.credentials.private_files import read_private_file
from garlicfarm.errors import ConfigError, RemoteProtocolError, TransportError, UnreachableError
from garlicfarm.http.digest import ChallengeCache
from garlicfarm.net.tcp import WrappedStream, check_loopback, serve_tcp
from garlicfarm.plugin_settings import setting
from garlicfarm.transport import Endpoint, Peer, Transport

# i2pd searches for a LeaseSet for 10 s before it reports that there is none.
ANSWER_TIMEOUT_S = 11.0
ANSWER_BYTES = 16384

# SHA-256 in base32, whose last character has one bit left; or the address of an encrypted LeaseSet.
_B32 = re.compile(r"[a-z2-7]{51}[aq]|[a-z2-7]{56,}")

_NO_LEASESET = (
    UnreachableError,
    "the router finds no LeaseSet of {host}",
    "is that node's server tunnel up? after a router's start this takes minutes",
)
# Text of an error page, in lower case → its meaning and what to do. Routers answer nearly every failure with
# status 500, so only the page tells them apart. A page in another language is quoted instead.
_PAGES: tuple[tuple[str, tuple[type[TransportError], str, str]], ...] = (
    ("failed to connect", _NO_LEASESET),
    ("lease set not found", _NO_LEASESET),
    (
        "host not found",
        (TransportError, "the router does not know the name {host}", "dial its b32 address, or add the name"),
    ),
    (
        "outproxy",
        (
            TransportError,
            "the router takes {host} for no I2P name, and has no outproxy",
            "dial a b32 address",
        ),
    ),
    (
        "invalid request",
        (TransportError, "the router did not understand CONNECT {host}:{port}", "is the endpoint right?"),
    ),
)


class I2PConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The table ``[transport.i2p]``."""

    proxy: Annotated[str, setting("The router's HTTP proxy, http://HOST:PORT on loopback.")] = (
        "http://127.0.0.1:4444"
    )
    credentials_file: Annotated[
        str, setting("File (mode 0600) with one line user:password, if the proxy requires a login.")
    ] = ""


class I2PTransport(Transport):
    """Streams through the HTTP proxy and the server tunnels of an I2P router on this machine."""

    scheme = "i2p"
    Config = I2PConfig
    config: I2PConfig

    def __init__(self, config: I2PConfig, base_dir: Path) -> None:
        super().__init__(config, base_dir)
        self._proxy = Endpoint.parse(config.proxy.rstrip("/"))
        if self._proxy.scheme != "http" or not self._proxy.is_loopback or self._proxy.params:
            raise ConfigError(
                [
                    f"transport i2p: proxy is {config.proxy!r}; it must be http://HOST:PORT on loopback, "
                    "such as http://127.0.0.1:4444: the bytes to the router are not encrypted"
                ]
            )
        self._credentials = ""
        if config.credentials_file:
            self._credentials = read_private_file(base_dir / config.credentials_file).strip()
            if not self._credentials.partition(":")[2]:
                raise ConfigError([f"{base_dir / config.credentials_file} must hold user:password"])
        self._challenges = ChallengeCache()

    async def open_stream(self, endpoint: Endpoint) -> trio.abc.Stream:
        """See `Transport.open_stream`. `UnreachableError` also where the proxy is down or too slow."""
        _check_name(endpoint)
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            try:
                return await self._open(endpoint)
            except trio.BrokenResourceError as exc:
                raise self._closed() from exc
        raise UnreachableError(
            f"the I2P proxy {self._where} has not answered within {ANSWER_TIMEOUT_S:g} s",
            "is the router still building its tunnels?",
        )

    @property
    def _where(self) -> str:
        return self._proxy.authority

    def _closed(self) -> UnreachableError:
        return UnreachableError(
            f"the I2P proxy {self._where} closed the connection before it had answered",
            "did the router stop? see its log",
        )

    async def _open(self, endpoint: Endpoint) -> trio.abc.Stream:
        is_challenged = False
        while True:
            try:
                tcp = await trio.open_tcp_stream(self._proxy.host, self._proxy.port)
            except OSError as exc:
                raise UnreachableError(
                    f"nothing listens at the I2P proxy {self._where}",
                    "is the router up, its HTTP proxy on, and proxy in [transport.i2p] right?",
                ) from exc
            stream: trio.abc.Stream | None = None
            try:
                response, data = await self._connect(tcp, endpoint)
                if response.status_code // 100 == 2:
                    # A farm sends nothing first; another service may send a greeting.
                    stream = _Begun(tcp, data) if data else tcp
                    return stream
                if response.status_code != 407:
                    raise self._refusal(endpoint, response.status_code, data)
                self._learn(response, is_challenged)
                is_challenged = True
            finally:
                if stream is None:
                    await trio.aclose_forcefully(tcp)

    async def _connect(self, tcp: trio.SocketStream, endpoint: Endpoint) -> tuple[h11.Response, bytes]:
        """The proxy's response, and the bytes after its header: a page, or the start of the stream."""
        host = endpoint.authority
        headers = [("Host", host), *self._authorization(host)]
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=ANSWER_BYTES)
        request = http.send(h11.Request(method="CONNECT", target=host, headers=headers))
        await tcp.send_all(request + http.send(h11.EndOfMessage()))
        response: h11.Response | None = None
        page = bytearray()
        while len(page) < ANSWER_BYTES:
            try:
                event = http.next_event()
            except h11.RemoteProtocolError as exc:
                raise TransportError(
                    f"{self._where} is not an HTTP proxy ({str(exc)[:80]})",
                    "proxy in [transport.i2p] must be the router's HTTP proxy, i2pd's is at port 4444",
                ) from exc
            if event is h11.NEED_DATA:
                data = await tcp.receive_some()
                if not data:
                    break
                http.receive_data(data)
            elif isinstance(event, h11.Response):
                response = event
                if response.status_code // 100 == 2:
                    return response, http.trailing_data[0]
            elif isinstance(event, h11.Data):
                page += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
        if response is None:
            raise self._closed()
        return response, bytes(page)

    def _authorization(self, target: str) -> list[tuple[str, str]]:
        user, _, password = self._credentials.partition(":")
        answer = self._challenges.authorization(
            ("", "", user), method="CONNECT", target=target, password=password, cnonce=secrets.token_hex(16)
        )
        return [("Proxy-Authorization", answer.header)] if answer else []

    def _learn(self, response: h11.Response, is_challenged: bool) -> None:
        """Store a challenge of the proxy, if it is the first one in this attempt."""
        hint = ""
        if not self._credentials:
            hint = "name a credentials_file in [transport.i2p]"
        elif is_challenged:
            hint = "check user and password in the credentials_file of [transport.i2p]"
        else:
            values = [
                value.decode("latin-1") for name, value in response.headers if name == b"proxy-authenticate"
            ]
            try:
                self._challenges.learn(("", "", self._credentials.partition(":")[0]), values)
            except RemoteProtocolError:
                hint = "configure the proxy for Digest authentication, the only method supported here"
        if hint:
            raise TransportError(f"the I2P proxy {self._where} wants a user and a password", hint)

    def _refusal(self, endpoint: Endpoint, status: int, page: bytes) -> TransportError:
        text = " ".join(
            re.sub(r"(?s)<(head|style)\b.*?</\1>|<[^>]*>", " ", page.decode(errors="replace")).split()
        )
        for words, (kind, what, hint) in _PAGES:
            if words in text.lower():
                return kind(f"{endpoint}: {what.format(host=endpoint.host, port=endpoint.port)}", hint)
        quoted = "".join(each for each in text if each.isprintable())[:120]
        return TransportError(
            f"{endpoint}: the I2P proxy {self._where} answered {status}: {quoted!r}", "see the router's log"
        )

    def check_url(self, url: Endpoint) -> None:
        """See `Transport.check_url`."""
        check_loopback(url, "a server tunnel of the router")

    async def serve(
        self,
        url: Endpoint,
        handler: Callable[[trio.abc.Stream, Peer], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[Endpoint],
    ) -> NoReturn:
        """See `Transport.serve`. All streams come from the tunnel: their address is 127.0.0.1, or as cheap
        to change as a destination (README.md)."""
        await serve_tcp(self, url, handler, address_is_peer=False, task_status=task_status)


def _check_name(endpoint: Endpoint) -> None:
    """Only I2P names may reach the proxy: it might look up others through an outproxy."""
    host = endpoint.host.lower()
    if not host.endswith(".i2p"):
        raise TransportError(f"{endpoint}: {endpoint.host} is not an I2P name", "I2P names end in .i2p")
    if host.endswith(".b32.i2p") and not _B32.fullmatch(host.removesuffix(".b32.i2p")):
        raise TransportError(
            f"{endpoint}: {endpoint.host} is not a b32 address",
            "it has 52 characters of a-z and 2-7 before .b32.i2p: copy all of it",
        )


class _Begun(WrappedStream):
    """A stream whose first bytes have already been received."""

    def __init__(self, stream: trio.SocketStream, received: bytes) -> None:
        super().__init__(stream)
        self._socket = stream.socket
        self._received = received

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if not self._received or self._socket.fileno() < 0:  # closed: it raises the error
            return bytes(await self._stream.receive_some(max_bytes))
        await trio.lowlevel.checkpoint()
        size = len(self._received) if max_bytes is None else max_bytes
        data, self._received = self._received[:size], self._received[size:]
        return data
