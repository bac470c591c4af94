"""`TlsStream` keeps what `trio.abc.Stream` promises, and speaks TLS with Trio and with OpenSSL."""

from __future__ import annotations

import gc
import os
import random
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.net import tls_stream
from garlicfarm.net.tls_stream import TlsStream
from tests.running import background

Secured = TlsStream | trio.SSLStream[trio.SocketStream]
Maker = Callable[[trio.SocketStream], Secured]


def sockets(buffer: int | None = None) -> tuple[trio.SocketStream, trio.SocketStream]:
    """Two connected sockets; ``buffer``: how much the system may keep for each, in bytes."""
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF) if buffer is not None else ():
            end.setsockopt(socket.SOL_SOCKET, option, buffer or 0)
    one, other = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in ends)
    return one, other


async def shake_hands(*streams: Secured) -> None:
    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(stream.do_handshake)


class Tls:
    """The contexts of both sides."""

    def __init__(self, folder: Path) -> None:
        make_certificate(folder / "node.crt", folder / "node.key", "127.0.0.1")
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.minimum_version = ssl.TLSVersion.TLSv1_3
        self.server.num_tickets = 0
        self.server.load_cert_chain(folder / "node.crt", folder / "node.key")
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client.check_hostname, self.client.verify_mode = False, ssl.CERT_NONE

    async def pair(self, buffer: int | None = None) -> tuple[TlsStream, TlsStream]:
        one, other = sockets(buffer)
        streams = TlsStream(one, self.client), TlsStream(other, self.server, server_side=True)
        await shake_hands(*streams)
        return streams

    @asynccontextmanager
    async def open_pair(self, buffer: int | None = None) -> AsyncIterator[tuple[TlsStream, TlsStream]]:
        one, other = await self.pair(buffer)
        async with one, other:
            yield one, other


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return Tls(tmp_path_factory.mktemp("tls"))


async def send_until_it_blocks(stream: trio.abc.Stream) -> None:
    """Cancelled while it blocks: the stream is broken then."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, bytes(4_000_000))
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()


async def receive_all(stream: trio.abc.ReceiveStream) -> bytes:
    return b"".join([piece async for piece in stream])


async def test_it_is_a_stream_as_trio_wants_one(tls: Tls) -> None:
    async def clogged() -> tuple[TlsStream, TlsStream]:
        streams = await tls.pair(4096)
        for stream in streams:
            while stream.send_now(bytes(1000)):
                pass
        return streams

    await trio.testing.check_two_way_stream(tls.pair, clogged)


@pytest.mark.parametrize("is_ours", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("buffer", [None, 2304])
async def test_everything_arrives_in_both_directions_at_once(
    tls: Tls, is_ours: tuple[bool, bool], buffer: int | None
) -> None:
    makers: list[tuple[Maker, Maker]] = [
        (
            lambda tcp: TlsStream(tcp, tls.client),
            lambda tcp: trio.SSLStream(tcp, tls.client, https_compatible=True),
        ),
        (
            lambda tcp: TlsStream(tcp, tls.server, server_side=True),
            lambda tcp: trio.SSLStream(tcp, tls.server, server_side=True, https_compatible=True),
        ),
    ]
    dice = random.Random(7)
    data = [dice.randbytes(300_000), dice.randbytes(300_000)]
    streams = [
        (ours if is_one else trios)(tcp)
        for tcp, (ours, trios), is_one in zip(sockets(buffer), makers, is_ours, strict=True)
    ]
    got: dict[int, bytes] = {}

    async def send(number: int) -> None:
        rest = data[number]
        while rest:
            size = dice.choice((1, 100, 16_384, 70_000))
            await streams[number].send_all(rest[:size])
            rest = rest[size:]

    async def receive(number: int) -> None:
        received = bytearray()
        while len(received) < len(data[0]):
            received += await streams[number].receive_some(dice.choice((1, 1000, 100_000)))
        got[number] = bytes(received)

    with trio.fail_after(240):
        await shake_hands(*streams)
        async with trio.open_nursery() as nursery:
            for number in (0, 1):
                nursery.start_soon(send, number)
                nursery.start_soon(receive, number)
    for stream in streams:
        await trio.aclose_forcefully(stream)
    assert (got[1], got[0]) == tuple(data)


@pytest.mark.parametrize("step", [1, 2, 7])
async def test_records_may_be_cut_anywhere(tls: Tls, step: int) -> None:
    """A relay hands on so many bytes at a time, and waits until they were read."""
    near, far = sockets()
    one, other = sockets()

    async def relay(source: trio.SocketStream, target: trio.SocketStream) -> None:
        async for data in source:
            for at in range(0, len(data), step):
                await target.send_all(data[at : at + step])
                await trio.testing.wait_all_tasks_blocked()

    ours, theirs = TlsStream(near, tls.client), TlsStream(other, tls.server, server_side=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay, far, one)
        nursery.start_soon(relay, one, far)
        await shake_hands(ours, theirs)
        await ours.send_all(b"one record" * 20)
        await ours.send_all(b"another")
        received = b""
        while len(received) < 207:
            received += await theirs.receive_some()
        nursery.cancel_scope.cancel()
    for stream in (ours, theirs, far, one):
        await trio.aclose_forcefully(stream)
    assert received == b"one record" * 20 + b"another"


async def test_one_receive_takes_all_records_that_have_come(tls: Tls) -> None:
    async with tls.open_pair() as (one, other):
        for number in range(5):
            await one.send_all(b"record %d " % number)
        assert await other.receive_some() == b"record 0 record 1 record 2 record 3 record 4 "


@pytest.mark.parametrize(
    ("asked", "taken"), [(None, 65_536), (1000, 65_536), (100_000, 100_000), (1 << 30, 262_144)]
)
async def test_socket_is_read_as_the_caller_asks_within_bounds(
    tls: Tls,
    asked: int | None,
    taken: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with tls.open_pair() as (one, other):
        await one.send_all(b"x")
        asked_of_system: list[int] = []

        def read(descriptor: int, most: int) -> bytes:
            asked_of_system.append(most)
            return os.read(descriptor, most)

        monkeypatch.setattr(tls_stream, "os", SimpleNamespace(read=read, write=os.write))
        assert await other.receive_some(asked) == b"x"
        assert asked_of_system == [taken]


async def test_one_send_is_one_write(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def write(descriptor: int, data: bytes) -> int:
        written.append(len(data))
        return os.write(descriptor, data)

    async with tls.open_pair() as (one, _):
        monkeypatch.setattr(tls_stream, "os", SimpleNamespace(read=os.read, write=write))
        await one.send_all(bytes(60_000))  # four records
        monkeypatch.undo()
    assert len(written) == 1


async def test_what_is_sent_now_leaves_without_a_checkpoint(tls: Tls) -> None:
    async with tls.open_pair() as (one, other):
        with trio.testing.assert_no_checkpoints():
            assert one.send_now(b"now ")
            assert one.send_now(b"and again, ")
        await one.send_all(b"and as ever")
        received = b""
        while len(received) < 26:
            received += await other.receive_some()
        assert received == b"now and again, and as ever"


async def test_rest_of_what_is_sent_now_follows_with_the_next_send(tls: Tls) -> None:
    async with tls.open_pair(buffer=4096) as (one, other):
        sent, received = random.randbytes(60_000), b""
        assert not one.send_now(sent)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.send_all, b"")
            while len(received) < len(sent):
                received += await other.receive_some()
        assert received == sent


async def test_sending_now_fails_as_any_send(tls: Tls) -> None:
    one, other = await tls.pair(buffer=4096)
    async with background(lambda: send_until_it_blocks(one)):
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            one.send_now(b"x")
    with pytest.raises(trio.BrokenResourceError):
        one.send_now(b"x")
    await one.aclose()
    with pytest.raises(trio.ClosedResourceError):
        one.send_now(b"x")
    await other.aclose()


async def test_close_notify_is_the_end(tls: Tls) -> None:
    async with tls.open_pair() as (one, other):
        await one.send_all(b"the last words")
        one.send_close_notify()
        assert await receive_all(other) == b"the last words"
        assert await other.receive_some() == b""
        await other.send_all(b"understood")  # each direction ends by itself
        assert await one.receive_some() == b"understood"


async def test_connection_that_ends_without_close_notify_has_ended(tls: Tls) -> None:
    async with tls.open_pair() as (one, other):
        await one.send_all(b"cut")
        await one.transport_stream.send_eof()
        assert await receive_all(other) == b"cut"
        assert await other.receive_some() == b""


async def test_connection_that_is_reset_is_broken(tls: Tls) -> None:
    async with tls.open_pair() as (one, other):
        await other.send_all(b"never read")
        await one.transport_stream.aclose()  # with bytes unread: a reset
        with pytest.raises(trio.BrokenResourceError):
            await receive_all(other)
        with pytest.raises(trio.BrokenResourceError):
            await other.send_all(b"x")


async def test_damaged_record_breaks_the_stream_and_the_peer_learns_it(tls: Tls) -> None:
    async with tls.open_pair() as (one, other):
        await one.transport_stream.send_all(b"\x17\x03\x03\0\x20" + bytes(32))  # the right form, no right MAC
        with pytest.raises(trio.BrokenResourceError) as caught:
            await other.receive_some()
        assert isinstance(caught.value.__cause__, ssl.SSLError)
        with pytest.raises(trio.BrokenResourceError) as caught:
            await one.receive_some()
        assert "BAD_RECORD_MAC" in str(caught.value.__cause__)


async def test_send_that_is_cancelled_breaks_the_stream(tls: Tls) -> None:
    async with tls.open_pair(4096) as (one, _):
        await send_until_it_blocks(one)
        with pytest.raises(trio.BrokenResourceError):
            await one.send_all(b"x")
        with pytest.raises(trio.BrokenResourceError):
            await one.receive_some()


async def test_send_that_is_cancelled_before_it_begins_changes_nothing(tls: Tls) -> None:
    async with tls.open_pair() as (one, other):
        with trio.CancelScope() as scope:
            scope.cancel()
            await one.send_all(b"never sent")
        await one.send_all(b"sent")
        assert await other.receive_some() == b"sent"


async def test_receive_that_is_cancelled_loses_nothing(tls: Tls) -> None:
    async with tls.open_pair() as (one, other):
        with trio.move_on_after(0):
            await other.receive_some()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other.receive_some)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        await one.send_all(b"whole")
        assert await other.receive_some(2) == b"wh"
        assert await other.receive_some() == b"ole"


async def test_handshake_that_is_cancelled_breaks_the_stream(tls: Tls) -> None:
    near, far = sockets()
    async with TlsStream(near, tls.client) as stream, far:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.do_handshake)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        with pytest.raises(trio.BrokenResourceError):
            await stream.do_handshake()


async def test_closing_wakes_a_blocked_sender(tls: Tls) -> None:
    async with tls.open_pair(4096) as (one, _), trio.open_nursery() as nursery:

        async def send() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await one.send_all(bytes(4_000_000))

        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        await one.aclose()


async def test_stream_is_freed_without_the_garbage_collector(tls: Tls) -> None:
    """A long-lived program runs it rarely, and each connection holds some 50 KiB of OpenSSL's memory."""

    def held() -> int:
        return sum(isinstance(each, (TlsStream, ssl.SSLObject)) for each in gc.get_objects())

    before = held()
    gc.disable()
    try:
        for _ in range(5):
            async with tls.open_pair() as (one, other):
                await one.send_all(b"x")
                await other.receive_some()
        del one, other
        assert held() == before
    finally:
        gc.enable()


@pytest.mark.openssl
async def test_key_updates_of_the_peer_are_answered(tls: Tls) -> None:
    """OpenSSL's client takes a line with ``K`` as the order to update its keys, and to ask for the same."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_3"]
    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            run = partial(
                trio.run_process,
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            process: trio.Process = await nursery.start(run)
            assert process.stdin is not None
            assert process.stdout is not None
            tcp = await listener.accept()
            async with TlsStream(tcp, tls.server, server_side=True) as stream:
                await stream.do_handshake()
                shown = b""
                for number in range(3):
                    line = b"line %d\n" % number
                    await process.stdin.send_all(line)
                    assert await stream.receive_some() == line
                    await stream.send_all(b"answer %d\n" % number)
                    while b"answer %d" % number not in shown:
                        shown += await process.stdout.receive_some()
                    if number < 2:
                        await process.stdin.send_all(b"K\n")
                        while shown.count(b"KEYUPDATE") <= number:
                            shown += await process.stdout.receive_some()
            nursery.cancel_scope.cancel()
    await listener.aclose()


async def test_peer_that_asks_and_never_reads_is_cut_off(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(ssl.SSLObject):
        """It answers a key update whenever it reads."""

        def read(self, *arguments: Any) -> Any:
            self.write(b"an answer")
            return super().read(*arguments)

    monkeypatch.setattr(tls.client, "sslobject_class", Asked)
    monkeypatch.setattr(tls_stream, "MAX_UNSENT_BYTES", 10_000)
    async with tls.open_pair(4096) as (one, _):
        while one.send_now(bytes(1000)):
            pass
        for _ in range(10):
            one.send_now(bytes(1000))
        with pytest.raises(trio.BrokenResourceError):
            await one.receive_some()
