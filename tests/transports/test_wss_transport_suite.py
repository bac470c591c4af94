"""The transport ``wss`` keeps the contract of transports, through a real nginx."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Request

from garlicfarm.errors import ConfigError, TransportError
from garlicfarm.lab.processes import free_ports
from garlicfarm.plugins import make_transport
from garlicfarm.testing.transport_suite import TransportSuite
from garlicfarm.transport import Endpoint, Peer, Transport
from garlicfarm_transport_wss import WebSocketStream
from tests.transports.nginx import nginx

PATH = "/in/between"
PROXY: dict[str, str] = {}


@pytest.fixture
def listen_url(tmp_path: Path) -> Iterator[Endpoint]:
    """Where nginx finds the node."""
    (port,) = free_ports(1)
    with nginx(tmp_path / "nginx", {PATH: f"http://127.0.0.1:{port}"}) as (front, pin):
        PROXY.update(port=str(front), pin=pin)
        yield Endpoint("wss", "127.0.0.1", port)


def front(**params: str) -> Endpoint:
    """The endpoint that others dial: nginx."""
    return Endpoint("wss", "127.0.0.1", int(PROXY["port"]), {"path": PATH, "pin": PROXY["pin"], **params})


@pytest.mark.nginx
class TestWssTransport(TransportSuite):
    @pytest.fixture
    def transport(self, tmp_path: Path) -> Transport:
        return make_transport("wss", {}, tmp_path)

    @pytest.fixture
    def listen_url(self, listen_url: Endpoint) -> Endpoint:
        return listen_url

    def dialled(self, bound: Endpoint) -> Endpoint:
        return front()


async def echo(stream: trio.abc.Stream, peer: Peer) -> None:
    assert not peer.address_is_peer
    while data := await stream.receive_some():
        await stream.send_all(data)


@pytest.mark.nginx
async def test_reverse_proxy_is_known_by_its_pin_or_by_a_ca(listen_url, tmp_path, nursery):
    await nursery.start(make_transport("wss", {}, tmp_path).serve, listen_url, echo)
    trusting = make_transport("wss", {"ca": "nginx/nginx.crt"}, tmp_path)
    unpinned = Endpoint("wss", "127.0.0.1", int(PROXY["port"]), {"path": PATH})
    for transport, endpoint in ((trusting, unpinned), (make_transport("wss", {}, tmp_path), front())):
        async with await transport.open_stream(endpoint) as stream:
            await stream.send_all(b"hello")
            assert await stream.receive_some() == b"hello"
    with pytest.raises(TransportError, match=r"TLS failed: .*certificate"):
        await make_transport("wss", {}, tmp_path).open_stream(unpinned)
    with pytest.raises(TransportError, match="shows another certificate"):
        await trusting.open_stream(front(pin="sha256-other"))
    with pytest.raises(TransportError, match=r"answers 404 instead of opening a WebSocket; .*path"):
        await trusting.open_stream(front(path="/elsewhere"))


@pytest.mark.parametrize("host", ["0.0.0.0", "a.example"])
async def test_listener_that_others_could_reach_is_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="behind a reverse proxy"):
        await make_transport("wss", {}, tmp_path).serve(
            Endpoint("wss", host, 27150), echo, task_status=trio.TASK_STATUS_IGNORED
        )


async def test_what_is_no_websocket_is_dropped_with_a_reason(tmp_path, nursery, monkeypatch):
    monkeypatch.setattr("garlicfarm_transport_wss.HANDSHAKE_TIMEOUT_S", 0.2)
    transport, dropped = make_transport("wss", {}, tmp_path), list[str]()
    transport.on_drop = lambda peer, reason: dropped.append(reason)
    bound = await nursery.start(transport.serve, Endpoint("wss", "127.0.0.1", 0), echo)
    for request in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"GET / HT"):
        async with await trio.open_tcp_stream(bound.host, bound.port) as stream:
            await stream.send_all(request)
            with trio.fail_after(240):
                assert await stream.receive_some() == b""
    assert dropped == ["websocket", "websocket", "timeout"]


async def drain(stream: trio.abc.ReceiveStream) -> None:
    while await stream.receive_some():
        pass


def connected(early: bytes = b"") -> tuple[WSConnection, WSConnection]:
    """Client and server after their handshake; ``early``: what came with the server's answer."""
    web, server = WSConnection(ConnectionType.CLIENT), WSConnection(ConnectionType.SERVER)
    server.receive_data(web.send(Request(host="a", target="/")))
    list(server.events())
    web.receive_data(server.send(AcceptConnection()) + early)
    assert isinstance(next(web.events()), AcceptConnection)
    return web, server


@pytest.mark.parametrize(
    ("early", "frames", "outcome"),
    [
        (b"\x82\x02hi\x82\x01!", b"", b"hi!"),  # it came with the handshake's answer
        (b"\x82\x02hi", b"\x82\x01!", b"hi!"),
        (b"", b"\x82\x02hi\x89\x01p\x82\x01!", b"hi!"),  # a ping in between
        (b"", b"\x02\x01h\x80\x01i\x82\x01!", b"hi!"),  # a message of two fragments
        (b"", b"\x82\x02hi\x82\x01!\x88\x02\x03\xe8", b"hi!"),  # and closed
        (b"", b"\x81\x02hi", trio.BrokenResourceError),  # text
        (b"", b"\xf2\x02hi", trio.BrokenResourceError),  # reserved bits
        (b"", b"\x82\x05hi", trio.BrokenResourceError),  # half a frame
        (b"", b"", trio.BrokenResourceError),  # an end without a close
    ],
)
async def test_frames_are_bytes_or_break_the_stream(early, frames, outcome):
    web, _ = connected(early)
    ours, theirs = trio.testing.memory_stream_pair()
    stream = WebSocketStream(ours, web)
    await theirs.send_all(frames)
    await theirs.send_eof()
    if isinstance(outcome, bytes):
        received = b""
        while len(received) < len(outcome):
            received += await stream.receive_some(1)
        assert received == outcome
    else:
        with pytest.raises(outcome):
            await drain(stream)
    await trio.aclose_forcefully(stream)
    with pytest.raises(trio.ClosedResourceError):
        await stream.send_all(b"x")


def test_ca_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(ConfigError, match=name):
            make_transport("wss", {"ca": name}, tmp_path)


async def test_server_that_closes_waits_for_the_closing_frame_of_its_peer() -> None:
    """Or a proxy between the two could reset the peer's connection, and lose our last bytes."""
    ours, theirs = trio.testing.memory_stream_pair()
    web, server = connected()
    stream, is_finished = WebSocketStream(ours, server), False

    async def finish() -> None:
        nonlocal is_finished
        await stream.finish()
        is_finished = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(finish)
        web.receive_data(bytes(await theirs.receive_some(100)))
        (closing,) = web.events()
        assert isinstance(closing, CloseConnection)
        await theirs.send_all(b"\x82\x80\0\0\0\0")  # a frame that was on its way
        await trio.testing.wait_all_tasks_blocked()
        assert not is_finished
        await theirs.send_all(web.send(closing.response()))
    assert is_finished
