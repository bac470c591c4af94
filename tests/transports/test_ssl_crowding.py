"""Many, slow and vanishing clients of the transport ``ssl``: the others do not notice."""

from __future__ import annotations

import gc
import resource
import socket
import ssl
import struct
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import garlicfarm_transport_ssl
from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.errors import TransportError
from garlicfarm.net.admission import Admission
from garlicfarm.net.tls_stream import TlsStream
from garlicfarm.transport import AdmissionSlot, Peer
from garlicfarm_transport_ssl import SslConfig, SslTransport
from tests.running import wait_until
from tests.transports.test_ssl_security import assert_echoes, serving


class Counting(SslTransport):
    """Counts its drops, and lets a test wait for them."""

    def __init__(self, directory: Path) -> None:
        make_certificate(directory / "node.crt", directory / "node.key", "127.0.0.1")
        super().__init__(SslConfig(certificate="node.crt", private_key="node.key"), directory)
        self.drops, self._changed = list[str](), trio.Event()
        self.on_drop = self._note
        self.accepted, self.ended = 0, 0

    def limited(self, **limits: Any) -> Admission:
        """Hold connections to these limits; those that are cut count among the drops."""
        admission = Admission(**limits)

        @contextmanager
        def admit(peer: Peer) -> Iterator[AdmissionSlot]:
            with admission.admit(peer, lambda peer: self._note(peer, "cut")) as slot:
                self.accepted += 1
                yield slot
            self.ended += 1

        self.admit = admit
        return admission

    def _note(self, peer: Peer, reason: str) -> None:
        self.drops.append(reason)
        self._changed.set()
        self._changed = trio.Event()

    async def dropped(self, count: int) -> list[str]:
        while len(self.drops) < count:
            await self._changed.wait()
        return self.drops


async def send_for_ever(stream: trio.abc.SendStream) -> None:
    while True:
        await stream.send_all(b"x" * 1000)


async def test_silent_client_is_cut_at_the_handshake_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(garlicfarm_transport_ssl, "HANDSHAKE_TIMEOUT_S", 0.2)
    transport = Counting(tmp_path)
    async with serving(transport) as bound:
        async with await trio.open_tcp_stream(bound.host, bound.port) as silent:
            assert await silent.receive_some() == b""
        assert await transport.dropped(1) == ["timeout"]
        await assert_echoes(transport, bound)


async def test_silent_clients_of_one_address_beyond_its_limit_make_room_and_places_come_free(tmp_path):
    transport = Counting(tmp_path)
    admission = transport.limited(per_address=3)
    async with serving(transport) as bound:
        silent = []
        for number in range(5):
            silent.append(await trio.open_tcp_stream(bound.host, bound.port))
            await wait_until(lambda: transport.accepted > number)  # noqa: B023 - it is over when that changes
        assert transport.drops == ["cut", "cut"]
        assert [await stream.receive_some() for stream in silent[:2]] == [b"", b""]  # the oldest
        await assert_echoes(transport, bound)
        assert transport.drops == ["cut", "cut", "cut"]
        for stream in silent:
            await stream.aclose()
        await wait_until(lambda: not admission.taken)


async def test_silent_clients_of_many_addresses_keep_nobody_out(tmp_path: Path) -> None:
    transport = Counting(tmp_path)
    admission = transport.limited(total=4)  # three for strangers
    async with serving(transport) as bound:
        silent = []
        for number in range(1, 4):
            stream = await trio.open_tcp_stream(bound.host, bound.port, local_address=f"127.0.1.{number}")
            silent.append(stream)
            await wait_until(lambda: admission.taken == number)  # noqa: B023
        await assert_echoes(transport, bound)
        assert transport.drops == ["cut"]
        assert await silent[0].receive_some() == b""  # the oldest
        for stream in silent:
            await stream.aclose()
        await wait_until(lambda: not admission.taken)


async def test_handshakes_beyond_the_rate_of_their_address_cost_no_tls_and_silence_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garlicfarm.net.admission.BURST", 3)
    monkeypatch.setattr("garlicfarm.net.admission.PER_SECOND", 0.0)
    transport = Counting(tmp_path)
    admission = transport.limited()
    async with serving(transport) as bound, AsyncExitStack() as stack:
        for number in range(10):
            await stack.enter_async_context(await trio.open_tcp_stream(bound.host, bound.port))
            await wait_until(lambda: admission.taken == number + 1)  # noqa: B023
        for _ in range(3):
            await assert_echoes(transport, bound)
        for _ in range(5):
            with pytest.raises(TransportError, match="TLS failed"):
                await transport.open_stream(bound)
        assert transport.drops == ["too-often"] * 5


async def test_nothing_is_kept_of_a_wave_of_half_open_clients(tmp_path, monkeypatch):
    monkeypatch.setattr(garlicfarm_transport_ssl, "HANDSHAKE_TIMEOUT_S", 0.2)
    transport = Counting(tmp_path)
    transport.limited(per_address=30)

    def held() -> int:
        kinds = (TlsStream, ssl.SSLObject, AdmissionSlot, Peer)
        return sum(isinstance(each, kinds) for each in gc.get_objects())

    async with serving(transport) as bound:
        await assert_echoes(transport, bound)
        await wait_until(lambda: transport.ended == 1)
        gc.collect()
        before = held()
        gc.disable()  # what is in a cycle would wait for it, with all that OpenSSL holds beside
        try:
            for wave, opening in enumerate((b"", b"\x16\x03\x01\x02\x00\x01", b"noise"), 1):
                clients = [socket.create_connection((bound.host, bound.port)) for _ in range(50)]
                for client in clients:
                    client.sendall(opening)
                await wait_until(lambda: transport.ended == 1 + 50 * wave)  # noqa: B023
                for client in clients:
                    client.close()
            if (3, 12) <= sys.version_info < (3, 14):  # python/cpython#129280: cycles of @contextmanager
                gc.collect()
            assert held() == before
        finally:
            gc.enable()


async def test_clients_that_reset_at_once_cost_their_own_connections(tmp_path: Path) -> None:
    transport = Counting(tmp_path)
    async with serving(transport) as bound:
        for _ in range(20):
            with socket.socket() as raw:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raw.connect((bound.host, bound.port))
        await transport.dropped(20)
        await assert_echoes(transport, bound)
    assert set(transport.drops) <= {"tls", "gone"}


async def test_accept_without_free_descriptors_is_survived(tmp_path, caplog):
    transport = Counting(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(transport) as bound:
        await assert_echoes(transport, bound)
        raw = trio.socket.socket()
        resource.setrlimit(resource.RLIMIT_NOFILE, (raw.fileno(), hard))
        try:
            await raw.connect((bound.host, bound.port))
            while not any("Too many open files" in str(vars(record)) for record in caplog.records):
                await trio.lowlevel.checkpoint()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        raw.close()
        await assert_echoes(transport, bound)


async def test_client_that_never_closes_is_cut_after_the_handler_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr("garlicfarm.net.tcp.CLOSE_TIMEOUT_S", 0.2)
    transport = Counting(tmp_path)

    async def done(stream: trio.abc.Stream, peer: Peer) -> None:
        await stream.send_all(b"that is all")

    async with serving(transport, done) as bound, await transport.open_stream(bound) as stream:
        assert await stream.receive_some() == b"that is all"
        assert await stream.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError):
            await send_for_ever(stream)  # it has stopped listening, too


async def test_both_sides_send_small_writes_at_once(tmp_path: Path) -> None:
    transport = Counting(tmp_path)
    seen, options = trio.open_memory_channel[int](1)

    async def note(stream: trio.abc.Stream, peer: Peer) -> None:
        assert isinstance(stream, TlsStream)
        await seen.send(stream.transport_stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async with serving(transport, note) as bound, await transport.open_stream(bound) as stream:
        assert stream.transport_stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert await options.receive()
