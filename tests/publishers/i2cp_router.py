"""A router's I2CP that does as it is told."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import trio
from trio.testing import memory_stream_pair

from garlicfarm_plugin_i2cp.connection import RouterAddress

START_MS = 1_800_000_000_000
DATE = 32
CREATE_SESSION = 1
RECONFIGURE_SESSION = 2
DESTROY_SESSION = 3
SEND_MESSAGE = 5
GET_BANDWIDTH_LIMITS = 8
CREATE_LEASE_SET_2 = 41


@dataclass
class FakeRouter:
    """It speaks I2CP on every stream that `serve` is given, and keeps what it was sent.

    ``asks_after_s``: how long its tunnels take, after which it asks for a LeaseSet; None: for ever.
    ``statuses``: what it answers to CreateSession, one after another; then 1. ``reason``: with which it
    disconnects instead. ``is_silent``: it reads and
    answers nothing. ``garbage``: what it sends at once instead of speaking I2CP. ``tunnel_s``: how long the
    tunnels last that it asks with. ``limits``: the first of its answer to GetBandwidthLimits; by default
    those of an i2pd that nothing passes through; None: it does not answer. ``version``: as it says it.
    """

    now_ms: Callable[[], int]
    asks_after_s: float | None = 0.0
    statuses: list[int] = field(default_factory=list)
    is_silent: bool = False
    garbage: bytes | None = None
    tunnel_s: tuple[int, ...] = (600,)
    limits: tuple[int, ...] | None = ()
    reason: bytes = b""
    version: bytes = b"2.45.1"
    received: list[tuple[float, int, bytes]] = field(default_factory=list)
    """When (Trio's clock), type, body."""
    streams: list[trio.abc.Stream] = field(default_factory=list)
    """Those that are open."""

    def objection(self, type_: int, body: bytes) -> bytes:
        """Why it disconnects instead of carrying this message out, as Java I2P does."""
        return self.reason if type_ == CREATE_SESSION else b""

    def bodies(self, type_: int) -> list[bytes]:
        return [body for _, each, body in self.received if each == type_]

    def times(self, type_: int) -> list[float]:
        return [at for at, each, _ in self.received if each == type_]

    @property
    def lease_sets(self) -> list[bytes]:
        """Those that it was given, after the checks that i2pd makes of the rest of the message."""
        found = []
        for body in self.bodies(CREATE_LEASE_SET_2):
            assert body[:3] == b"\x12\x34\x07"
            assert body[-1:] == b"\0"
            found.append(body[3:-1])
        return found

    async def kill(self) -> None:
        """End all connections, as the end of the process does."""
        for stream in self.streams[:]:
            await trio.aclose_forcefully(stream)

    async def ask(self) -> None:
        """Ask for a LeaseSet: the tunnels have changed."""
        ends = [self.now_ms() + 1000 * each for each in self.tunnel_s]
        leases = [bytes(range(32)) + struct.pack(">IQ", 7 + i, end) for i, end in enumerate(ends)]
        for stream in self.streams:
            await send(stream, 37, b"\x12\x34" + bytes([len(ends)]) + b"".join(leases))

    def connect(self, nursery: trio.Nursery, *, is_up: bool) -> trio.abc.Stream:
        """A connection in memory, refused unless it ``is_up``."""
        if not is_up:
            raise OSError("all attempts failed") from ExceptionGroup(
                "all attempts failed", [ConnectionRefusedError(111, "Connection refused")]
            )
        ours, theirs = memory_stream_pair()
        nursery.start_soon(self.serve, theirs)
        return ours

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.streams.append(stream)
        try:
            async with trio.open_nursery() as nursery:
                await self._serve(stream, nursery)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.streams.remove(stream)
            await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.abc.Stream, nursery: trio.Nursery) -> None:
        if self.garbage is not None:
            await stream.send_all(self.garbage)
            while await stream.receive_some():
                pass
            return
        buffer = b""

        async def take(count: int) -> bytes:
            nonlocal buffer
            while len(buffer) < count or self.is_silent:
                if not (data := await stream.receive_some()):
                    raise trio.BrokenResourceError
                buffer += data
            taken, buffer = buffer[:count], buffer[count:]
            return taken

        assert await take(1) == b"\x2a"
        while True:
            length, type_ = struct.unpack(">IB", await take(5))
            body = await take(length)
            self.received.append((trio.current_time(), type_, body))
            if reason := self.objection(type_, body):
                await send(stream, 30, bytes([len(reason)]) + reason)
                return
            if type_ == DATE:
                await send(
                    stream, 33, struct.pack(">Q", self.now_ms()) + bytes([len(self.version)]) + self.version
                )
            elif type_ == CREATE_SESSION:
                status = self.statuses.pop(0) if self.statuses else 1
                await send(stream, 20, b"\x12\x34" + bytes([status]))
                if status == 1 and self.asks_after_s is not None:
                    nursery.start_soon(self._ask_later, self.asks_after_s)
            elif type_ == GET_BANDWIDTH_LIMITS and self.limits is not None:
                await send(stream, 23, struct.pack(">16I", *self.limits, *[0] * (16 - len(self.limits))))
            elif type_ == RECONFIGURE_SESSION:
                await send(stream, 20, b"\x12\x34\x02")
            elif type_ == DESTROY_SESSION:
                await send(stream, 20, b"\x12\x34\0")
                return

    async def _ask_later(self, after_s: float) -> None:
        await trio.sleep(after_s)
        await self.ask()


class KeeperBench:
    """A ``keeper`` that runs, and its router: memory streams, a clock that jumps. The router's clock is
    `START_MS` at 0 s."""

    keeper: Any

    def __init__(self, nursery: trio.Nursery) -> None:
        self.router = FakeRouter(self.router_ms)
        self.address = RouterAddress("127.0.0.1:7654", self._connect)
        self.running = trio.CancelScope()
        self.is_up = True
        self.clock_off_ms = self.router_off_ms = 0
        self.connected_at: list[float] = []
        self._nursery = nursery

    def router_ms(self) -> int:
        return START_MS + round(trio.current_time() * 1000) + self.router_off_ms

    def now_ms(self) -> int:
        return START_MS + round(trio.current_time() * 1000) + self.clock_off_ms

    async def run(self) -> None:
        with self.running:
            await self.keeper.run()

    async def _connect(self) -> trio.abc.Stream:
        self.connected_at.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        return self.router.connect(self._nursery, is_up=self.is_up)


@dataclass
class Listening:
    """A router that listens on loopback, by the wall clock."""

    router: FakeRouter
    address: str
    serving: trio.CancelScope

    def kill(self) -> None:
        """End the router: nothing listens any more, and its connections are closed."""
        self.serving.cancel()


_sending: WeakKeyDictionary[trio.abc.Stream, trio.Lock] = WeakKeyDictionary()


async def send(stream: trio.abc.Stream, type_: int, body: bytes) -> None:
    """A message of the router's; several tasks may send."""
    async with _sending.setdefault(stream, trio.Lock()):
        await stream.send_all(struct.pack(">IB", len(body), type_) + body)
