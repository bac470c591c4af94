"""``GET …/events``: live events as a WebSocket, for programs, and as Server-Sent Events, for pages.

Both are made by `garlicfarm.admin.live_events`. A WebSocket's messages are text: events, a line of JSON each.
To a client that accepts records, entries are binary messages instead. The frames are made here, once for all
watchers, and the server passes them on as they are (`SEND_RAW`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import trio
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from garlicfarm.admin.contract import FarmView, NodeView
from garlicfarm.admin.live_events import Form, Lines, LiveEvents, Records, ServerSentEvents, Watcher
from garlicfarm.admin.problems import Problem
from garlicfarm.admin.requests import parse_number
from garlicfarm.admin.responses import farm_headers, wait_for_disconnect
from garlicfarm.errors import Compacted, FellBehind, StorageError
from garlicfarm.feed import binary_format
from garlicfarm.feed.events import KINDS

SEND_RAW = "garlicfarm.send_raw"
"""Key in the state of a request's scope: a function of the server, which sends frames of an open WebSocket as
they are."""
_LINES, _RECORDS, _SERVER_SENT = Lines(), Records(), ServerSentEvents()

MAX_WATCHERS = 128
MAX_WATCHERS_OF_USER = 56  # each is a connection, of which a user has 64

GOING_AWAY, INTERNAL_ERROR, TRY_AGAIN = 1001, 1011, 1013
"""Why a WebSocket is closed (RFC 6455, section 7.4.1, and IANA's registry)."""


class Watch:
    """The endpoints.

    :param read_farm: the farm that a request names, confirmed by a majority if it asks for that.
    :param shutdown: set when the node shuts down; watchers then end at once.
    """

    def __init__(
        self,
        node: NodeView,
        read_farm: Callable[[HTTPConnection], Awaitable[FarmView]],
        shutdown: trio.Event,
    ) -> None:
        self._node = node
        self._read_farm = read_farm
        self._shutdown = shutdown
        self._live: dict[str, LiveEvents] = {}
        self._of_user = Counter[str]()

    async def websocket(self, socket: WebSocket, user: str) -> None:
        """Push events over a WebSocket until either side closes it."""
        farm = await self._read_farm(socket)
        after, kinds = self._asked(socket, farm)
        form = _RECORDS if binary_format.MEDIA_TYPE in socket.headers.get("accept", "") else _LINES
        with self._watcher(user, farm, after, kinds, form) as watcher:
            headers = farm_headers(farm, next_after=after)
            await socket.accept(headers=[(name.encode(), value.encode()) for name, value in headers.items()])
            send = socket.scope["state"][SEND_RAW]
            code = await self._push(farm, watcher, send, partial(_wait_for_client, socket))
            if code is not None:
                await socket.close(code)

    async def server_sent(self, request: Request, user: str) -> Response:
        accepted = request.headers.get("accept", "*/*")
        if not any(name in accepted for name in (_ServerSent.media_type, "text/*", "*/*")):
            detail = f"events come as {_ServerSent.media_type}"
            raise Problem(406, "not-acceptable", detail, "Send it as `Accept`, or ask for a WebSocket.")
        farm = await self._read_farm(request)
        after, kinds = self._asked(request, farm, resume=request.headers.get("last-event-id"))

        async def left() -> None:
            await wait_for_disconnect(request)

        async def push(watcher: Watcher, send: Callable[[bytes], Awaitable[None]]) -> None:
            await self._push(farm, watcher, send, left)

        watching = self._watcher(user, farm, after, kinds, _SERVER_SENT)
        return _ServerSent(request, watching, push, farm_headers(farm, next_after=after))

    async def _push(
        self,
        farm: FarmView,
        watcher: Watcher,
        send: Callable[[bytes], Awaitable[None]],
        client_left: Callable[[], Awaitable[int | None]],
    ) -> int | None:
        """Send the watcher its events until there is a reason to end: the code, None if the client left."""
        code: int | None = None

        async def end(of: Callable[[], Awaitable[int | None]]) -> None:
            nonlocal code
            code = await of()
            nursery.cancel_scope.cancel()

        async def shut_down() -> int:
            await self._shutdown.wait()
            return GOING_AWAY

        async def pump() -> int:
            await self._live[farm.farm].pump()
            return GOING_AWAY

        readers = self._node.metrics.feed_readers.labels(farm.farm)
        with readers.track_inprogress():
            try:
                async with trio.open_nursery() as nursery:
                    for reason in (shut_down, pump, client_left):
                        nursery.start_soon(end, reason)
                    while True:
                        await send(await watcher.next())
            except* (Compacted, FellBehind):
                code = TRY_AGAIN  # the next request gets 410
            except* StorageError:
                code = INTERNAL_ERROR
        return code

    def _asked(
        self, request: HTTPConnection, farm: FarmView, *, resume: str | None = None
    ) -> tuple[int, Collection[str]]:
        """The index to start after (``resume`` comes before the query's), and the kinds of events. Raises
        `Problem`, and `Compacted`: the next entries are gone."""
        after = farm.commit_index
        if resume is not None or "after" in request.query_params:
            given = request.query_params.get("after", "") if resume is None else resume
            after = int(parse_number("after", given, 2**63 - 1))
        kinds = request.query_params.get("kinds", ",".join(KINDS)).split(",")
        if not set(kinds) <= set(KINDS):
            raise Problem(400, "bad-query", f"kinds are among {', '.join(KINDS)}", "Correct the query.")
        if "entry" in kinds and after < farm.first_index - 1:
            raise Compacted(farm.first_index)
        return after, kinds

    @contextmanager
    def _watcher(
        self, user: str, farm: FarmView, after: int, kinds: Collection[str], form: Form
    ) -> Iterator[Watcher]:
        """Raises `Problem`: there is no place for another watcher. It counts from the same moment on."""
        if self._of_user.total() >= MAX_WATCHERS or self._of_user[user] >= MAX_WATCHERS_OF_USER:
            raise Problem(
                503,
                "too-many-watchers",
                f"this node has {MAX_WATCHERS} watchers, or {MAX_WATCHERS_OF_USER} of this user",
                "Watch another node.",
                headers=[("Retry-After", "5")],
            )
        live = self._live.get(farm.farm)
        if live is None or live.farm is not farm:
            live = LiveEvents(farm, lambda: self._node.farms.get(farm.farm) is farm)
            self._live[farm.farm] = live
        entries = self._node.metrics.feed_entries.labels(farm.farm)
        self._of_user[user] += 1
        try:
            with live.watcher(after, kinds, form, entries.inc) as watcher:
                yield watcher
        finally:
            self._of_user[user] -= 1


class _ServerSent(Response):
    """A body without end, made while the client reads it."""

    media_type = "text/event-stream"

    def __init__(
        self,
        request: Request,
        watching: AbstractContextManager[Watcher],
        push: Callable[[Watcher, Callable[[bytes], Awaitable[None]]], Awaitable[None]],
        headers: dict[str, str],
    ) -> None:
        super().__init__(headers={**headers, "Cache-Control": "no-store"})
        del self.headers["Content-Length"]
        self._is_head = request.method == "HEAD"
        self._watching = watching
        self._push = push

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_body(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        # Entered before anything is sent: without a place for it, the answer is a problem.
        with self._watching as watcher:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            if not self._is_head:
                await self._push(watcher, send_body)
        await send({"type": "http.response.body", "body": b""})


async def _wait_for_client(socket: WebSocket) -> None:
    """Return once the WebSocket is closed: the server closes it where the client sends a message."""
    await socket.receive()
