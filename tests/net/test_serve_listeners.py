"""Accepting connections while descriptors run out."""

from __future__ import annotations

import errno
import logging
import os
from itertools import pairwise

import pytest
import trio

from garlicfarm import descriptors
from garlicfarm.logs import EventLogger
from garlicfarm.net import tcp


async def listening() -> trio.SocketListener:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    return listener


async def answers(port: int) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        return bytes(await stream.receive_some())


async def greet(stream: trio.SocketStream) -> None:
    await stream.send_all(b"hello")


async def test_connection_with_a_high_number_is_closed_and_later_ones_are_served(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = await listening()
    port = listener.socket.getsockname()[1]
    with trio.fail_after(240):
        await nursery.start(tcp.serve_listeners, greet, [listener])
        with monkeypatch.context() as short, caplog.at_level(logging.WARNING, "garlicfarm.net"):
            short.setattr(tcp, "_log", EventLogger(logging.getLogger("garlicfarm.net")))
            short.setattr(descriptors, "ceiling", lambda: 3)
            assert await answers(port) == b""
        assert await answers(port) == b"hello"
    (record,) = caplog.records
    told = vars(record)["garlicfarm_fields"]
    assert told["event"] == "listener-pauses"
    assert told["listener"] == f"127.0.0.1:{port}"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_listener_without_descriptors_waits_between_two_attempts(
    number: int,
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[float] = []
    served = trio.Event()

    async def accept(self: trio.SocketListener) -> trio.SocketStream:
        await trio.lowlevel.checkpoint()
        attempts.append(trio.current_time())
        if len(attempts) <= 5:
            raise OSError(number, os.strerror(number))
        if len(attempts) > 6:
            await trio.sleep_forever()
        return trio.SocketStream(ours)

    async def handler(stream: trio.SocketStream) -> None:
        served.set()

    ours, theirs = trio.socket.socketpair()
    with theirs:
        listener = await listening()
        monkeypatch.setattr(trio.SocketListener, "accept", accept)
        await nursery.start(tcp.serve_listeners, handler, [listener])
        await served.wait()
    pauses = [later - earlier for earlier, later in pairwise(attempts[:6])]
    assert pauses == pytest.approx([tcp.PAUSE_S] * 5)
