"""A link, what it connects to, and what it tells: on streams in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from garlicfarm.net.handshake import Established
from garlicfarm.net.link import Backoff, Link, LinkConfig
from garlicfarm.wire import Limits, RequestDecoder, encode_response
from garlicfarm.wire.messages import LogEntry, MessageType, Request, Response, ValueType
from tests.running import background

Clock = trio.testing.MockClock

TIMEOUT_S = 2.0
BACKOFF = Backoff(lambda: 0.5, first_s=0.1, longest_s=0.8)  # 0.1, 0.2, 0.4, 0.8, 0.8 …
VOTE = Request(MessageType.REQUEST_VOTE_REQUEST, 1, 2, 1)
POST = Request(MessageType.CLIENT_REQUEST, 1, 2, entries=(LogEntry(0, ValueType.APPLICATION, b"x"),))


def answer(number: int = 0, *, to: Request = VOTE, source: int = 2) -> bytes:
    kind = MessageType.APPEND_ENTRIES_RESPONSE if to.type is POST.type else MessageType(to.type + 1)
    return encode_response(Response(kind, source, 1, 1, number, True))


class Server:
    """What a link connects to; ``behave(stream, number)`` is each connection's, closed at its end."""

    def __init__(
        self, behave: Callable[[trio.abc.Stream, int], Awaitable[None]], leftover: bytes = b""
    ) -> None:
        self.behave = behave
        self.leftover = leftover
        self.attempts: list[float] = []
        self.nursery: trio.Nursery
        self.pair: Callable[[], tuple[trio.abc.Stream, trio.abc.Stream]] = trio.testing.memory_stream_pair

    @asynccontextmanager
    async def serving(self, *tasks: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
        """It serves its connections, and these tasks run, for as long as the block lasts."""
        async with trio.open_nursery() as self.nursery, background(*tasks):
            yield
            self.nursery.cancel_scope.cancel()

    async def connect(self) -> Established:
        self.attempts.append(trio.current_time())
        ours, theirs = self.pair()
        self.nursery.start_soon(self._serve, theirs, len(self.attempts))
        await trio.lowlevel.checkpoint()
        return Established(ours, "farm", "1", frozenset(), None, None, self.leftover)

    async def _serve(self, stream: trio.abc.Stream, number: int) -> None:
        async with stream:
            await self.behave(stream, number)


Plain = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]


class SendsNow(trio.abc.Stream):
    """A stream that sends without waiting, as `garlicfarm.net.tls_stream.TlsStream` does. ``room``: how many
    bytes the system takes at once; the rest goes with the next `send_all`."""

    room = 1 << 30

    def __init__(self, plain: Plain, peer: Plain) -> None:
        self._plain, self._peer = plain, peer
        self._rest = b""
        self.sends: list[tuple[str, bytes]] = []

    def send_now(self, data: bytes) -> bool:
        self.sends.append(("now", data))
        self._peer.receive_stream.put_data(data[: self.room])
        self._rest = data[self.room :]
        return not self._rest

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.sends.append(("task", bytes(data)))
        rest, self._rest = self._rest, b""
        await self._plain.send_all(rest + bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await self._plain.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._plain.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._plain.aclose()


class Told:
    """What a link reports."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, int]] = []
        self.failures: list[tuple[int, bool]] = []
        self.changes: list[str] = []

    def change(self, error: Exception | None) -> None:
        self.changes.append("up" if error is None else f"{type(error).__name__}: {error}")


def config(connect: Callable[[], Awaitable[Established]], **other: Any) -> LinkConfig:
    options: dict[str, Any] = {"server_id": 2, "timeout_s": TIMEOUT_S, "backoff": BACKOFF}
    return LinkConfig(connect=connect, **(options | other))


def link(connect: Callable[[], Awaitable[Established]], told: Told, **other: Any) -> Link:
    return Link(
        config(connect, **other),
        on_answer=lambda tag, response: told.answers.append((tag, response.next_index)),
        on_failure=lambda tag, sent: told.failures.append((tag, sent)),
        on_change=told.change,
    )


async def silent(stream: trio.abc.Stream, number: int) -> None:
    while await stream.receive_some():
        pass


async def closing(stream: trio.abc.Stream, number: int) -> None:
    pass


async def echoing(stream: trio.abc.Stream, number: int) -> None:
    """Answers each request with its term as next_index."""
    decoder = RequestDecoder(Limits())
    while data := await stream.receive_some():
        decoder.receive_data(data)
        while (request := decoder.next_message()) is not None:
            await stream.send_all(answer(request.term, to=request))


def vote(term: int) -> Request:
    return Request(MessageType.REQUEST_VOTE_REQUEST, 1, 2, term)
