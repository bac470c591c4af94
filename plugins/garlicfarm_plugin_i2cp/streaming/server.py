"""Joins each incoming stream of a destination to a TCP connection of its own, to the service on this host.

Theory of operation
===================

`StreamServer.on_payload` feeds the core, `Streams`, at once; there is no queue between. Whatever touches the
core wakes `StreamServer.run`, which sends what the core wants sent, tells its events to the tasks that they
concern, and sleeps until the core's next timer. It runs once for all the payloads that came in one piece, so
that one packet acknowledges many. It takes no more from the core than there is room for: what waits there
acknowledges the newest packets when it is sent, and is not sent twice meanwhile.

Each stream has a task. It begins when the core says that the stream is to be served: a SYN alone costs no
connection. It connects to the service and runs two more, one for each direction::

    client ── Stream.read ──▶ _carry_in  ──▶ service
    client ◀─ Stream.write ── _carry_out ◀── service

A direction ends alone: its EOF is passed on, and the other direction goes on. A direction that breaks ends
both: the client gets a RESET, the service a TCP reset, so that neither takes a part for the whole. One case
differs. A service may answer, and close, before it has read all that the client sends; the rest is read and
dropped then, so that the client gets the answer.

A stream does not move to the destination's next server: its client sends the rest there, where it is unknown.
So those that are open at a hand-over are reset, at once or after a while, and the client can open others.
Streams that begin later, of clients that do not know yet, are served to their end.

The requests of HTTP clients may be filtered on their way (`HttpInlet`). A client whose first request is
refused costs no connection. The answer to a later one that is refused comes behind what the service has
answered before, so the service gets an EOF and ends first.

A client that has had its bytes of a minute is slowed: its streams' tasks wait before they pass more on.

There are as many connections as streams that are served. One that still takes the last bytes of a stream that
has ended goes on beside them; where they are more than a quarter of that, the one that has taken longest is
closed. Memory for each stream is bounded: the core's two buffers, and one chunk for each direction. A slow
service stops the client through the receive window, a slow client stops the service through TCP. The core
ends streams that are idle, and those whose client does not acknowledge.
"""

from __future__ import annotations

import math
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import NoReturn, Protocol

import trio

from garlicfarm.errors import PublisherError
from garlicfarm_plugin_i2cp.prompt_stream import PromptStream
from garlicfarm_plugin_i2cp.streaming.http_inlet import HttpInlet
from garlicfarm_plugin_i2cp.streaming.http_requests import HttpRules, RequestRefused
from garlicfarm_plugin_i2cp.streaming.limits import DEFAULT_LIMITS, ByteLimit, Limits
from garlicfarm_plugin_i2cp.streaming.stream import (
    Counts,
    Ended,
    EndReason,
    Event,
    Keys,
    Opened,
    Readable,
    Stream,
    Writable,
)
from garlicfarm_plugin_i2cp.streaming.streams import Streams
from garlicfarm_plugin_i2cp.streaming.targets import Targets

STALL_TIMEOUT_S = 600.0
"""As long as a service may read nothing of what a client sends."""
DROP_TIMEOUT_S = 30.0
"""As long as the rest of what a client sends is dropped once the service has closed."""
LAST_BYTES_PART = 4
CHUNK_BYTES = 1 << 15

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class _Connection:
    """A stream and what its task waits for."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.client = sha256(stream.peer).digest()
        self.is_slowed = False
        """It has passed its bytes."""
        self.readable = trio.Event()
        self.writable = trio.Event()
        self.scope = trio.CancelScope()
        self.is_dropping = False
        """The service reads no more."""
        self.inlet: HttpInlet | None = None
        self.target = ""
        """Where the service listens: HOST:PORT."""
        self.refusal = b""
        """What the client is answered at last, in place of the service."""
        self.is_serving = True
        """Its task runs."""


class Outbox(Protocol):
    """Where packets go: `ServiceKeeper` has this form."""

    @property
    def room(self) -> int:
        """How many payloads `send` takes now; if there was none, `StreamServer.on_room` is called when there
        is."""

    def send(self, peer: bytes, payload: bytes) -> None:
        """Queue a payload for a binary destination. It must neither block nor raise, nor call the server; it
        may drop payloads, since the core sends again."""


class StreamServer:
    """See the module.

    :param keys: of the destination whose streams these are; they sign
    :param targets: where the service listens; None: streams to other ports than ``ports`` are reset
    :param ports: where the services at single I2CP ports listen
    :param http: what becomes of HTTP requests to ``targets``; None: all bytes pass unchanged
    :param random: for the streams' ids
    :param drain_s: how long the streams that are open at a hand-over may finish; then they are reset
    :param now_ms: the wall clock, ms since 1970, for the signatures of peers
    """

    def __init__(
        self,
        keys: Keys,
        targets: Targets | None,
        *,
        ports: Mapping[int, Targets] | None = None,
        http: HttpRules | None = None,
        limits: Limits = DEFAULT_LIMITS,
        random: random.Random,
        drain_s: float = 0.0,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._targets = targets
        self._ports = dict(ports or {})
        self._http = http
        self._drain_s = drain_s
        self._drained_s = math.inf
        self._draining: list[Stream] = []
        self._now_ms = now_ms
        self._streams = Streams(keys, random=random, limits=limits)
        self._max_streams = limits.streams
        self._bytes = ByteLimit(limits.bytes_per_minute)
        self._connections: dict[Stream, _Connection] = {}
        self._last_bytes: dict[_Connection, None] = {}
        """Of the connections, those whose streams have ended."""
        self._outbox: Outbox | None = None
        self._nursery: trio.Nursery | None = None
        self._touched = trio.Event()
        self._failures = 0
        self._problem = ""

    @property
    def open_streams(self) -> int:
        """How many streams are served, or have ended and the service has not taken their last bytes."""
        return len(self._connections)

    @property
    def buffered(self) -> int:
        """Bytes that wait in all streams, in both directions."""
        return self._streams.buffered

    @property
    def refused(self) -> Counter[str]:
        """How many packets and streams were refused, by cause."""
        return self._streams.refused

    @property
    def max_streams(self) -> int:
        """How many may be served at once."""
        return self._max_streams

    @property
    def counts(self) -> Counts:
        """The packets that were sent."""
        return self._streams.counts

    @property
    def round_trip_s(self) -> float | None:
        """See `Streams.round_trip_s`."""
        return self._streams.round_trip_s

    @property
    def problem(self) -> str:
        """What is wrong with the service, in one sentence; "": the last stream was joined to it."""
        count = f"streams reset for its faults so far: {self._failures}"
        return self._problem and f"{self._problem}; {count}"

    @property
    def problems(self) -> list[str]:
        """`problem`, and which of the service's addresses are left out."""
        return [*filter(None, [self.problem]), *(each for one in self._all_targets for each in one.problems)]

    @property
    def _all_targets(self) -> list[Targets]:
        return [*filter(None, [self._targets]), *self._ports.values()]

    @property
    def targets(self) -> tuple[str, ...]:
        """See `Targets.names`."""
        return tuple(name for targets in self._all_targets for name in targets.names)

    def leave_out(self, targets: Container[str]) -> None:
        """See `Targets.leave_out`."""
        for each in self._all_targets:
            each.leave_out(targets)

    def has_met(self, client: bytes) -> bool:
        """See `Streams.has_met`."""
        return self._streams.has_met(client)

    def use_keys(self, keys: Keys) -> None:
        """See `Streams.use_keys`."""
        self._streams.use_keys(keys)

    def on_payload(self, payload: bytes) -> None:
        """Take the payload of a MessagePayload. Never blocks, never raises; before and after `run` it is
        dropped."""
        if self._nursery is not None:
            self._streams.receive_payload(payload, trio.current_time(), self._now_ms())
            self._wake()

    def on_room(self) -> None:
        """The outbox takes more."""
        self._wake()

    def reset_all(self) -> None:
        """Reset all streams now; the outbox gets the packets that say so."""
        self._streams.reset_all()
        self._exchange()

    def hand_over(self) -> None:
        """Another server has the destination now: the streams that are open now end in time."""
        self._draining = list(self._connections)
        self._drained_s = trio.current_time() + self._drain_s
        self._wake()

    def take_back(self) -> None:
        """This server has it again: no stream has to end."""
        self._draining, self._drained_s = [], math.inf

    def restrict(self, admits: Callable[[bytes], bool]) -> None:
        """Serve only the clients whose hashes of destinations ``admits`` takes; streams of others are
        reset."""
        self._streams.restrict(admits)
        self._wake()

    def address_peers(self) -> None:
        """Send each peer that was heard of lately something unsigned, beside which its router gets what ours
        has for it."""
        self._streams.address_peers(trio.current_time())
        self._wake()

    async def run(self, outbox: Outbox) -> NoReturn:
        """Serve until cancelled; then all streams are reset, and ``outbox`` gets the packets that say so."""
        self._outbox = outbox
        async with trio.open_nursery() as self._nursery:
            for targets in self._all_targets:
                self._nursery.start_soon(targets.run)
            try:
                while True:
                    with trio.CancelScope() as timer:
                        while True:
                            self._touched = trio.Event()
                            timer.deadline = self._exchange()
                            await self._touched.wait()
            finally:
                self._nursery = None
                self.reset_all()

    def _wake(self) -> None:
        """The core was touched."""
        self._touched.set()

    def _exchange(self) -> float:
        """Do what the core wants done now. Returns when to call this again, on Trio's clock; without room,
        `on_room` comes first."""
        assert self._outbox is not None, "a stream before `run`"
        if trio.current_time() >= self._drained_s:
            self._end_drained()
        room = self._outbox.room
        payloads = self._streams.take_payloads(trio.current_time(), room) if room else []
        for peer, payload in payloads:
            self._outbox.send(peer, payload)
        for event in self._streams.take_events():
            self._on_event(event)
        if not room:
            return math.inf
        if len(payloads) == room:
            return -math.inf
        wake_s = self._streams.wake_s
        return self._drained_s if wake_s is None else min(wake_s, self._drained_s)

    def _end_drained(self) -> None:
        """Reset those that were open at the hand-over, and still are. What has ended may have bytes left that
        the service takes."""
        for stream in self._draining:
            if stream.ended is None:
                stream.reset()
        self.take_back()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Opened):
            self._on_opened(event.stream)
        elif connection := self._connections.get(event.stream):
            match event:
                case Readable():
                    connection.readable.set()
                case Writable():
                    connection.writable.set()
                case Ended(_, reason):
                    self._on_ended(connection, reason)

    def _on_opened(self, stream: Stream) -> None:
        if self._nursery is not None:
            connection = self._connections[stream] = _Connection(stream)
            self._nursery.start_soon(self._serve, connection)

    def _on_ended(self, connection: _Connection, reason: EndReason) -> None:
        if reason != "closed" or not connection.is_serving:
            connection.scope.cancel()
            del self._connections[connection.stream]
            return
        self._last_bytes[connection] = None
        if len(self._last_bytes) > max(1, self._max_streams // LAST_BYTES_PART):
            longest = next(iter(self._last_bytes))
            self.refused["crowded out"] += 1
            longest.scope.cancel()
            self._forget(longest)

    def _forget(self, connection: _Connection) -> None:
        """Of a stream that has ended."""
        self._connections.pop(connection.stream, None)
        self._last_bytes.pop(connection, None)

    def _fail(self, connection: _Connection, problem: str) -> None:
        """End both directions: the service is at fault."""
        self._problem = problem
        self._failures += 1
        connection.scope.cancel()

    def _refuse(self, connection: _Connection, refused: RequestRefused) -> None:
        """End both directions, or have the client answered at last: it is at fault."""
        self.refused[refused.cause] += 1
        if refused.status is None:
            connection.scope.cancel()
        else:
            connection.refusal = refused.answer

    async def _serve(self, connection: _Connection) -> None:
        """The task of one stream."""
        is_whole = False
        try:
            with connection.scope:
                targets = self._ports.get(connection.stream.local_port, self._targets)
                if self._http is not None and targets is self._targets:
                    read = partial(self._read, connection)
                    connection.inlet = HttpInlet(read, self._http, connection.stream.peer)
                is_whole = await self._serve_whole(connection, targets)
        finally:
            connection.is_serving = False
            if not is_whole:
                connection.stream.reset()
                self._wake()
            if connection.stream.ended is not None:
                self._forget(connection)

    async def _serve_whole(self, connection: _Connection, targets: Targets | None) -> bool:
        """Whether both directions have ended in order."""
        first = b""
        if connection.inlet is not None:
            try:
                first = await connection.inlet.read()
            except RequestRefused as refused:
                self._refuse(connection, refused)
            if not first:
                await self._end_out(connection)
                await self._drop(connection)
                return not connection.scope.cancel_called
        service = await self._connect(connection, targets)
        is_whole = False
        try:
            async with trio.open_nursery() as nursery:
                prompt = PromptStream(service)
                nursery.start_soon(self._carry_in, connection, prompt, first)
                nursery.start_soon(self._carry_out, connection, prompt)
            is_whole = not connection.scope.cancel_called
        finally:
            if not is_whole:
                service.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            await trio.aclose_forcefully(service)
        return is_whole

    async def _connect(self, connection: _Connection, targets: Targets | None) -> trio.SocketStream:
        """The connection to the service; cancelled if there is none."""
        if targets is None:
            self.refused["no service at that port"] += 1
            connection.scope.cancel()
        else:
            try:
                service, connection.target = await targets.connect(connection.stream.peer)
            except PublisherError as error:
                self._fail(connection, str(error))
            else:
                self._problem = ""
                return service
        await trio.sleep_forever()
        raise AssertionError("cancelled")

    async def _carry_in(self, connection: _Connection, service: PromptStream, data: bytes) -> None:
        """From the client to the service; ``data``: what has been read already."""
        read = partial(self._read, connection) if connection.inlet is None else connection.inlet.read
        try:
            while data := data or await read():
                data = data[service.send_now(data) :]
                if data:
                    with trio.fail_after(STALL_TIMEOUT_S):
                        await service.send_all(data)
                data = b""
            await service.send_eof()
        except RequestRefused as refused:
            self._refuse(connection, refused)
            with suppress(trio.BrokenResourceError):
                await service.send_eof()
            await self._drop(connection)
        except trio.TooSlowError:
            self._fail(
                connection, f"the service at {connection.target} has read nothing for {STALL_TIMEOUT_S:.0f} s"
            )
        except trio.BrokenResourceError:
            connection.is_dropping = True
            await self._drop(connection)

    async def _drop(self, connection: _Connection) -> None:
        """Drop what still comes from the client; end both directions if that lasts."""
        with trio.move_on_after(DROP_TIMEOUT_S):
            while await self._read(connection):
                pass
            return
        connection.scope.cancel()

    async def _read(self, connection: _Connection) -> bytes:
        """What has come from the client; b"" at its EOF."""
        stream = connection.stream
        while not (data := stream.read(CHUNK_BYTES)) and not stream.is_at_eof:
            connection.readable = trio.Event()
            await connection.readable.wait()
        if self._streams.has_work:  # it tells the client that there is more room
            self._wake()
        await self._slow(connection, len(data))
        return data

    async def _slow(self, connection: _Connection, count: int) -> None:
        """Wait until bytes of this client may pass. What it sends meanwhile fills its window, and what the
        service sends, that of its connection."""
        pass_s = self._bytes.pass_(connection.client, count, trio.current_time())
        if pass_s > trio.current_time():
            if not connection.is_slowed:
                connection.is_slowed = True
                self.refused["slowed"] += 1
            await trio.sleep_until(pass_s)

    async def _carry_out(self, connection: _Connection, service: PromptStream) -> None:
        """From the service to the client."""
        has_answered = False
        try:
            while data := await service.receive_some(CHUNK_BYTES):
                has_answered = True
                await self._slow(connection, len(data))
                await self._write(connection, data)
                if connection.inlet is not None:
                    connection.inlet.on_answer(data)
            is_reset = connection.is_dropping and not has_answered
        except trio.BrokenResourceError:
            is_reset = True
        if is_reset:
            self._fail(connection, f"the service at {connection.target} has reset a connection")
            return
        if connection.inlet is not None:
            connection.inlet.on_answer(b"")
        await self._end_out(connection)

    async def _end_out(self, connection: _Connection) -> None:
        """The client gets nothing more, but for its refusal."""
        await self._write(connection, connection.refusal)
        connection.stream.close()
        self._wake()

    async def _write(self, connection: _Connection, data: bytes) -> None:
        """Write to the client, as it makes room."""
        while True:
            data = data[connection.stream.write(data) :]
            self._wake()
            if not data:
                return
            connection.writable = trio.Event()
            await connection.writable.wait()
