"""Whatever a stranger sends costs that stranger's connection: the listener goes on."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import h11
import pytest
import trio

from garlicfarm.admin.http11 import HttpServer
from garlicfarm.client.trust import client_tls
from garlicfarm.credentials.login_attempts import LoginAttempts
from garlicfarm.errors import UnreachableError
from garlicfarm.http.digest import ChallengeCache
from garlicfarm.logs import EventLogger
from tests.admin.fake_node import PASSWORDS, FakeNode
from tests.running import wait_until

GET = b"GET /v1/node HTTP/1.1\r\nHost: x\r\n"
HANG_S = 240
"""A test that waits for longer fails: no deadline but the one that it sets could cut the connection."""


@pytest.fixture(autouse=True)
def no_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has the deadlines alone that a test sets, and its log's clock stands still."""
    for name in ("HANDSHAKE_S", "HEADER_S", "IDLE_S", "SEND_S"):
        monkeypatch.setattr(f"garlicfarm.admin.server.{name}", math.inf)
    monkeypatch.setattr("garlicfarm.admin.requests.BODY_DEADLINE_S", math.inf)
    monkeypatch.setattr(
        "garlicfarm.admin.server.EventLogger", lambda logger, clock: EventLogger(logger, clock=lambda: 0.0)
    )


@asynccontextmanager
async def plain(url: str, source: str = "127.0.0.1") -> AsyncIterator[trio.SocketStream]:
    parts = urlsplit(url)
    stream = await trio.open_tcp_stream(parts.hostname or "", parts.port or 0, local_address=source)
    try:
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


@asynccontextmanager
async def secured(
    node: FakeNode, url: str, source: str = "127.0.0.1"
) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
    async with plain(url, source) as stream:
        tls = trio.SSLStream(stream, client_tls(pin=node.pin, ca=None), https_compatible=True)
        await tls.do_handshake()
        yield tls


async def rest(stream: trio.abc.ReceiveStream) -> bytes:
    """What still comes until the other side is gone."""
    received = b""
    with trio.fail_after(HANG_S):
        try:
            async for piece in stream:
                received += piece
        except trio.BrokenResourceError:
            pass
    return received


def authorization(answer: bytes, user: str, method: str, target: str) -> bytes:
    """The Authorization line that the challenges in ``answer`` ask for."""
    lines = answer.decode().split("\r\n")
    challenges = [line.partition(": ")[2] for line in lines if line.lower().startswith("www-authenticate")]
    cache = ChallengeCache()
    cache.learn(("", "", user), challenges)
    credentials = cache.authorization(
        ("", "", user), method=method, target=target, password=PASSWORDS[user][1], cnonce="c"
    )
    assert credentials is not None
    return f"Authorization: {credentials.header}\r\n".encode()


async def log_in(node: FakeNode, url: str, method: str, target: str) -> bytes:
    async with secured(node, url) as stream:
        await stream.send_all(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return authorization(await rest(stream), "paul", method, target)


def half_a_post(target: str, credentials: bytes) -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n".encode()
    return head + credentials + b"\r\nhalf"


async def still_serves(node: FakeNode, url: str) -> bool:
    async with node.client(url) as client:
        return bool(await client.node())


async def test_plain_text_on_the_tls_port_is_cut(node, url, caplog):
    caplog.set_level(logging.INFO)
    for _ in range(20):
        async with plain(url) as stream:
            await stream.send_all(GET + b"\r\n")
            assert b"HTTP" not in await rest(stream)
    assert [record for record in caplog.records if record.name.startswith("garlicfarm")] == []
    assert await still_serves(node, url)


async def test_handshake_that_stops_is_cut(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("garlicfarm.admin.server.HANDSHAKE_S", 1.0)  # for who is served after it, too
    async with node.running() as url, plain(url) as stream:
        await stream.send_all(b"\x16\x03\x01\x02\x00\x01")
        assert await rest(stream) == b""
        assert await still_serves(node, url)


@pytest.mark.parametrize(
    "header",
    [
        b"\x00\xff\xfe garbage\r\n\r\n",
        b"GET /v1/node\r\n\r\n",
        b"GET /v1/node HTTP/1.1\r\n\r\n",
        GET + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n",
        GET + b"Content-Length: -1\r\n\r\n",
        GET + b"X: " + b"x" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 200_000,
    ],
    ids=["noise", "no-version", "no-host", "two-lengths", "negative-length", "huge-header", "huge-target"],
)
async def test_what_is_not_http_gets_a_4xx_and_a_close(node: FakeNode, url: str, header: bytes) -> None:
    async with secured(node, url) as stream:
        try:
            await stream.send_all(header)
        except trio.BrokenResourceError:
            assert len(header) > 100_000, "only who sends more than is read may find the door shut"
        answer = await rest(stream)
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert answer or len(header) > 100_000
    assert node.requests == 0
    assert await still_serves(node, url)


async def test_header_that_trickles_is_cut_however_busy(node, monkeypatch):
    monkeypatch.setattr("garlicfarm.admin.server.HEADER_S", 1.0)

    async def trickle(stream: trio.abc.SendStream) -> None:
        for byte in GET * 100:
            await stream.send_all(bytes([byte]))
            await trio.sleep(0.02)

    async with node.running() as url, secured(node, url) as stream:
        with trio.fail_after(HANG_S), pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
            await trickle(stream)
        assert node.requests == 0
        assert await still_serves(node, url)


async def test_connection_on_which_nothing_moves_is_cut_while_its_body_is_awaited(node, url, monkeypatch):
    monkeypatch.setattr("garlicfarm.admin.server.IDLE_S", 1.0)
    target = "/v1/farms/farm/log"
    credentials = await log_in(node, url, "POST", target)
    async with secured(node, url) as stream:
        await stream.send_all(half_a_post(target, credentials))
        assert await rest(stream) == b""
    assert node.farm.log == []
    assert await still_serves(node, url)


async def test_body_that_stops_is_answered_as_too_slow(node, url, monkeypatch):
    monkeypatch.setattr("garlicfarm.admin.requests.BODY_DEADLINE_S", 0.1)
    target = "/v1/farms/farm/log"
    credentials = await log_in(node, url, "POST", target)
    async with secured(node, url) as stream:
        await stream.send_all(half_a_post(target, credentials))
        assert (await rest(stream)).startswith(b"HTTP/1.1 408")
    assert node.farm.log == []


async def test_client_that_does_not_read_is_cut_and_holds_up_no_shutdown(node, monkeypatch):
    monkeypatch.setattr("garlicfarm.admin.server.GRACE_S", 0.3)
    node.farm.snapshot = bytes(64 << 20)
    target = "/v1/farms/farm/state"
    with trio.fail_after(HANG_S):
        async with AsyncExitStack() as stack, node.running() as url:
            credentials = await log_in(node, url, "GET", target)
            stream = await stack.enter_async_context(secured(node, url))
            await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: x\r\n".encode() + credentials + b"\r\n")
            await wait_until(lambda: node.largest_piece == 256 << 10)
            assert await still_serves(node, url)


async def test_client_that_does_not_read_is_cut_in_time(node, url, monkeypatch):
    monkeypatch.setattr("garlicfarm.admin.server.SEND_S", 0.3)
    node.farm.snapshot = bytes(64 << 20)
    target = "/v1/farms/farm/state"
    credentials = await log_in(node, url, "GET", target)
    async with secured(node, url) as stream:
        await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: x\r\n".encode() + credentials + b"\r\n")
        await wait_until(lambda: node.largest_piece == 256 << 10)
        await wait_until(lambda: not node.running_requests)
        assert len(await rest(stream)) < len(node.farm.snapshot)
    assert await still_serves(node, url)


async def test_defect_in_the_server_itself_costs_one_connection_and_quotes_nobody(
    node: FakeNode, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def stumble(self: HttpServer, wire: object, request: h11.Request, scope: object) -> bool:
        raise ValueError(request.target)

    with monkeypatch.context() as patch:
        patch.setattr(HttpServer, "_answer", stumble)
        for _ in range(20):
            async with secured(node, url) as stream:
                await stream.send_all(b"GET /secret HTTP/1.1\r\nHost: x\r\n\r\n")
                assert await rest(stream) == b""
    assert await still_serves(node, url)
    lines = [record for record in caplog.records if record.name == "garlicfarm.admin"]
    assert [line.getMessage() for line in lines] == ["connection-failed"], "one, as long as no time passes"
    assert "secret" not in caplog.text


async def test_http2_by_prior_knowledge_is_answered_in_http1_that_it_is_not_spoken(node, url):
    settings = b"\x00\x00\x00\x04\x00" + bytes(4)
    async with secured(node, url) as stream:
        await stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        answer = await rest(stream)
    assert answer.startswith(b"HTTP/1.1 505 ")
    assert b"\r\n\r\n" in answer
    assert answer.endswith(b"\r\n\r\n"), "no frame follows"
    assert node.requests == 0
    assert await still_serves(node, url)


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
async def test_upgrade_is_not_followed_and_the_request_answered(node, url, protocol):
    upgrade = f"Upgrade: {protocol}\r\nConnection: close, Upgrade, HTTP2-Settings\r\n".encode()
    more = b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\nSec-WebSocket-Version: 13\r\n"
    key = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    async with secured(node, url) as stream:
        await stream.send_all(GET + upgrade + more + key)
        assert (await rest(stream)).startswith(b"HTTP/1.1 401 ")


async def wrong(node: FakeNode, url: str, user: str = "paul", source: str = "127.0.0.1") -> bytes:
    """A request with a wrong password, as bytes; the challenge is asked for."""
    async with secured(node, url, source) as stream:
        await stream.send_all(GET + b"Connection: close\r\n\r\n")
        challenge = await rest(stream)
    return GET + authorization(challenge, user, "GET", "/v1/node").replace(b'response="', b'response="0')


async def test_tries_of_a_password_are_judged_one_at_a_time_also_by_who_hangs_up(node, url, monkeypatch):
    looked_up = []
    lookup = node.users.lookup

    def counted(name: str) -> Mapping[str, Sequence[str]]:
        looked_up.append(name)
        return lookup(name)

    monkeypatch.setattr("garlicfarm.credentials.login_attempts._FIRST_DELAY_S", 1000.0)
    monkeypatch.setattr("garlicfarm.admin.access.LoginAttempts", partial(LoginAttempts, 1000.0))
    monkeypatch.setattr(node.users, "lookup", counted)
    async with node.running() as url:
        guess = await wrong(node, url)
        async with secured(node, url) as stream:
            await stream.send_all(guess + b"\r\n")
            await wait_until(lambda: looked_up)
        for _ in range(3):
            async with secured(node, url) as stream:
                await stream.send_all((guess + b"\r\n") * 20)
                answers = b""
                while answers.count(b"HTTP/1.1 ") < 20:
                    answers += (part := await stream.receive_some())
                    assert part, answers
            assert answers.count(b"HTTP/1.1 429 ") == 20
            wait_s = re.search(rb"\r\nretry-after: (\d+)\r\n", answers.lower())
            assert wait_s is not None
            assert 0 < int(wait_s[1]) <= 1000  # less on a machine that does much else beside
        assert looked_up == ["paul"]
        with pytest.raises(UnreachableError, match="not checked"):
            async with node.client(url, user="paul") as client:
                await client.node()
        async with node.client(url, user="rita") as client:
            await client.node()
        elsewhere = await wrong(node, url, source="127.0.0.66")
        async with secured(node, url, source="127.0.0.66") as stream:
            await stream.send_all(elsewhere.replace(b'response="0', b'response="') + b"\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


async def knock(node: FakeNode, url: str) -> bytes:
    async with secured(node, url) as stream:
        await stream.send_all(GET + b"Connection: close\r\n\r\n")
        return await rest(stream)


async def test_flood_of_connections_keeps_nobody_out_and_healthz_answers(node, monkeypatch):
    monkeypatch.setattr("garlicfarm.admin.server.MAX_CONNECTIONS", 16)
    monkeypatch.setattr("garlicfarm.admin.server.PER_ADDRESS", 12)
    async with node.running() as url, AsyncExitStack() as flood:
        for number in range(30):
            await flood.enter_async_context(plain(url, f"127.0.0.{66 + number % 2}"))
        for number in range(30):
            stream = await flood.enter_async_context(secured(node, url, f"127.0.0.{66 + number % 2}"))
            await stream.send_all(b"GET ")
        for number in range(25):
            async with secured(node, url, f"127.0.0.{70 + number % 2}") as stream:
                await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert (await rest(stream)).startswith(b"HTTP/1.1 200 ")
            assert await still_serves(node, url)


async def test_connection_that_is_logged_in_is_not_cut_for_strangers(node, monkeypatch):
    monkeypatch.setattr("garlicfarm.admin.server.MAX_CONNECTIONS", 4)
    async with node.running() as url, AsyncExitStack() as flood:
        credentials = await log_in(node, url, "GET", "/v1/node")
        async with secured(node, url) as stream:
            await stream.send_all(GET + credentials + b"\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
            for _ in range(20):
                await flood.enter_async_context(secured(node, url))
            await stream.send_all(GET + b"Connection: close\r\n\r\n")
            assert b"HTTP/1.1 401 " in await rest(stream)


async def test_connections_of_one_user_are_bounded_and_the_oldest_makes_room(node, monkeypatch):
    monkeypatch.setattr("garlicfarm.admin.server.PER_USER", 2)
    async with node.running() as url, AsyncExitStack() as stack:
        streams = []
        for _ in range(3):
            credentials = await log_in(node, url, "GET", "/v1/node")
            stream = await stack.enter_async_context(secured(node, url))
            await stream.send_all(GET + credentials + b"\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
            streams.append(stream)
        await rest(streams[0])
        await streams[2].send_all(GET + b"Connection: close\r\n\r\n")
        assert b"HTTP/1.1 401 " in await rest(streams[2])


async def test_handshakes_of_an_address_beyond_its_rate_are_refused(node, monkeypatch):
    monkeypatch.setattr("garlicfarm.net.admission.BURST", 2)
    monkeypatch.setattr("garlicfarm.net.admission.PER_SECOND", 0.0)
    async with node.running() as url:
        for _ in range(2):
            async with secured(node, url, "127.0.0.66"):
                pass
        with pytest.raises(trio.BrokenResourceError):
            async with secured(node, url, "127.0.0.66"):
                pass
        async with secured(node, url):
            pass


async def test_request_that_runs_at_the_shutdown_is_answered(node: FakeNode) -> None:
    node.farm.snapshot = bytes(8 << 20)
    states = []

    async def read(url: str) -> None:
        async with node.client(url) as client:
            states.append(await client.state("farm"))

    async with trio.open_nursery() as nursery, node.running() as url:
        nursery.start_soon(read, url)
        await wait_until(lambda: node.largest_piece == 256 << 10)
    assert len(states[0][1]) == 8 << 20
