"""A TCP connection for many small pieces, on real sockets."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from garlicfarm_plugin_i2cp.prompt_stream import PromptStream, open_prompt_stream

DATA = bytes(range(256)) * (1 << 16)
"""More than two sockets take that nobody reads from."""
Pair = tuple[PromptStream, trio.SocketStream]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """One side of a TCP connection, and the other."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        near = await open_prompt_stream("127.0.0.1", listener.socket.getsockname()[1])
        far = await listener.accept()
        async with near, far:
            yield near, far


async def test_what_the_socket_does_not_take_at_once_follows(pair: Pair) -> None:
    near, far = pair
    sent = near.send_now(DATA)
    assert 0 < sent < len(DATA)
    received = bytearray()

    async def send_rest() -> None:
        await near.send_all(DATA[sent:])
        await near.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_rest)
        await trio.testing.wait_all_tasks_blocked()
        async for part in far:
            received += part
    assert received == DATA


async def test_all_pieces_are_received_whatever_their_sizes(pair: Pair) -> None:
    near, far = pair
    received = bytearray()

    async def send() -> None:
        at = 0
        for size in [1, 100, 100_000, 7, len(DATA)]:
            await far.send_all(DATA[at : at + size])
            at += size
        await far.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while data := await near.receive_some(50_000):
            assert len(data) <= 50_000
            received += data
    assert received == DATA
    assert await near.receive_some() == b""


async def test_other_tasks_have_turns_while_there_is_always_something_to_receive(pair: Pair) -> None:
    near, far = pair
    await far.send_all(DATA[:1000])
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        for _ in range(1000):
            assert len(await near.receive_some(1)) == 1
        nursery.cancel_scope.cancel()
    assert turns >= 999


async def test_receiving_that_is_cancelled_loses_nothing(pair: Pair) -> None:
    near, far = pair
    with trio.CancelScope() as scope:
        scope.cancel()
        await far.wait_send_all_might_not_block()
        await near.receive_some()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.receive_some)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await far.send_all(b"all of it")
    assert await near.receive_some() == b"all of it"


@pytest.mark.parametrize("does_send", [True, False])
async def test_reset_by_the_peer_is_a_broken_connection(pair: Pair, does_send: bool) -> None:
    near, far = pair
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await trio.aclose_forcefully(far)
    with pytest.raises(trio.BrokenResourceError, match=r"reset|Broken pipe"):
        await (near.send_all(DATA) if does_send else near.receive_some())


async def test_closed_here_while_a_task_receives(pair: Pair) -> None:
    near, _ = pair
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await near.receive_some()

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await near.aclose()
    with pytest.raises(trio.ClosedResourceError):
        near.send_now(b"late")
