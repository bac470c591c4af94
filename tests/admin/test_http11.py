"""What the HTTP server reads and answers, on streams in memory: it stores no more than it needs at a time."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.admin import websocket
from garlicfarm.admin.http11 import MAX_HEADER_BYTES, RECEIVE_BYTES, AsgiApp, HttpServer
from garlicfarm.admin.watch import SEND_RAW
from garlicfarm.transport import AdmissionSlot

HEADER_S = 10.0
GET = b"GET /a%20b?c=d HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
HANDSHAKE = (
    b"GET /v1/farms/farm/events HTTP/1.1\r\nHost: x\r\nConnection: x, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
ACCEPTED = b"HTTP/1.1 101 "
MASK = bytes(4)


class Scripted(trio.abc.Stream):
    """Whose client sends each of ``pieces`` on its own, cut as it is read, and then nothing more: it stays
    there, or has left (``leaves``). ``taken`` is how much of it was read, ``sent`` what was answered."""

    def __init__(self, *pieces: Iterable[bytes], leaves: bool = False) -> None:
        self._pieces: Iterator[bytes] = itertools.chain(*pieces)
        self._rest = b""
        self._leaves = leaves
        self.taken = 0
        self.sent = b""
        self.is_closed = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        self._rest = self._rest or next(self._pieces, b"")
        if not self._rest and not self._leaves:
            await trio.sleep_forever()
        piece, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        self.taken += len(piece)
        return piece

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.sent += data

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self.is_closed = True
        await trio.lowlevel.checkpoint()


async def serve(stream: Scripted, app: AsgiApp, for_s: float = 3600.0) -> None:
    """Serve one client to its end, for so long at most (on the clock of the test)."""
    with trio.move_on_after(for_s):
        await run(HttpServer(app, logging.getLogger("test"), header_s=HEADER_S), stream)


async def run(server: HttpServer, stream: Scripted) -> None:
    await server.run(
        stream, AdmissionSlot(), lambda login: None, client=("192.0.2.1", 1), server=("192.0.2.2", 2)
    )


def app(answer: Callable[[Any, Any], Awaitable[bytes]], **headers: bytes) -> AsgiApp:
    """An application that answers with what ``answer(scope, receive)`` returns."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        body = await answer(scope, receive)
        lines = [(name.encode(), value) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        await send({"type": "http.response.body", "body": body})

    return run


async def path_of(scope: Any, receive: Any) -> bytes:
    return b"<%b>" % scope["path"].encode()


async def body_of(scope: Any, receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return b"<%b %b>" % (message["type"].encode(), body)


async def watch(scope: Any, receive: Any, send: Any) -> None:
    """As live events: frames go out until the client is through."""
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    await scope["state"][SEND_RAW](b"\x81\x01a")
    code = (await receive())["code"]
    await scope["state"][SEND_RAW](b"\x81\x01b")
    await send({"type": "websocket.close", "code": code})


def frames_of(stream: Scripted) -> bytes:
    head, _, frames = stream.sent.partition(b"\r\n\r\n")
    assert head.startswith(ACCEPTED)
    return frames


def close_frame(code: int) -> bytes:
    return b"\x88\x02" + code.to_bytes(2, "big")


# ------------------------------------------------------------------ WebSockets


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ([b"\x82\xff" + (2**62).to_bytes(8, "big") + MASK, itertools.repeat(bytes(1 << 16))], 1003),
        ([b"\x01\x81" + MASK + b"x", itertools.repeat(b"\x00\x81" + MASK + b"x")], 1003),
        ([itertools.repeat(b"\x02\x80" + MASK)], 1003),
        ([itertools.repeat(b"\x81\x81" + MASK + b"x")], 1003),
        ([itertools.repeat(b"\x80\x81" + MASK + b"x")], 1002),
        ([b"\x89\xff" + (2**62).to_bytes(8, "big") + MASK, itertools.repeat(bytes(1 << 16))], 1002),
        ([b"\x88\xfe\xff\xff" + MASK, itertools.repeat(bytes(1 << 16))], 1002),
        ([itertools.repeat(b"\x09\x81" + MASK + b"x")], 1002),
        ([itertools.repeat(b"\x89\x01x")], 1002),
        ([itertools.repeat(b"\xff" * 100)], 1002),
    ],
    ids=[
        "frame", "fragments", "empty-fragments", "messages", "continuations", "ping", "close", "half-pings",
        "unmasked", "noise",
    ],
)  # fmt: skip
async def test_message_without_end_ends_the_websocket_before_it_is_stored(message, code, autojump_clock):
    head, *rest = message if len(message) > 1 else (b"", *message)
    stream = Scripted([HANDSHAKE], [head] if head else [], *rest)
    await serve(stream, watch)
    assert stream.is_closed
    frames = frames_of(stream)
    assert frames.startswith(b"\x81\x01a\x88")
    assert frames[5:7] == close_frame(code)[2:]
    assert b"\x81\x01b" not in frames, "nothing follows the close"
    assert stream.taken - len(HANDSHAKE) <= 4 * websocket.PIECE_BYTES


async def test_message_right_behind_the_handshake_ends_the_websocket(autojump_clock):
    stream = Scripted([HANDSHAKE + b"\x82\xff" + (2**62).to_bytes(8, "big") + MASK + bytes(1 << 20)])
    await serve(stream, watch)
    assert frames_of(stream) == b"\x81\x01a" + close_frame(1003)
    assert stream.taken <= RECEIVE_BYTES


async def test_pings_without_end_are_answered_and_read_no_faster_than_allowed(autojump_clock):
    ping = b"\x89\x83" + MASK + b"abc"
    stream = Scripted([HANDSHAKE], itertools.repeat(ping * 1000))
    await serve(stream, watch, for_s=10.0)
    taken, pieces = stream.taken - len(HANDSHAKE), 10.0 / websocket.REST_S
    assert (pieces - 2) * websocket.PIECE_BYTES <= taken <= (pieces + 2) * websocket.PIECE_BYTES
    pongs = frames_of(stream).removeprefix(b"\x81\x01a")
    assert pongs == b"\x8a\x03abc" * (taken // len(ping))


@pytest.mark.parametrize("payload", [b"", b"\x03\xe8", b"\x03\xe9bye"])
async def test_close_of_the_client_is_answered_once(payload, autojump_clock):
    close = b"\x88" + bytes([0x80 | len(payload)]) + MASK + payload
    stream = Scripted([HANDSHAKE, close, close])
    await serve(stream, watch)
    assert frames_of(stream)[3:].startswith(b"\x88")
    assert len(frames_of(stream)) <= 5 + len(payload)
    assert stream.taken == len(HANDSHAKE) + len(close)


async def test_websocket_that_the_application_leaves_open_is_closed_as_its_defect(autojump_clock, caplog):
    async def stumble(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        raise ValueError("a defect")

    stream = Scripted([HANDSHAKE])
    await serve(stream, stumble)
    assert frames_of(stream) == close_frame(1011)
    assert "ValueError: a defect" in caplog.text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b": 13\r\n", b": 8\r\n"),
        (b"Sec-WebSocket-Key", b"Key"),
        (b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\n"),
        (b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n"),
    ],
    ids=["version", "key", "body", "garbled-body"],
)
async def test_handshake_that_is_none_is_refused(old, new, autojump_clock):
    stream = Scripted([HANDSHAKE.replace(old, new)])
    await serve(stream, watch)
    assert stream.sent.startswith(b"HTTP/1.1 400 ")
    assert stream.is_closed


async def test_websocket_that_the_application_closes_at_once_is_forbidden(autojump_clock):
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.close", "code": 1000})

    stream = Scripted([HANDSHAKE])
    await serve(stream, refuse)
    assert stream.sent.startswith(b"HTTP/1.1 403 ")
    assert stream.is_closed


# ------------------------------------------------------------------ requests


SNIPPETS = [
    *(GET, POST, HANDSHAKE, b"\r\n", b"\r\n\r\n", b"HTTP/1.1", b"Content-Length: 3\r\n", b"Upgrade: h2c\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n"),
    *(
        b"\x89\x80" + MASK,
        b"\x88\x80" + MASK,
        b"\x81\x81" + MASK + b"x",
        b"Host: \xff\r\n",
        b"Connection: \xff\r\n",
    ),
]


@given(st.lists(st.sampled_from(SNIPPETS) | st.binary(max_size=8), max_size=12))
def test_hostile_client_ends_its_own_connection_only(pieces: list[bytes]) -> None:
    async def serve_it() -> None:
        async def take(scope: Any, receive: Any, send: Any) -> None:
            application = watch if scope["type"] == "websocket" else app(body_of)
            await application(scope, receive, send)

        stream = Scripted(pieces, leaves=True)
        with trio.fail_after(3600):
            await run(HttpServer(take, logging.getLogger("test"), header_s=HEADER_S), stream)
        assert stream.is_closed

    trio.run(serve_it, clock=trio.testing.MockClock(autojump_threshold=0))


WITHOUT_END = {
    "header": (b"", b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 1000),
    "size": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"0" * (1 << 20)),
    "trailer": (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * (1 << 18)),
    "pipelined": (GET, GET * 10_000),
}
BODIES_WITHOUT_END = {
    "body": (POST + b"Content-Length: 1099511627776\r\n\r\n", bytes(1 << 20)),
    "chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"fffffffffff\r\n" + bytes(1 << 20)),
}


@pytest.mark.parametrize(
    ("head", "rest"),
    [*WITHOUT_END.values(), *BODIES_WITHOUT_END.values()],
    ids=[*WITHOUT_END, *BODIES_WITHOUT_END],
)
async def test_what_the_application_does_not_take_is_not_read(head, rest, autojump_clock):
    async def never(scope: Any, receive: Any, send: Any) -> None:
        await trio.sleep_forever()

    stream = Scripted([head] if head else [], itertools.repeat(rest))
    await serve(stream, never)
    assert stream.taken <= MAX_HEADER_BYTES + RECEIVE_BYTES


@pytest.mark.parametrize(("head", "rest"), WITHOUT_END.values(), ids=WITHOUT_END)
async def test_header_without_end_and_requests_behind_one_are_bounded_while_the_application_reads(
    head: bytes, rest: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    messages = list[Any]()

    async def read(scope: Any, receive: Any, send: Any) -> None:
        while True:
            messages.append(await receive())
            if messages[-1]["type"] == "http.disconnect":
                break

    stream = Scripted([head] if head else [], itertools.repeat(rest))
    await serve(stream, read)
    assert sum(len(message.get("body", b"")) for message in messages) == 0
    assert stream.taken <= 2 * (MAX_HEADER_BYTES + RECEIVE_BYTES)


async def test_body_comes_in_pieces_of_bounded_size_as_it_is_taken(autojump_clock):
    sizes, taken = list[int](), list[int]()

    async def read(scope: Any, receive: Any) -> bytes:
        message = await receive()
        while message["more_body"]:
            sizes.append(len(message["body"]))
            taken.append(stream.taken)
            message = await receive()
        return b"%d" % sum(sizes)

    stream = Scripted([POST + b"Content-Length: 1000000\r\nConnection: close\r\n\r\n", bytes(1_000_000)])
    await serve(stream, app(read))
    assert stream.sent.endswith(b"\r\n7\r\n1000000\r\n0\r\n\r\n")
    assert max(sizes) <= RECEIVE_BYTES
    given = list(itertools.accumulate(sizes))
    assert all(read - len(POST) - 100 <= had for read, had in zip(taken, given, strict=True))


async def test_chunked_body_is_put_together(autojump_clock: trio.testing.MockClock) -> None:
    body = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: z\r\n\r\n"
    stream = Scripted([bytes([byte]) for byte in POST + b"Transfer-Encoding: chunked\r\n\r\n" + body])
    await serve(stream, app(body_of, **{"content-length": b"20"}))
    assert stream.sent.endswith(b"<http.request abcde>")


async def test_body_that_ends_early_or_is_garbled_ends_for_the_application(autojump_clock):
    stream = Scripted([POST + b"Content-Length: 9\r\n\r\nhalf"], leaves=True)
    await serve(stream, app(body_of))
    assert b"<http.disconnect half>" in stream.sent
    stream = Scripted([POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n"])
    await serve(stream, app(body_of))
    assert b"<http.disconnect a>" in stream.sent
    assert stream.is_closed


async def test_requests_behind_one_another_are_answered_in_order_on_one_connection(autojump_clock):
    post = b"POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    last = b"GET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    stream = Scripted([GET.replace(b"/a%20b", b"/1") + post + last + GET])
    await serve(stream, app(path_of, **{"content-length": b"4"}))
    answers = stream.sent.split(b"HTTP/1.1 200 ")
    assert [answer.rpartition(b"\r\n\r\n")[2] for answer in answers] == [b"", b"</1>", b"</2>", b"</3>"]
    assert stream.is_closed


async def test_connection_ends_with_its_last_request(autojump_clock: trio.testing.MockClock) -> None:
    for head in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
        stream = Scripted([head])
        begun = trio.current_time()
        await serve(stream, app(path_of))
        assert (trio.current_time(), stream.is_closed) == (begun, True)
        assert b"\r\nConnection: close\r\n".lower() in stream.sent.lower()


async def test_connection_without_a_request_ends_in_time(autojump_clock: trio.testing.MockClock) -> None:
    stream = Scripted([GET])
    await serve(stream, app(path_of))
    assert stream.is_closed
    assert trio.current_time() == pytest.approx(HEADER_S)


async def test_client_is_told_to_continue_once_its_body_is_wanted(autojump_clock):
    head = POST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    stream = Scripted([head, b"abc"])
    await serve(stream, app(body_of, **{"content-length": b"18"}))
    assert stream.sent.startswith(b"HTTP/1.1 100 ")
    assert stream.sent.endswith(b"<http.request abc>")
    stream = Scripted([head])
    await serve(stream, app(path_of))
    assert stream.sent.startswith(b"HTTP/1.1 200 ")
    assert stream.is_closed, "the body may come all the same"


async def test_head_gets_the_header_alone(autojump_clock: trio.testing.MockClock) -> None:
    stream = Scripted([GET.replace(b"GET", b"HEAD"), GET])
    await serve(stream, app(path_of, **{"content-length": b"6"}))
    first, second = stream.sent.split(b"HTTP/1.1 200 ")[1:]
    assert first.endswith(b"\r\n\r\n")
    assert second.endswith(b"\r\n\r\n</a b>")


async def test_application_that_answers_nothing_is_answered_for(autojump_clock, caplog):
    async def stumble(scope: Any, receive: Any) -> bytes:
        raise ValueError("a defect")

    stream = Scripted([GET])
    await serve(stream, app(stumble))
    assert stream.sent.startswith(b"HTTP/1.1 500 ")
    assert stream.is_closed
    assert "ValueError: a defect" in caplog.text


async def test_answer_that_breaks_off_is_not_completed(autojump_clock: trio.testing.MockClock) -> None:
    async def break_off(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    stream = Scripted([GET, GET])
    await serve(stream, break_off)
    assert stream.sent.endswith(b"\r\nhalf\r\n")
    assert stream.is_closed


async def test_application_is_told_that_its_client_left_and_ended_when_it_writes_to_none(autojump_clock):
    class Broken(Scripted):
        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            raise trio.BrokenResourceError

    ended = list[str]()

    async def stay(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        assert [(await receive())["type"] for _ in range(2)] == ["http.disconnect"] * 2
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        except trio.Cancelled:
            ended.append("cancelled")
            raise

    await serve(Broken([GET], leaves=True), stay)
    assert ended == ["cancelled"]


async def test_server_that_finishes_answers_what_runs_and_takes_no_more(autojump_clock):
    async def slow(scope: Any, receive: Any) -> bytes:
        await trio.sleep(5)
        return b"late"

    server = HttpServer(app(slow), logging.getLogger("test"), header_s=math.inf)
    running, idle = Scripted([GET, GET]), Scripted([b"GET / HT"])
    async with trio.open_nursery() as nursery:
        for stream in (running, idle):
            nursery.start_soon(run, server, stream)
        await trio.sleep(1)
        server.finish()
        await trio.testing.wait_all_tasks_blocked()
        assert idle.is_closed
    assert running.sent.count(b"late") == 1
    assert running.is_closed
