"""A web server that receives notices, and answers as the test says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import h11
import trio

Answer = Callable[[trio.SocketStream], Awaitable[None]]


class WebReceiver:
    """``received``: headers and body of each request. ``answers``: one for each next request; then 204."""

    def __init__(self) -> None:
        self.url = ""
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.paths: list[str] = []
        self.answers: list[Answer] = []
        self.closed = 0

    def notices(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.received]

    async def handle(self, stream: trio.SocketStream) -> None:
        try:
            await self._handle(stream)
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            pass
        finally:
            self.closed += 1

    async def _handle(self, stream: trio.SocketStream) -> None:
        connection, body, request = h11.Connection(h11.SERVER), b"", None
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(65536))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return
        assert request is not None
        headers = {name.decode(): value.decode() for name, value in request.headers}
        self.paths.append(f"{request.method.decode()} {request.target.decode()}")
        self.received.append((headers, body))
        answer = self.answers.pop(0) if self.answers else status(204)
        await answer(stream)


def status(code: int, *headers: str) -> Answer:
    async def answer(stream: trio.SocketStream) -> None:
        lines = [f"HTTP/1.1 {code} Said", "Content-Length: 0", *headers]
        await stream.send_all("".join(f"{line}\r\n" for line in (*lines, "")).encode())

    return answer


async def silence(stream: trio.SocketStream) -> None:
    while await stream.receive_some(65536):
        pass


class Flood:
    """100 MB, as far as the other side takes them: ``sent`` bytes."""

    def __init__(self) -> None:
        self.sent = 0

    async def __call__(self, stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        while self.sent < 100_000_000:
            await stream.send_all(b"x" * 100_000)
            self.sent += 100_000


@asynccontextmanager
async def web_receiver() -> AsyncIterator[WebReceiver]:
    receiver = WebReceiver()
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, receiver.handle, listeners)
        receiver.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/topic?token=hidden"
        yield receiver
        nursery.cancel_scope.cancel()
