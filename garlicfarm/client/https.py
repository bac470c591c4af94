"""HTTPS requests of one user to one server: httpcore's connections, with Digest.

httpcore and not httpx, which is built on it: that imports its own command line, and with it rich, and so cost
every command a third of its CPU time.
"""

from __future__ import annotations

import math
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpcore
import trio

from garlicfarm._version import __version__
from garlicfarm.client.answers import Answer
from garlicfarm.errors import RemoteProtocolError
from garlicfarm.http.digest import ChallengeCache
from garlicfarm.request_body import RequestBody

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = (
    90.0  # for each piece: longer than a linearizable long poll, and than a node waits for a commit
)
MAX_CONNECTIONS = 8
SILENT_S = 0.5
ROUND_TRIPS = 8  # those of a new connection, and some more
KEEPALIVE_S = 5.0  # shorter than the listener's, so that a request never meets a closing connection

CONNECT_ERRORS = (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout)
"""The request was certainly not sent"""
TRANSPORT_ERRORS = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError)
"""All that a request and reading its answer raise; those above are among them"""
TIMEOUTS = (httpcore.TimeoutException,)
"""Those of them that say that nothing has happened for too long"""


@dataclass(frozen=True, slots=True)
class StreamedAnswer(Answer):
    """An answer whose body is still to be read, and which is then to be closed: both by `pieces`."""

    response: httpcore.Response | None = None
    node: HttpsClient | None = None

    @asynccontextmanager
    async def pieces(self) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body as it arrives. It need not be read to its end."""
        assert self.response is not None
        body = self.response.aiter_stream()
        try:
            yield body
        finally:
            with trio.CancelScope() as scope:
                scope.cancel()  # if not read to its end: httpcore's generators do not close each other
                async for _ in body:
                    pass
            await self.response.aclose()


class HttpsClient:
    """Sends requests to the server at ``url``, ``https://host:port``, as ``user``. Close it with `aclose`.
    ``authority`` is its host and port, as in the header Host. ``heard``: when something came from it last, on
    Trio's clock.

    :param tls: verifies the server.
    """

    def __init__(self, url: str, *, user: str, password: str, tls: ssl.SSLContext) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 443
        self.authority = parts.netloc
        self._tls = tls
        self._password = password
        self._key = (self.authority, "", user)
        self._challenges = ChallengeCache()
        self._timeout = dict.fromkeys(("read", "write", "pool"), ANSWER_TIMEOUT_S)
        self._timeout["connect"] = CONNECT_TIMEOUT_S
        self._pool = _pool(tls, MAX_CONNECTIONS)
        self._questions = _pool(tls, 1)
        self.heard = -math.inf
        self._least_s = 0.0  # that an answer took

    async def aclose(self) -> None:
        await self._pool.aclose()
        await self._questions.aclose()

    @property
    def patience_s(self) -> float:
        """How long it may be silent until that is remarkable, given how quickly it has answered before."""
        return max(SILENT_S, ROUND_TRIPS * self._least_s)

    def hear(self, since: float | None = None) -> None:
        """Something came from it; an answer to what was sent at ``since``."""
        self.heard = trio.current_time()
        if since is not None:
            self._least_s = min(self._least_s or math.inf, self.heard - since)

    async def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        stream: bool = False,
        on_sent: Callable[[], None] = lambda: None,
    ) -> Answer:
        """The answer; a success with ``stream`` is to be read, and closed, through `Answer.pieces`.

        A challenge is answered once. ``on_sent`` is called before anything is sent that the server may obey:
        it obeys nothing without a login. Raises one of `TRANSPORT_ERRORS`: there is no complete answer.
        """
        authorization = self.authorization(method, target)
        answer = await self._send(
            method, target, headers, authorization, content, stream, on_sent if authorization else None
        )
        if answer.status != 401:
            return answer
        try:
            self.learn([answer.header("WWW-Authenticate")])
        except RemoteProtocolError:
            return answer
        authorization = self.authorization(method, target)
        return await self._send(method, target, headers, authorization, content, stream, on_sent)

    async def ask(self) -> None:
        """Return once it has answered a question that any live node answers at once. Raises as `request`;
        waits without end where there is no answer. One call at a time: they have one connection."""
        await self._send("GET", "/healthz", {}, pool=self._questions)

    async def open_stream(self) -> trio.SSLStream[trio.SocketStream]:
        """A connection of the caller's own, its TLS handshake done. Raises OSError, or
        `trio.BrokenResourceError`: the handshake failed."""
        stream = await trio.open_ssl_over_tcp_stream(
            self._host, self._port, ssl_context=self._tls, https_compatible=True
        )
        try:
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    def learn(self, challenges: Sequence[str]) -> None:
        """Log in as these ask for from now on. Raises `RemoteProtocolError`: they cannot be answered."""
        self._challenges.learn(self._key, challenges)

    def authorization(self, method: str, target: str) -> str | None:
        """The header Authorization of a request; None before a challenge was learned."""
        answered = self._challenges.authorization(
            self._key, method=method, target=target, password=self._password, cnonce=secrets.token_hex(8)
        )
        return None if answered is None else answered.header

    async def _send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        authorization: str | None = None,
        content: bytes | None = None,
        stream: bool = False,
        on_sent: Callable[[], None] | None = None,
        pool: httpcore.AsyncConnectionPool | None = None,
    ) -> Answer:
        fields = {"Host": self.authority, "User-Agent": f"garlicfarm/{__version__}", **headers}
        if authorization is not None:
            fields["Authorization"] = authorization
        if content is not None:
            fields["Content-Length"] = str(len(content))
        request = httpcore.Request(
            method,
            httpcore.URL(scheme=b"https", host=_ascii(self._host), port=self._port, target=target.encode()),
            headers=[(name.encode(), value.encode()) for name, value in fields.items()],
            content=RequestBody(content or b""),
            extensions={"timeout": {} if pool else self._timeout, "trace": _trace(on_sent)},
        )
        begun = trio.current_time()
        response = await (pool or self._pool).handle_async_request(request)
        self.hear(begun)
        received: dict[str, str] = {}
        for name, value in response.headers:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            received[key] = f"{received[key]}, {text}" if key in received else text
        source = f"https://{self.authority}{target.partition('?')[0]}"
        if stream and 200 <= response.status < 300:
            return StreamedAnswer(response.status, received, b"", source, response, self)
        try:
            return Answer(response.status, received, await response.aread(), source)
        finally:
            await response.aclose()


def _pool(tls: ssl.SSLContext, max_connections: int) -> httpcore.AsyncConnectionPool:
    return httpcore.AsyncConnectionPool(
        tls,
        max_connections=max_connections,
        keepalive_expiry=KEEPALIVE_S,
        network_backend=httpcore.TrioBackend(),
    )


def _ascii(host: str) -> bytes:
    return host.encode("ascii" if host.isascii() else "idna")


def _trace(on_sent: Callable[[], None] | None) -> Callable[[str, dict[str, Any]], Awaitable[None]]:
    """For httpcore's extension ``trace``: closes the socket of a TLS handshake that is cancelled, which
    httpcore leaves to the garbage collector; and calls ``on_sent`` before the request is sent."""
    opened: Any = None

    async def trace(event: str, info: dict[str, Any]) -> None:
        nonlocal opened
        if event == "connection.connect_tcp.complete":
            opened = info["return_value"]
        elif event == "connection.start_tls.failed":
            with trio.CancelScope(shield=True):  # it waits for nothing
                await opened.aclose()
        elif event == "http11.send_request_headers.started" and on_sent is not None:
            on_sent()

    return trace
