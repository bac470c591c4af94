"""Bytes between a TCP connection and ZeroMQ, under limits that ZeroMQ does not have.

libzmq takes as many connections as come, collects the frames of a message until the last one is there, and
bounds its queues by messages, not by bytes. So each connection goes through here: `relay` reads no more than
fits into an `Allowance`, and what the program takes from the socket gives room again. A peer that fills it
without ever ending a message is disconnected.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from typing import Final

import trio

FRAME_BYTES: Final = 64
"""What a frame costs besides its contents: on the wire, or in memory."""
STUCK_S: Final = 5.0
SEND_S: Final = 20.0
"""A peer that takes nothing for so long is disconnected; ZeroMQ's heartbeats notice one that is gone."""
_CHUNK_BYTES: Final = 64 << 10
_OnRead = Callable[[int], Awaitable[None]]


class Allowance:
    """How many bytes the connections of a peer may have sent that the program has not taken yet."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._has_room = trio.Event()

    @property
    def is_full(self) -> bool:
        """Whether nothing more is read for now."""
        return self.used_bytes > self.limit_bytes

    def change(self, bytes: int) -> None:
        """Use so many bytes more, or less."""
        self.used_bytes += bytes
        if bytes < 0 and not self.is_full:
            self._has_room.set()

    async def wait_for_room(self) -> None:
        """Wait until it is not full."""
        while self.is_full:
            self._has_room = self._has_room if not self._has_room.is_set() else trio.Event()
            await self._has_room.wait()


class Flow:
    """The part of one connection in an `Allowance`.

    Each frame that is taken counts with `FRAME_BYTES`, which is more than it had on the wire. So the count is
    never too high for long; it is too low by what the frames in ZeroMQ's queue make, which is bounded.
    """

    __slots__ = ("_held", "allowance")

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self._held = 0

    def read(self, bytes: int) -> None:
        """So many bytes have come."""
        self._held += bytes
        self.allowance.change(bytes)

    def took(self, bytes: int) -> None:
        """The program has taken messages of so many bytes, `FRAME_BYTES` for each frame included."""
        taken = min(bytes, self._held)
        self._held -= taken
        self.allowance.change(-taken)

    def close(self) -> None:
        """The connection has ended."""
        self.took(self._held)


async def relay(
    outside: trio.SocketStream,
    inside: trio.SocketStream,
    flow: Flow,
    has_messages: Callable[[], bool],
    on_stuck: Callable[[], None],
) -> None:
    """Pass bytes on between a peer (``outside``) and ZeroMQ until one of them ends; close both.

    ``has_messages``: whether the program can take a whole message now. If it cannot, and the allowance is
    full, the peer is disconnected after `STUCK_S`, and ``on_stuck`` called.
    """

    async def read(count: int) -> None:
        flow.read(count)
        if flow.allowance.is_full and not await _room(flow.allowance, has_messages):
            on_stuck()
            raise ConnectionAbortedError

    # Sockets without Trio's wrapping: a chunk costs one turn of the scheduler, and not four.
    with (
        closing(flow),
        socket.socket(fileno=outside.socket.detach()) as peer,
        socket.socket(fileno=inside.socket.detach()) as program,
    ):
        for each in (peer, program):
            each.setblocking(False)
        async with trio.open_nursery() as nursery:

            async def come() -> None:
                with suppress(OSError):
                    await _pump(peer, program, math.inf, read)
                    program.shutdown(socket.SHUT_WR)  # ZeroMQ reads the rest, then ends the connection
                    await trio.sleep(SEND_S)
                nursery.cancel_scope.cancel()

            async def go() -> None:
                with suppress(OSError):
                    await _pump(program, peer, SEND_S, _go_on)
                nursery.cancel_scope.cancel()

            nursery.start_soon(come)
            nursery.start_soon(go)


async def _pump(source: socket.socket, target: socket.socket, patience_s: float, on_read: _OnRead) -> None:
    """Until one of them ends, or ``target`` takes nothing for so long. (ZeroMQ takes nothing while its queue
    is full: then the program is slow, and the peer waits.)"""
    buffer = bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    while True:
        await trio.lowlevel.wait_readable(source)
        try:
            count = source.recv_into(buffer)
        except BlockingIOError:
            continue
        if not count:
            return
        sent = 0
        while sent < count:
            try:
                sent += target.send(view[sent:count])
            except BlockingIOError:
                with trio.move_on_after(patience_s) as waiting:
                    await trio.lowlevel.wait_writable(target)
                if waiting.cancelled_caught:
                    return
        await on_read(count)


async def _go_on(count: int) -> None:
    pass


async def _room(allowance: Allowance, has_messages: Callable[[], bool]) -> bool:
    while True:
        with trio.move_on_after(STUCK_S):
            await allowance.wait_for_room()
            return True
        if not has_messages():
            return False
