"""HTTP/1.1 for an ASGI application, on one stream after the other: h11, and wsproto for live events.

Theory of operation. A connection is one task. It reads a request's header, and runs the application, which
takes the body, and waits for the client's leaving, by ``receive``. Only these read, at most `RECEIVE_BYTES`
at a time, and only once h11 has used up what came before. So no client fills the memory, however much it
sends: what the application does not take stays in the socket.

* HTTP/1.1 only, and WebSockets where the API has one. Any other Upgrade is ignored.
* A request's header must be complete within ``header_s``, and have at most `MAX_HEADER_BYTES`.
* Requests behind the present one wait until it is answered; meanwhile nothing else is read.
* A write that has begun is completed, though its task is cancelled: half of one would garble the next. The
  stream bounds how long it takes.
* When a write finds that the client has left, the application is cancelled.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import h11
import trio
from wsproto.utilities import generate_accept_token

from garlicfarm.admin.access import LOGGED_IN
from garlicfarm.admin.watch import SEND_RAW
from garlicfarm.admin.websocket import WebSocketServer
from garlicfarm.credentials.users import Login
from garlicfarm.transport import AdmissionSlot, Stage

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

MAX_HEADER_BYTES = 16 << 10
RECEIVE_BYTES = 16 << 10
WEBSOCKETS = re.compile(rb"/v1/farms/[^/?]+/events(\?.*)?")
WEBSOCKET_VERSION = b"13"
INTERNAL_ERROR = 1011


class HttpServer:
    """Serves ``app`` on connections; its defects go to ``logger``.

    :param header_s: within which a request's header must be complete, in seconds.
    """

    def __init__(self, app: AsgiApp, logger: logging.Logger, *, header_s: float) -> None:
        self._app = app
        self._logger = logger
        self._header_s = header_s
        self._waiting = set[trio.CancelScope]()
        self._is_ending = False

    async def run(
        self,
        stream: trio.abc.Stream,
        slot: AdmissionSlot,
        on_login: Callable[[Login], None],
        *,
        client: tuple[str, int],
        server: tuple[str, int],
    ) -> None:
        """Serve one client to its end, and close the stream. Raises what is a defect.

        :param on_login: called for each request with a valid password.
        :param client: its address and port; ``server``: those that it connected to.
        """
        slot.advance(Stage.STREAM)
        wire = _Wire(stream, slot)
        with wire.scope:
            while (request := await self._request(wire)) is not None:
                scope = _scope(request) | {"client": client, "server": server, "state": {LOGGED_IN: on_login}}
                if not await self._answer(wire, request, scope):
                    break
        await stream.aclose()

    def finish(self) -> None:
        """Let each connection end after its present request."""
        self._is_ending = True
        for scope in self._waiting:
            scope.cancel()

    async def _request(self, wire: _Wire) -> h11.Request | None:
        """The next request; None: no other comes, or what came is refused."""
        if self._is_ending:
            return None
        with trio.move_on_after(self._header_s) as scope:
            self._waiting.add(scope)
            try:
                event = await wire.next_event()
            except h11.RemoteProtocolError as error:
                await wire.refuse(error.error_status_hint)
                return None
            finally:
                self._waiting.discard(scope)
            if not isinstance(event, h11.Request):
                return None
            if event.http_version in (b"1.0", b"1.1"):
                return event
            await wire.refuse(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        return None

    async def _answer(self, wire: _Wire, request: h11.Request, scope: dict[str, Any]) -> bool:
        """Have a request answered; whether another one may follow."""
        exchange: _Exchange | _WebSocketExchange
        exchange = answer = _Exchange(wire, request.method)
        if _asks_for_websocket(request):
            key = _websocket_key(request)
            if key is None or not wire.has_no_body():
                await wire.refuse(HTTPStatus.BAD_REQUEST)
                return False
            exchange = _WebSocketExchange(wire, answer, key)
            scope |= {
                "type": "websocket",
                "scheme": "wss",
                "subprotocols": [],
                "extensions": {"websocket.http.response": {}},
            }
            scope["state"][SEND_RAW] = exchange.send_raw
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            self._logger.exception("the application failed")
        await exchange.end()
        return wire.start_next_cycle()


def _scope(request: h11.Request) -> dict[str, Any]:
    path, _, query = request.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.http_version.decode(),
        "method": request.method.decode(),
        "scheme": "https",
        "path": unquote(path.decode()),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": list(request.headers),
        "extensions": {},
    }


def _values(request: h11.Request, name: bytes) -> list[bytes]:
    """The values of a header that is a list, in lower case."""
    lines = [value for known, value in request.headers if known == name]
    return [value.strip().lower() for value in b",".join(lines).split(b",")]


def _asks_for_websocket(request: h11.Request) -> bool:
    return (
        request.method == b"GET"
        and request.http_version == b"1.1"
        and WEBSOCKETS.fullmatch(request.target) is not None
        and b"upgrade" in _values(request, b"connection")
        and _values(request, b"upgrade") == [b"websocket"]
    )


def _websocket_key(request: h11.Request) -> bytes | None:
    """What the answer to the handshake is made of; None: it is no handshake of a known version."""
    headers = dict(request.headers)
    if headers.get(b"sec-websocket-version") != WEBSOCKET_VERSION:
        return None
    return headers.get(b"sec-websocket-key")


def _date() -> tuple[bytes, bytes]:
    return b"date", formatdate(usegmt=True).encode()


class _Wire:
    """A stream and its HTTP, with the rules above for reading and writing. ``scope`` is that of all that is
    done on it."""

    def __init__(self, stream: trio.abc.Stream, slot: AdmissionSlot) -> None:
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        self.scope = trio.CancelScope()
        self._stream = stream
        self._slot = slot
        self._sending = trio.Lock()

    async def receive(self, max_bytes: int) -> bytes:
        """What comes next; nothing if the client has left."""
        try:
            data = bytes(await self._stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""
        if data:
            self._slot.advance(Stage.REQUEST)
        return data

    async def next_event(self) -> object:
        """The next event that is one. Raises `h11.RemoteProtocolError`."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.receive(RECEIVE_BYTES))
        return event

    def has_no_body(self) -> bool:
        """Whether the present request is complete with its header."""
        with suppress(h11.RemoteProtocolError):
            return isinstance(self.http.next_event(), h11.EndOfMessage)
        return False

    async def send(self, data: bytes) -> None:
        """Send all of it. If the client has left, ``scope`` is cancelled."""
        if not data:
            return
        async with self._sending:
            try:
                with trio.CancelScope(shield=True):
                    await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.scope.cancel()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def say(self, *events: h11.Event) -> None:
        """Send events, at once."""
        await self.send(b"".join([self.http.send(event) or b"" for event in events]))

    async def refuse(self, status: int) -> None:
        """Answer without the application, and for the last time."""
        if self.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [_date(), (b"content-length", b"0"), (b"connection", b"close")]
            await self.say(h11.Response(status_code=status, headers=headers), h11.EndOfMessage())

    def start_next_cycle(self) -> bool:
        """Make ready for another request; False: the present one was not read and answered to its end."""
        try:
            while self.http.their_state is h11.SEND_BODY:
                if self.http.next_event() is h11.NEED_DATA:
                    return False
            self.http.start_next_cycle()
        except h11.ProtocolError:
            return False
        return True


class _Exchange:
    """A request and its answer, as ASGI has them."""

    def __init__(self, wire: _Wire, method: bytes) -> None:
        self._wire = wire
        self._is_bodiless = method == b"HEAD"
        self._answered = trio.Event()

    async def receive(self) -> dict[str, Any]:
        """The next piece of the body; after it, that the client has left."""
        if self._wire.http.they_are_waiting_for_100_continue:
            await self._wire.say(h11.InformationalResponse(status_code=100, headers=[]))
        try:
            event = await self._wire.next_event()
        except h11.RemoteProtocolError:  # also: it left within the body
            return {"type": "http.disconnect"}
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        if isinstance(event, h11.EndOfMessage):
            return {"type": "http.request", "body": b"", "more_body": False}
        if event is h11.PAUSED:
            await self._answered.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            self._is_bodiless = self._is_bodiless or status in (
                HTTPStatus.NO_CONTENT,
                HTTPStatus.NOT_MODIFIED,
            )
            await self._wire.say(
                h11.Response(status_code=status, headers=[_date(), *message.get("headers", ())])
            )
            return
        events: list[h11.Event] = []
        if (body := message.get("body", b"")) and not self._is_bodiless:
            events.append(h11.Data(data=body))
        if not message.get("more_body", False):
            events.append(h11.EndOfMessage())
            self._answered.set()
        await self._wire.say(*events)

    async def end(self) -> None:
        """The application has ended."""
        await self._wire.refuse(HTTPStatus.INTERNAL_SERVER_ERROR)


class _WebSocketExchange:
    """A WebSocket as ASGI has it. ``answer`` is sent in its place if the application refuses it."""

    def __init__(self, wire: _Wire, answer: _Exchange, key: bytes) -> None:
        self._wire = wire
        self._answer = answer
        self._key = key
        self._is_announced = False
        self._accepted = trio.Event()
        self._web: WebSocketServer | None = None

    async def receive(self) -> dict[str, Any]:
        """That there is a WebSocket; after it, that it is closed."""
        if not self._is_announced:
            self._is_announced = True
            return {"type": "websocket.connect"}
        await self._accepted.wait()
        assert self._web is not None
        return {"type": "websocket.disconnect", "code": await self._web.wait_closed()}

    async def send(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "websocket.accept":
            await self._accept(message.get("headers", ()))
        elif kind == "websocket.close" and self._web is not None:
            await self._web.close(message["code"])
        elif kind == "websocket.close":
            await self._wire.refuse(HTTPStatus.FORBIDDEN)
        else:
            answer = {**message, "type": kind.removeprefix("websocket.")}
            if "headers" in answer:  # frames may follow already, which are no HTTP
                answer["headers"] = [*answer["headers"], (b"connection", b"close")]
            await self._answer.send(answer)

    async def send_raw(self, frames: bytes) -> None:
        """See `SEND_RAW`."""
        assert self._web is not None
        await self._web.send_frames(frames)

    async def end(self) -> None:
        """The application has ended."""
        if self._web is None:
            await self._answer.end()
        else:
            await self._web.close(INTERNAL_ERROR)

    async def _accept(self, headers: Headers) -> None:
        upgrade = [
            (b"upgrade", b"websocket"),
            (b"connection", b"upgrade"),
            (b"sec-websocket-accept", generate_accept_token(self._key)),
        ]
        await self._wire.say(h11.InformationalResponse(status_code=101, headers=[*upgrade, *headers]))
        early, _ = self._wire.http.trailing_data
        self._web = WebSocketServer(self._wire.receive, self._wire.send, early)
        self._accepted.set()
