"""HTTP clients of a destination, and their real service on loopback."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest
import trio
import trio.testing

from garlicfarm_plugin_i2cp.streaming.http_inlet import HEAD_TIMEOUT_S
from garlicfarm_plugin_i2cp.streaming.http_requests import HttpRules, PostLimits
from garlicfarm_plugin_i2cp.streaming.packet import CLOSE
from tests.publishers.streaming.stream_client import stream_network
from tests.publishers.streaming.test_stream_server import echo, service, settled
from tests.running import wait_until

pytestmark = pytest.mark.timeout(60)

HEADERS = HttpRules(has_client_headers=True)
GET = b"GET / HTTP/1.1\r\nHost: x.i2p\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x.i2p\r\nContent-Length: 4\r\n\r\nbody"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Web:
    """A service that answers each head, until its client ends. ``got``: what it was sent, by connection."""

    def __init__(self) -> None:
        self.got: list[bytearray] = []

    async def __call__(self, stream: trio.SocketStream) -> None:
        got = bytearray()
        self.got.append(got)
        answered = 0
        with suppress(trio.BrokenResourceError):  # the network ends
            async for data in stream:
                got += data
                while answered < got.count(b"\r\n\r\n"):
                    answered += 1
                    await stream.send_all(ANSWER)
        await stream.aclose()


async def test_requests_get_the_headers_of_their_client_all_on_one_connection() -> None:
    async with service(web := Web(), http=HEADERS) as network:
        client = network.open(b"GET / HTTP/1.1\r\nX-I2P-Des")
        await client.send(b"tHash: forged\r\n\r\n" + GET)
        await client.until(lambda: client.received == 2 * ANSWER)
        await client.send(GET)
        await client.until(lambda: client.received == 3 * ANSWER)
        client.close()
        await client.until(lambda: client.is_closed)
        await settled(network)
        assert not client.is_reset
        (got,) = web.got
        assert b"forged" not in got
        assert got.count(b"\r\nX-I2P-DestB32: ") == 3


async def test_client_that_asks_nothing_costs_no_connection() -> None:
    async with service(web := Web(), http=HEADERS) as network:
        silent, ended = network.open(b"GET / HTTP/1.1\r\n"), network.open(b"", CLOSE)
        await ended.until(lambda: ended.is_closed)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (web.got, ended.received, silent.is_closed) == ([], b"", False)


@pytest.mark.parametrize(
    ("sent", "answer", "cause"),
    [
        (b"SSH-2.0\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n", "not an HTTP request"),
        (
            b"GET / HTTP/1.1\r\nVia: x\r\n\r\n",
            b"HTTP/1.1 403 Forbidden\r\n",
            "HTTP request through an in-proxy",
        ),
    ],
)
async def test_first_request_that_is_refused_is_answered_at_no_cost_to_the_service(
    sent: bytes, answer: bytes, cause: str
) -> None:
    async with service(web := Web(), http=HttpRules(rejects_in_proxies=True)) as network:
        client, other = network.open(sent), network.open(GET)
        await client.until(lambda: client.is_closed)
        assert client.received.startswith(answer)
        assert client.received.endswith(f"\r\nConnection: close\r\n\r\n{cause}\n".encode())
        client.close()
        await other.until(lambda: other.received == ANSWER)
        await wait_until(lambda: network.server.open_streams == 1)
        assert (client.is_reset, other.is_closed) == (False, False)
        assert network.server.refused == {cause: 1}
        assert network.server.problem == ""
        assert web.got == [GET]


async def test_later_request_that_is_refused_is_answered_behind_the_answers_before_it() -> None:
    rules = HttpRules(posts=PostLimits(per_client=1, total=0, check_s=60, ban_s=60))
    async with service(web := Web(), http=rules) as network:
        client = network.open(GET + POST + POST + GET)
        await client.until(lambda: client.is_closed)
        assert client.received.startswith(2 * ANSWER + b"HTTP/1.1 429 Too Many Requests\r\n")
        client.close()
        await settled(network)
        assert not client.is_reset
        assert web.got == [GET + POST]
        assert network.server.refused == {"too many POSTs": 1}


@pytest.mark.parametrize("end", [b"\n\r\n", b""])
async def test_request_that_is_broken_off_or_garbled_is_reset_on_both_sides(end: bytes) -> None:
    seen: list[object] = []

    async def watch(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                async for data in stream:
                    seen.append(bytes(data))
            except trio.BrokenResourceError:
                seen.append("reset")

    async with service(watch, http=HEADERS) as network:
        client = network.open(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        await wait_until(lambda: seen)
        client.send_next(b"5\r\nhel" + end, 0 if end else CLOSE)
        await client.until(lambda: client.is_reset)
        await wait_until(lambda: seen[-1] == "reset")
        assert network.server.refused.total() == 1


@pytest.mark.parametrize("first", [b"", GET])
async def test_head_that_is_not_complete_in_time_is_answered(
    first: bytes, mock_clock: trio.testing.MockClock
) -> None:
    async with service(Web(), http=HEADERS) as network:
        client = network.open(first)
        await client.until(lambda: client.received == ANSWER or not first)
        await trio.testing.wait_all_tasks_blocked(0.05)
        mock_clock.jump(HEAD_TIMEOUT_S - 1)  # which does not count between two requests
        client.send_next(b"GET /")
        await trio.testing.wait_all_tasks_blocked(0.05)
        mock_clock.jump(2)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert client.is_closed is not bool(first)
        mock_clock.jump(HEAD_TIMEOUT_S)
        await client.until(lambda: client.is_closed)
        assert b"HTTP/1.1 408 Request Timeout\r\n" in client.received
        assert network.server.refused == {"HTTP head not complete within 30 s": 1}


async def test_refused_client_that_never_ends_is_reset_in_time(mock_clock: trio.testing.MockClock) -> None:
    async with service(Web(), http=HEADERS) as network:
        client = network.open(b"SSH-2.0\r\n\r\n")
        await client.until(lambda: client.is_closed)
        await client.send(bytes(100_000))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert network.server.open_streams == 1
        mock_clock.jump(31)
        await client.until(lambda: client.is_reset)
        await trio.testing.wait_all_tasks_blocked()
        assert (network.server.open_streams, network.server.buffered) == (0, 0)


async def test_web_socket_passes_both_ways() -> None:
    agrees = trio.Event()

    async def agree(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await agrees.wait()
        await stream.send_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        await echo(stream)

    async with service(agree, http=HEADERS) as network:
        upgrade = b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        client = network.open(upgrade + b"\x81\n\n")
        await trio.testing.wait_all_tasks_blocked(0.05)
        agrees.set()
        await client.until(lambda: client.received.endswith(b"\x81\n\n"))
        await client.send(b"no HTTP\r\n\r\n")
        await client.until(lambda: client.received.endswith(b"\r\n\r\n\x81\n\nno HTTP\r\n\r\n"))
        client.close()
        await client.until(lambda: client.is_closed)
        await settled(network)
        assert not network.server.refused


async def test_service_that_closes_before_it_answers_a_web_socket_ends_the_stream() -> None:
    async def close(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.aclose()

    async with service(close, http=HEADERS) as network:
        client = network.open(b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        await client.until(lambda: client.is_closed)
        client.close()
        await settled(network)
        assert not client.is_reset


async def test_only_streams_to_the_targets_are_http_and_other_ports_have_their_own() -> None:
    async with trio.open_nursery() as nursery:
        web, raw = Web(), Web()
        ports = []
        for handler in (web, raw):
            (listener,) = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
            ports.append(listener.socket.getsockname()[1])
        async with stream_network(ports[0], ports={6667: ports[1]}, http=HEADERS) as network:
            for port in (0, 80, 6667):
                client = network.client()
                client.port = port
                client.open(GET)
                await client.until(lambda: client.received == ANSWER)  # noqa: B023
        async with stream_network(ports={6667: ports[1]}) as network:
            client = network.open(GET)
            await client.until(lambda: client.is_reset)
            assert network.server.refused["no service at that port"] == 1
        nursery.cancel_scope.cancel()
    assert [b"X-I2P-DestB32" in got for got in web.got] == [True, True]
    assert raw.got == [GET]
