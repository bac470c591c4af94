"""Streamed bodies, sent piece by piece as the client reads them; the headers of all answers about a farm; and
how long an answer may take."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from garlicfarm.admin.contract import FarmView
from garlicfarm.errors import FellBehind, OutcomeUnknown

MAX_WRITE_BYTES = 256 << 10
COMMIT_DEADLINE_S = 70.0  # longer than nodes wait: they know the outcome of an entry better


class Pieces(Response):
    """A body that is sent piece by piece, as the client reads it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._write(bytes(self.body), send)
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, data: bytes, send: Send) -> None:
        for start in range(0, len(data), MAX_WRITE_BYTES):
            piece = data[start : start + MAX_WRITE_BYTES]
            await send({"type": "http.response.body", "body": piece, "more_body": True})


class Streamed(Pieces):
    """A body that is made while the client reads it. If it cannot be completed the connection is cut in the
    middle, so that no client takes it for complete. ``on_end`` is called at the end, whatever that is."""

    def __init__(
        self,
        request: Request,
        make_body: Callable[[], AsyncGenerator[bytes]],
        headers: dict[str, str],
        media_type: str,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["Content-Length"]
        self._request = request
        self._make_body = make_body
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send(send)
        finally:
            self._on_end()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        finished = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_when_left, nursery.cancel_scope)
            with suppress(FellBehind):  # the next request gets 410
                async with aclosing(self._make_body()) as body:
                    async for piece in body:
                        await self._write(piece, send)
                finished = True
            nursery.cancel_scope.cancel()
        if finished:
            await send({"type": "http.response.body", "body": b""})

    async def _end_when_left(self, scope: trio.CancelScope) -> None:
        await wait_for_disconnect(self._request)
        scope.cancel()


def json_answer(body: object, farm: FarmView | None = None, *, status: int = 200) -> Response:
    """``body`` as JSON."""
    headers = None if farm is None else farm_headers(farm)
    return Pieces(msgspec.json.encode(body), status, headers=headers, media_type="application/json")


def farm_headers(farm: FarmView, *, next_after: int | None = None) -> dict[str, str]:
    """The headers of every answer about a farm."""
    headers = {
        "Garlic-Farm-Id": farm.farm_id.hex(),
        "Garlic-Farm-First-Index": str(farm.first_index),
        "Garlic-Farm-Commit-Index": str(farm.commit_index),
    }
    if next_after is not None:
        headers["Garlic-Farm-Next-After"] = str(next_after)
    return headers


@contextmanager
def commit_deadline(what: str = "not known to be committed") -> Iterator[None]:
    """For a wait that ends with a commit. Raises `OutcomeUnknown`, with ``what``: it takes too long."""
    with trio.move_on_after(COMMIT_DEADLINE_S) as scope:
        yield
    if scope.cancelled_caught:
        raise OutcomeUnknown(f"{what} after {COMMIT_DEADLINE_S:.0f} s")


async def wait_for_disconnect(request: Request) -> None:
    """Return once the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
