"""`TransportSuite`: the contract of every transport plugin, as tests that its author subclasses.

    class TestMyTransport(TransportSuite):
        @pytest.fixture
        def transport(self, tmp_path: Path) -> Transport:
            return MyTransport(MyConfig(), tmp_path)

It needs pytest and pytest-trio, uses real sockets and no clock but the deadlines below, and listens on
loopback only. Override the fixtures and hooks if yours is not a TCP transport.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
import trio.testing

from garlicfarm.errors import UnreachableError
from garlicfarm.transport import AdmissionSlot, Endpoint, Peer, Transport

_DEADLINE_S = 120.0
_Handler = Callable[[trio.abc.Stream, Peer], Awaitable[None]]


class _HandlerBug(Exception):
    pass


async def _echo(stream: trio.abc.Stream, peer: Peer) -> None:
    try:
        while data := await stream.receive_some():
            await stream.send_all(data)
    except trio.BrokenResourceError:
        pass  # a handler has its own error boundary


async def _receive_exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        data = await stream.receive_some()
        assert data, f"the stream ended after {len(received)} of {size} bytes"
        received += data
    assert len(received) == size
    return bytes(received)


async def _ends(stream: trio.abc.ReceiveStream) -> bool:
    """True once the other side's end is seen, as an end or as a broken stream."""
    try:
        return not await stream.receive_some()
    except trio.BrokenResourceError:
        return True


def _open_files() -> int:
    """Descriptors open in this process; 0 where the system does not tell."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


async def _wait_for_open_files(at_most: int) -> None:
    for _ in range(500):  # gives closing streams a moment
        if _open_files() <= at_most:
            return
        await trio.sleep(0.01)
    assert _open_files() <= at_most, "something was left open"


class TransportSuite:
    """Subclass it, supply the fixture ``transport``."""

    @pytest.fixture
    def transport(self) -> Transport:
        """The transport that listens (and, unless ``client`` says otherwise, dials)."""
        raise NotImplementedError("override the fixture `transport`")

    @pytest.fixture
    def client(self, transport: Transport) -> Transport:
        """The transport that dials."""
        return transport

    @pytest.fixture
    def listen_url(self, transport: Transport) -> Endpoint:
        """Where to listen; port 0 is any free port."""
        return Endpoint(transport.scheme, "127.0.0.1", 0)

    def dialled(self, bound: Endpoint) -> Endpoint:
        """The endpoint to dial for a listener that reported ``bound``."""
        return bound

    async def send_garbage(self, bound: Endpoint) -> trio.abc.Stream:
        """Connect below the transport, send bytes that it cannot understand, stay connected.

        A transport that cannot be spoken to in this way calls ``pytest.skip``.
        """
        stream = await trio.open_tcp_stream(bound.host, bound.port)
        await stream.send_all(b"\x00garbage\xff" * 100)
        return stream

    @asynccontextmanager
    async def serving(
        self, transport: Transport, url: Endpoint, handler: _Handler
    ) -> AsyncIterator[Endpoint]:
        """Run ``serve`` for the body, under the suite's deadline; yields the bound endpoint."""
        with trio.fail_after(_DEADLINE_S):
            async with trio.open_nursery() as nursery:
                bound: Endpoint = await nursery.start(transport.serve, url, handler)
                yield bound
                nursery.cancel_scope.cancel()

    @pytest.mark.trio
    async def test_streams_opened_and_accepted_keep_trios_stream_contract(
        self, transport: Transport, client: Transport, listen_url: Endpoint
    ) -> None:
        accepted, streams = trio.open_memory_channel[trio.abc.Stream](0)

        async def hand_over(stream: trio.abc.Stream, peer: Peer) -> None:
            await accepted.send(stream)
            await trio.sleep_forever()  # the checker closes it

        async with self.serving(transport, listen_url, hand_over) as bound:

            async def make() -> tuple[trio.abc.Stream, trio.abc.Stream]:
                return await client.open_stream(self.dialled(bound)), await streams.receive()

            await trio.testing.check_two_way_stream(make, None)

    @pytest.mark.trio
    async def test_serve_started_reports_the_bound_endpoint(
        self, transport: Transport, listen_url: Endpoint
    ) -> None:
        async with self.serving(transport, listen_url, _echo) as bound:
            assert bound.scheme == transport.scheme
            assert bound.port > 0
            assert Endpoint.parse(str(bound), default_scheme=transport.scheme) == bound

    @pytest.mark.trio
    async def test_handler_is_told_who_the_peer_is(
        self, transport: Transport, client: Transport, listen_url: Endpoint
    ) -> None:
        seen, peers = trio.open_memory_channel[Peer](1)

        async def note(stream: trio.abc.Stream, peer: Peer) -> None:
            await seen.send(peer)

        async with (
            self.serving(transport, listen_url, note) as bound,
            await client.open_stream(self.dialled(bound)),
        ):
            peer = await peers.receive()
        assert peer.address
        assert isinstance(peer.address_is_peer, bool)
        assert peer.certificate_sha256 is None or len(peer.certificate_sha256) == 32

    @pytest.mark.trio
    async def test_peer_address_is_that_of_the_listener_or_none(
        self, transport: Transport, client: Transport, listen_url: Endpoint
    ) -> None:
        async with (
            self.serving(transport, listen_url, _echo) as bound,
            await client.open_stream(self.dialled(bound)) as stream,
        ):
            assert client.peer_address(stream) in (None, bound.host)
            await trio.aclose_forcefully(stream)
            assert client.peer_address(stream) in (None, bound.host), "it may be closed already"

    @pytest.mark.trio
    async def test_many_streams_at_once_carry_their_own_bytes(
        self, transport: Transport, client: Transport, listen_url: Endpoint
    ) -> None:
        async def talk(bound: Endpoint, number: int) -> None:
            async with await client.open_stream(self.dialled(bound)) as stream:
                for turn in range(5):
                    data = f"stream {number} turn {turn}".encode()
                    await stream.send_all(data)
                    assert await _receive_exactly(stream, len(data)) == data

        async with self.serving(transport, listen_url, _echo) as bound, trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(talk, bound, number)

    @pytest.mark.trio
    async def test_four_mebibytes_each_way_at_once_arrive_unchanged(
        self, transport: Transport, client: Transport, listen_url: Endpoint
    ) -> None:
        size = 4 * 1024 * 1024
        up, down = random.Random(1).randbytes(size), random.Random(2).randbytes(size)
        received = dict[str, bytes]()

        async def exchange(stream: trio.abc.Stream, data: bytes, side: str) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, data)
                received[side] = await _receive_exactly(stream, size)

        async def answer(stream: trio.abc.Stream, peer: Peer) -> None:
            await exchange(stream, down, "server")

        async with (
            self.serving(transport, listen_url, answer) as bound,
            await client.open_stream(self.dialled(bound)) as stream,
        ):
            await exchange(stream, up, "client")
            assert await _ends(stream)
        assert received == {"server": up, "client": down}

    @pytest.mark.trio
    async def test_bytes_sent_before_a_close_arrive_and_then_the_end(
        self, transport: Transport, client: Transport, listen_url: Endpoint
    ) -> None:
        data = random.Random(3).randbytes(100_000)
        done = trio.Event()

        async def greet(stream: trio.abc.Stream, peer: Peer) -> None:
            if done.is_set():  # the second: our side closes, with the peer's bytes unread
                await stream.send_all(data)
                return
            assert await _receive_exactly(stream, len(data)) == data
            assert await _ends(stream)
            done.set()

        async with self.serving(transport, listen_url, greet) as bound:
            async with await client.open_stream(self.dialled(bound)) as stream:
                await stream.send_all(data)
            await done.wait()
            async with await client.open_stream(self.dialled(bound)) as stream:
                await stream.send_all(b"never read")
                assert await _receive_exactly(stream, len(data)) == data
                assert await _ends(stream)

    @pytest.mark.trio
    async def test_open_stream_to_nobody_is_unreachable(
        self, transport: Transport, client: Transport, listen_url: Endpoint
    ) -> None:
        async with self.serving(transport, listen_url, _echo) as bound:
            pass
        with trio.fail_after(_DEADLINE_S), pytest.raises(UnreachableError):
            await client.open_stream(self.dialled(bound))

    @pytest.mark.trio
    async def test_open_stream_cancelled_leaves_nothing_open(
        self, transport: Transport, client: Transport, listen_url: Endpoint
    ) -> None:
        async with self.serving(transport, listen_url, _echo) as bound:
            before = _open_files()
            for step in range(20):
                with trio.move_on_after(step / 2000):
                    async with await client.open_stream(self.dialled(bound)):
                        pass
            await _wait_for_open_files(before)
            async with await client.open_stream(self.dialled(bound)) as stream:
                await stream.send_all(b"still here")
                assert await _receive_exactly(stream, 10) == b"still here"

    @pytest.mark.trio
    async def test_serve_cancelled_closes_listener_and_streams(
        self, transport: Transport, client: Transport, listen_url: Endpoint
    ) -> None:
        before = _open_files()
        streams = []
        async with self.serving(transport, listen_url, _echo) as bound:
            for _ in range(3):
                streams.append(await client.open_stream(self.dialled(bound)))
                await streams[-1].send_all(b"x")
                assert await _receive_exactly(streams[-1], 1) == b"x"
        with trio.fail_after(_DEADLINE_S):
            for stream in streams:
                assert await _ends(stream)
                await trio.aclose_forcefully(stream)
            with pytest.raises(UnreachableError):
                await client.open_stream(self.dialled(bound))
        await _wait_for_open_files(before)

    @pytest.mark.trio
    async def test_garbage_and_silence_cost_their_own_connections_only(
        self, transport: Transport, client: Transport, listen_url: Endpoint
    ) -> None:
        async with self.serving(transport, listen_url, _echo) as bound:
            garbage = [await self.send_garbage(bound) for _ in range(5)]
            async with await client.open_stream(self.dialled(bound)) as silent:
                async with await client.open_stream(self.dialled(bound)) as stream:
                    await stream.send_all(b"well")
                    assert await _receive_exactly(stream, 4) == b"well"
                await silent.send_all(b"late")
                assert await _receive_exactly(silent, 4) == b"late"
            for each in garbage:
                await trio.aclose_forcefully(each)

    @pytest.mark.trio
    async def test_connections_with_a_place_have_it_from_before_their_handshake_to_their_end(
        self, transport: Transport, client: Transport, listen_url: Endpoint
    ) -> None:
        """A transport that never asks for a slot passes, too."""
        entered, slots = trio.open_memory_channel[tuple[AdmissionSlot, trio.CancelScope]](10)
        left = list[AdmissionSlot]()

        @contextmanager
        def admit(peer: Peer) -> Iterator[AdmissionSlot]:
            slot = AdmissionSlot()
            with trio.CancelScope() as scope:
                entered.send_nowait((slot, scope))
                try:
                    yield slot
                finally:
                    left.append(slot)

        seen, peers = trio.open_memory_channel[Peer](10)

        async def note(stream: trio.abc.Stream, peer: Peer) -> None:
            assert peer.slot not in left
            await seen.send(peer)
            await _echo(stream, peer)

        transport.admit = admit
        async with self.serving(transport, listen_url, note) as bound:
            async with await client.open_stream(self.dialled(bound)) as stream:
                await stream.send_all(b"well")
                assert await _receive_exactly(stream, 4) == b"well"
                peer = await peers.receive()
                if peer.slot is None:
                    assert slots.statistics().current_buffer_used == 0
                    return
                slot, scope = await slots.receive()
                assert peer.slot is slot
                assert not left
                scope.cancel()
                assert await _ends(stream)
            assert left == [slot]
            silent = await self.send_garbage(bound)
            slot, _ = await slots.receive()
            await trio.aclose_forcefully(silent)
            while slot not in left:
                await trio.lowlevel.checkpoint()

    @pytest.mark.trio
    async def test_what_escapes_a_handler_ends_serve(
        self, transport: Transport, client: Transport, listen_url: Endpoint
    ) -> None:
        async def fail(stream: trio.abc.Stream, peer: Peer) -> None:
            raise _HandlerBug

        escaped = False
        try:
            async with (
                self.serving(transport, listen_url, fail) as bound,
                await client.open_stream(self.dialled(bound)),
            ):
                await trio.sleep_forever()
        except* _HandlerBug:
            escaped = True
        assert escaped
