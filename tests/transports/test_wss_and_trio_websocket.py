"""The transport ``wss`` and trio-websocket's client and server understand each other."""

from __future__ import annotations

import os
import ssl
from functools import partial
from pathlib import Path

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket, wrap_client_stream

from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.plugins import make_transport
from garlicfarm.transport import Endpoint, Peer

DATA = os.urandom(300_000)
"""More than a frame holds, and than a socket's buffers."""


async def read(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    while len(data) < len(DATA):
        more = await stream.receive_some()
        assert more, "ended early"
        data += bytes(more)
    return data


async def test_its_client_is_served_and_told_of_the_end(tmp_path: Path, nursery: trio.Nursery) -> None:
    async def answer(stream: trio.abc.Stream, peer: Peer) -> None:
        await stream.send_all(await read(stream))

    listen = Endpoint("wss", "127.0.0.1", 0)
    bound = await nursery.start(make_transport("wss", {}, tmp_path).serve, listen, answer)
    with trio.fail_after(240):
        async with await trio.open_tcp_stream(bound.host, bound.port) as tcp:
            web = await wrap_client_stream(nursery, tcp, "127.0.0.1", "/farm")
            for begin in range(0, len(DATA), 7000):
                await web.send_message(DATA[begin : begin + 7000])
            received = b""
            while len(received) < len(DATA):
                message = await web.get_message()
                assert isinstance(message, bytes)
                received += message
            assert received == DATA
            with pytest.raises(ConnectionClosed) as closed:
                await web.get_message()
            assert closed.value.reason.code == 1000


async def test_its_server_is_dialled_and_told_of_the_end(tmp_path: Path, nursery: trio.Nursery) -> None:
    certificate, key = tmp_path / "front.crt", tmp_path / "front.key"
    pin = make_certificate(certificate, key, "front")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    codes, ended = list[int](), trio.Event()

    async def echo(request: WebSocketRequest) -> None:
        web = await request.accept()
        try:
            while True:
                await web.send_message(await web.get_message())
        except ConnectionClosed as closed:
            codes.append(closed.reason.code)
        ended.set()

    server = await nursery.start(partial(serve_websocket, echo, "127.0.0.1", 0, context))
    endpoint = Endpoint("wss", "127.0.0.1", server.port, {"path": "/farm", "pin": pin})
    with trio.fail_after(240):
        stream = await make_transport("wss", {}, tmp_path).open_stream(endpoint)
        async with stream, trio.open_nursery() as both:
            both.start_soon(stream.send_all, DATA)
            assert await read(stream) == DATA
        await ended.wait()
    assert codes == [1000]
