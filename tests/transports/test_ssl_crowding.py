"""Many, slow and vanishing clients of the transport ``ssl``: the others do not notice."""

from __future__ import annotations

import resource
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import garlicfarm_transport_ssl
from garlicfarm.certificates import make_certificate
from garlicfarm.transport import Endpoint, Peer
from garlicfarm_transport_ssl import SslConfig, SslTransport


class Counting(SslTransport):
    """Counts its drops, and lets a test wait for them."""

    def __init__(self, directory: Path) -> None:
        make_certificate(directory / "node.crt", directory / "node.key", "127.0.0.1")
        super().__init__(SslConfig(certificate="node.crt", private_key="node.key"), directory)
        self.drops, self._changed = list[str](), trio.Event()
        self.on_drop = self._note

    def _note(self, peer: Peer, reason: str) -> None:
        self.drops.append(reason)
        self._changed.set()
        self._changed = trio.Event()

    async def dropped(self, count: int) -> list[str]:
        while len(self.drops) < count:
            await self._changed.wait()
        return self.drops


@asynccontextmanager
async def serving(transport: SslTransport) -> AsyncIterator[Endpoint]:
    async def echo(stream: trio.abc.Stream, peer: Peer) -> None:
        async for data in stream:
            await stream.send_all(data)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(transport.serve, Endpoint("ssl", "127.0.0.1", 0), echo)
            nursery.cancel_scope.cancel()


async def assert_served(transport: SslTransport, bound: Endpoint) -> None:
    async with await transport.open_stream(bound) as stream:
        await stream.send_all(b"hello")
        assert await stream.receive_some() == b"hello"


async def send_for_ever(stream: trio.abc.SendStream) -> None:
    while True:
        await stream.send_all(b"x" * 1000)


async def test_silent_client_is_cut_at_the_handshake_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garlicfarm_transport_ssl, "HANDSHAKE_TIMEOUT_S", 0.2)
    transport = Counting(tmp_path)
    async with serving(transport) as bound:
        async with await trio.open_tcp_stream(bound.host, bound.port) as silent:
            assert await silent.receive_some() == b""
        assert await transport.dropped(1) == ["timeout"]
        await assert_served(transport, bound)


async def test_silent_clients_of_one_address_beyond_its_limit_are_cut_at_once_and_places_come_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garlicfarm_transport_ssl, "MAX_PENDING_PER_ADDRESS", 3)
    transport = Counting(tmp_path)
    async with serving(transport) as bound:
        silent = [await trio.open_tcp_stream(bound.host, bound.port) for _ in range(5)]
        assert await transport.dropped(2) == ["full", "full"]
        await silent[0].aclose()
        assert await transport.dropped(3) == ["full", "full", "tls"]
        await assert_served(transport, bound)
        await assert_served(transport, bound)  # those whose handshake is over do not count
        for each in silent:
            await each.aclose()
        await transport.dropped(5)
        assert not transport._pending, "addresses that are gone are forgotten"


async def test_silent_clients_of_many_addresses_keep_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garlicfarm_transport_ssl, "MAX_PENDING", 3)
    transport = Counting(tmp_path)
    async with serving(transport) as bound:
        silent = []
        for number in range(1, 4):
            stream = await trio.open_tcp_stream(bound.host, bound.port, local_address=f"127.0.1.{number}")
            silent.append(stream)
            while len(transport._handshakes) < number:
                await trio.lowlevel.checkpoint()
        await assert_served(transport, bound)
        assert transport.drops == ["full"]
        assert await silent[0].receive_some() == b""  # the oldest
        await assert_served(transport, bound)
        assert transport.drops == ["full"]
        for each in silent:
            await each.aclose()
        await transport.dropped(3)
        assert not transport._pending
        assert not transport._handshakes


async def test_one_address_at_its_limit_leaves_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garlicfarm_transport_ssl, "MAX_PENDING_PER_ADDRESS", 2)
    transport = Counting(tmp_path)
    async with serving(transport) as bound:
        silent = []
        for _ in range(3):
            raw = trio.socket.socket()
            await raw.bind(("127.0.0.2", 0))
            await raw.connect((bound.host, bound.port))
            silent.append(raw)
        assert await transport.dropped(1) == ["full"]
        await assert_served(transport, bound)
        for raw in silent:
            raw.close()


async def test_clients_that_reset_at_once_cost_their_own_connections(tmp_path: Path) -> None:
    transport = Counting(tmp_path)
    async with serving(transport) as bound:
        for _ in range(20):
            with socket.socket() as raw:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raw.connect((bound.host, bound.port))
        await transport.dropped(20)
        await assert_served(transport, bound)
    assert transport.drops == ["tls"] * 20


async def test_accept_without_free_descriptors_is_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transport = Counting(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(transport) as bound:
        await assert_served(transport, bound)
        raw = trio.socket.socket()
        resource.setrlimit(resource.RLIMIT_NOFILE, (raw.fileno(), hard))
        try:
            await raw.connect((bound.host, bound.port))
            while not any("EMFILE" in record.getMessage() for record in caplog.records):
                await trio.lowlevel.checkpoint()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        raw.close()
        await assert_served(transport, bound)


async def test_client_that_never_closes_is_cut_after_the_handler_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garlicfarm_transport_ssl, "CLOSE_TIMEOUT_S", 0.2)
    transport = Counting(tmp_path)

    async def done(stream: trio.abc.Stream, peer: Peer) -> None:
        await stream.send_all(b"that is all")

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            bound = await nursery.start(transport.serve, Endpoint("ssl", "127.0.0.1", 0), done)
            async with await transport.open_stream(bound) as stream:
                assert await stream.receive_some() == b"that is all"
                assert await stream.receive_some() == b""
                with pytest.raises(trio.BrokenResourceError):
                    await send_for_ever(stream)  # it has stopped listening, too
            nursery.cancel_scope.cancel()


async def test_both_sides_send_small_writes_at_once(tmp_path: Path) -> None:
    transport = Counting(tmp_path)
    seen, options = trio.open_memory_channel[int](1)

    async def note(stream: trio.SSLStream[trio.SocketStream], peer: Peer) -> None:
        await seen.send(stream.transport_stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            bound = await nursery.start(transport.serve, Endpoint("ssl", "127.0.0.1", 0), note)
            async with await transport.open_stream(bound) as stream:
                assert stream.transport_stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert await options.receive()
            nursery.cancel_scope.cancel()
