"""One outgoing connection that reconnects by itself: requests out, their answers back in order.

Answers carry no number: the n-th answer on a connection belongs to its n-th request. A `Link` pairs them,
gives every request a deadline, reconnects with back-off and jitter, and reports each request exactly once,
as answered or failed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NoReturn

import msgspec
import trio

from garlicfarm.errors import (
    AuthError,
    GarlicFarmError,
    OutcomeUnknown,
    RemoteProtocolError,
    TransportError,
    UnreachableError,
    first_error,
)
from garlicfarm.extensions import LEADER_HINT
from garlicfarm.net.handshake import Established
from garlicfarm.net.sender import Sender
from garlicfarm.wire import ResponseDecoder, encode_request
from garlicfarm.wire.messages import EXTENSION_OF, MessageType, Request, Response

CONNECTION_ERRORS = (
    TransportError,
    RemoteProtocolError,
    AuthError,
    OSError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
)
"""Errors of a broken peer or path: each ends its connection and nothing else."""

ATTEMPTS = 3
"""How many streams share the time to log in: one that hangs costs a third of it, not all."""
CLOSE_TIMEOUT_S = 1.0
QUEUE_LIMIT = 4096


async def close(stream: trio.abc.Stream) -> None:
    """Close gracefully within a second, else forcefully; even when cancelled."""
    with trio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
        await stream.aclose()


class Backoff(msgspec.Struct, frozen=True):
    """Waits between attempts: from ``first_s``, doubling up to ``longest_s``, each times a random
    factor between ½ and 1½ from ``random()`` in [0, 1)."""

    random: Callable[[], float]
    first_s: float = 0.05
    longest_s: float = 5.0

    def wait_s(self, failures: int) -> float:
        """How long to wait after this many failures in a row (≥ 1)."""
        return min(self.first_s * 2.0 ** min(failures - 1, 30), self.longest_s) * (0.5 + self.random())


class LinkConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect to one server.

    ``connect()`` opens a connection within ``connect_timeout_s``. After each third of that time another
    attempt starts beside the pending ones, and the first that logs in is used (as happy eyeballs do,
    RFC 8305). ``server_id`` is the id that answers must come from (None: any). ``timeout_s`` bounds the wait
    for each answer; None for ``connect_timeout_s`` means the same time. ``lazy``: connect only while there
    is something to send.
    """

    connect: Callable[[], Awaitable[Established]]
    server_id: int | None
    timeout_s: float
    backoff: Backoff
    connect_timeout_s: float | None = None
    lazy: bool = False


class Link:
    """One connection to one server.

    ``on_answer(tag, response)`` or ``on_failure(tag, sent)`` is called once per request, from `run`'s task or
    from `send`; ``sent`` says whether the server may have received the request. ``on_change(error)``: the
    connection came up (None) or broke. ``encode``: makes the bytes of a request.

    A peer without a handshake gets the next request only after it has answered the one before.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        on_answer: Callable[[int, Response], None],
        on_failure: Callable[[int, bool], None],
        on_change: Callable[[Exception | None], None],
        on_received: Callable[[], None] = lambda: None,
        encode: Callable[[Request], bytes] = encode_request,
    ) -> None:
        self._config = config
        given_s = config.connect_timeout_s
        self._connect_timeout_s = config.timeout_s if given_s is None else given_s
        self._encode = encode
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._on_change = on_change
        self._on_received = on_received
        self._queue: deque[tuple[int, Request]] = deque()
        self._outstanding: deque[tuple[int, MessageType, float]] = deque()
        self._work = trio.Event()
        self._poke = trio.Event()
        self._waiting = False
        self._failures = 0
        self._refusal: AuthError | None = None  # the last one, since it was let in
        self._sender: Sender | None = None  # of the connection, once it is up
        self.connected = False
        self.has_handshake = True  # the connection, or the last one
        self.extensions: frozenset[str] = frozenset()  # in force on it
        self.answer_timeout_s = config.timeout_s
        """How long to wait for an answer, while no connection has failed since the last one."""
        self.heard = float("-inf")  # when the last answer came
        self.rtt_s: float | None = None
        self.least_rtt_s = math.inf  # of all answers so far
        self._given_up = trio.Event()
        self._why = ""
        self.handshake: tuple[float, bool] | None = None
        """How long the last attempt to connect and log in took, in seconds, and whether it succeeded; None
        before the first one."""
        self.told: tuple[int, int, int] | None = None
        """What the server told as the time when it let this node log in last: see `Established`."""

    def send(self, tag: int, request: Request) -> None:
        """Have `run`'s task send a request. It fails at once while the link waits between two attempts, or if
        its queue is full."""
        self.add(tag, request)
        if self._queue:
            self._wake()

    def add(self, tag: int, request: Request) -> None:
        """As `send`, for a caller that then calls `flush`."""
        if self._waiting or len(self._queue) >= QUEUE_LIMIT:
            self._on_failure(tag, False)
        else:
            self._queue.append((tag, request))

    def flush(self) -> None:
        """Send what was added: at once if the stream can, else by `run`'s task."""
        if self._queue and self._sender is not None:
            self._sender.flush()
        elif self._queue:
            self._work.set()

    def _wake(self) -> None:
        if self._sender is not None:
            self._sender.wake()
        else:
            self._work.set()

    def withdraw(self, tag: int) -> bool:
        """Take back a request that was not sent. Returns False if it was, or was reported."""
        for position, (queued, _) in enumerate(self._queue):
            if queued == tag:
                del self._queue[position]
                return True
        return False

    @property
    def silent_since(self) -> float | None:
        """Since when the server owes an answer and has sent none; None: it owes none. That begins with the
        answer before, which kept the server busy until then."""
        return max(self._outstanding[0][2], self.heard) if self._outstanding else None

    def give_up(self, why: str) -> None:
        """End the connection: requests that wait for answers fail. Without one this does nothing."""
        self._why = why
        self._given_up.set()

    def poke(self) -> None:
        """The server showed a sign of life: reconnect now."""
        self._poke.set()

    async def run(self) -> NoReturn:
        """Keep the connection up until cancelled. Then the stream is closed, and unanswered requests fail."""
        try:
            while True:
                if self._config.lazy:
                    await self._work.wait()
                try:
                    await self._exchange(await self._connected())
                except* CONNECTION_ERRORS as group:
                    error = first_error(group)
                if isinstance(error, AuthError):
                    self._refusal = error
                self._fail_all()
                self._on_change(error)
                self._failures += 1
                self._waiting = True
                self._poke = trio.Event()
                with trio.move_on_after(self._config.backoff.wait_s(self._failures)):
                    await self._poke.wait()
                self._waiting = False
        finally:
            self._waiting = True  # later requests fail at once
            self._fail_all()

    async def _connected(self) -> Established:
        begun, ok = trio.current_time(), False
        let_in: list[Established] = []
        try:
            with trio.move_on_after(self._connect_timeout_s):
                await self._race(let_in)
            if not let_in:
                hint = (
                    "is that node up? a tunnel or a proxy in front of it may accept connections "
                    "while it is down"
                )
                if self._refusal is not None:  # each wrong password delays the next answer
                    hint = f"before that, {self._refusal}"
                raise UnreachableError(f"not let in within {self._connect_timeout_s:g} s", hint)
            ok, self._refusal, self.told = True, None, let_in[0].told
            return let_in.pop(0)
        finally:
            self.handshake = trio.current_time() - begun, ok
            for spare in let_in:
                await trio.aclose_forcefully(spare.stream)

    async def try_handshake(self) -> None:
        """Connect once more, beside an existing connection, only to test whether a login succeeds now:
        `handshake` has the result."""
        try:
            established = await self._connected()
        except* CONNECTION_ERRORS:
            pass
        else:
            await close(established.stream)

    async def _race(self, let_in: list[Established]) -> None:
        """Attempts side by side until one logs in; the first failure ends all."""
        async with trio.open_nursery() as nursery:

            async def attempt() -> None:
                let_in.append(await self._config.connect())
                nursery.cancel_scope.cancel()

            for _ in range(ATTEMPTS):
                nursery.start_soon(attempt)
                await trio.sleep(self._connect_timeout_s / ATTEMPTS)

    def _fail_all(self) -> None:
        self.connected = False
        self._work = trio.Event()
        while self._outstanding:
            self._on_failure(self._outstanding.popleft()[0], True)
        while self._queue:
            self._on_failure(self._queue.popleft()[0], False)

    async def _exchange(self, established: Established) -> NoReturn:
        stream = established.stream
        self.connected = True
        self.extensions = established.extensions
        self.has_handshake = bool(established.user)
        self._given_up = trio.Event()
        self._sender = sender = Sender(stream, self._take_queue)
        if self._queue:
            sender.wake()
        self._on_change(None)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sender.run)
                nursery.start_soon(self._watch)
                await self._receive_all(stream, established.leftover)
        finally:
            self.connected = False
            self._sender = None
            await close(stream)
        raise AssertionError("unreachable: the receiver ends with an error")

    def _take_queue(self) -> bytes:
        """The bytes of what is to be sent now. From here on it waits for its answers."""
        now = trio.current_time()
        data = []
        while self._queue and (self.has_handshake or not self._outstanding):
            tag, request = self._queue.popleft()
            if EXTENSION_OF.get(request.type) not in (None, *self.extensions):
                self._on_failure(tag, False)
                continue
            self._outstanding.append((tag, request.type, now))
            data.append(self._encode(request))
        return b"".join(data)

    async def _watch(self) -> NoReturn:
        """End the connection when the server has been silent for too long, or was given up."""
        while True:
            now, timeout_s = trio.current_time(), self.answer_timeout_s
            if self._failures:  # it may be too short for this path: every connection would end by it
                timeout_s = self._config.timeout_s
            since = now if self.silent_since is None else self.silent_since
            if now >= since + timeout_s:
                raise UnreachableError(f"no answer within {timeout_s:g} s")
            with trio.move_on_at(since + timeout_s):
                await self._given_up.wait()
                raise UnreachableError(self._why)

    async def _receive_all(self, stream: trio.abc.Stream, leftover: bytes) -> NoReturn:
        decoder = ResponseDecoder()
        decoder.receive_data(leftover)
        heard = self.heard
        while True:
            data = await stream.receive_some(decoder.receive_bytes)
            if not data:
                decoder.receive_eof()
                server_id = self._config.server_id
                refused = server_id is not None and self._outstanding and self.heard == heard
                hint = (
                    f"does this address lead to member {server_id}? its log says why it refuses"
                    if refused
                    else ""
                )
                raise UnreachableError("the peer closed the connection", hint)
            decoder.receive_data(data)
            now = trio.current_time()
            try:
                while (response := decoder.next_message(hinted=self._is_hinted())) is not None:
                    self._take(response, now)
            finally:
                self._on_received()

    def _is_hinted(self) -> bool:
        """Whether the next answer has a hint if it is a refusal: the extension is in force (D5)."""
        asked = self._outstanding[0][1] if self._outstanding else None
        return asked is MessageType.CLIENT_REQUEST and LEADER_HINT in self.extensions

    def _take(self, response: Response, now: float) -> None:
        if not self._outstanding:
            raise RemoteProtocolError("an answer to nothing", response.type.name)
        tag, kind, sent = self._outstanding[0]
        expected = (
            MessageType.APPEND_ENTRIES_RESPONSE
            if kind is MessageType.CLIENT_REQUEST
            else MessageType(kind + 1)
        )
        if response.type is not expected:
            raise RemoteProtocolError(f"{response.type.name} answers {kind.name}")
        if self._config.server_id not in (None, response.source):
            raise RemoteProtocolError(f"member {self._config.server_id} answers as {response.source}")
        self._outstanding.popleft()
        if self._queue:
            self._wake()  # a request may have waited for this answer
        self._failures = 0  # not earlier: a server may accept logins and close, again and again
        self.heard = now
        self.rtt_s = now - sent
        self.least_rtt_s = min(self.least_rtt_s, self.rtt_s)
        self._on_answer(tag, response)


class _Call:
    """A request that waits for its answer. A task waits by ``task`` and not by an event, which would cost
    twice as much."""

    __slots__ = ("deadline", "done", "is_ended", "is_late", "response", "sent", "task", "timer_at")

    def __init__(self, deadline: float, done: Callable[[Response | None, bool], None] | None = None) -> None:
        self.deadline = self.timer_at = deadline  # it is looked at then, sooner if it is not sent yet
        self.done = done
        self.task: trio.lowlevel.Task | None = None
        self.response: Response | None = None
        self.sent = self.is_late = self.is_ended = False

    def end(self, response: Response | None, sent: bool) -> None:
        """The answer came; None: the request failed, and ``sent`` says whether the server may have it."""
        self.is_ended, self.response, self.sent = True, response, sent
        if self.task is not None:
            trio.lowlevel.reschedule(self.task)
        elif self.done is not None:
            self.done(response, sent)

    async def wait(self) -> None:
        """Return when it has ended."""
        self.task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, raise_cancel: object) -> trio.lowlevel.Abort:
        self.task = None  # Trio wakes it; an answer that comes first must not do so again
        return trio.lowlevel.Abort.SUCCEEDED


class RpcClient:
    """Requests over a `Link`, each awaited by itself. ``unsent_timeout_s``: how long `call` waits for a
    connection that is not up. The link goes on connecting."""

    def __init__(self, config: LinkConfig, *, unsent_timeout_s: float = math.inf) -> None:
        self._unsent_timeout_s = unsent_timeout_s
        self._calls: dict[int, _Call] = {}
        self._timer = trio.CancelScope()
        self._timer_at = math.inf  # never later than the deadline of a call
        self._next_tag = 0
        self._error: Exception | None = None
        self._link = Link(
            config, on_answer=self._on_answer, on_failure=self._on_failure, on_change=self._on_change
        )

    @property
    def connected(self) -> bool:
        """Whether the connection is up."""
        return self._link.connected

    @property
    def has_handshake(self) -> bool:
        """Whether the connection, or the last one, had a handshake."""
        return self._link.has_handshake

    @property
    def silent_since(self) -> float | None:
        """As of `Link`."""
        return self._link.silent_since

    @property
    def least_rtt_s(self) -> float:
        """The quickest answer so far, in seconds; infinite before the first one."""
        return self._link.least_rtt_s

    def give_up(self, why: str) -> None:
        """As of `Link`."""
        self._link.give_up(why)

    async def run(self) -> NoReturn:
        """Keep the connection up until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_deadlines)
            await self._link.run()
        raise AssertionError("unreachable: the link runs until cancelled")

    def start(self, request: Request, done: Callable[[Response | None, bool], None]) -> int:
        """Send a request. ``done(answer, sent)`` is called once, perhaps before this returns. If there is no
        answer, ``sent`` says whether the server may have received it. Returns the request's tag."""
        return self._start(request, _Call(math.inf, done))

    def _start(self, request: Request, call: _Call) -> int:
        self._next_tag = tag = self._next_tag + 1
        self._calls[tag] = call
        self._link.send(tag, request)
        return tag

    async def call(self, request: Request, deadline: float = math.inf) -> Response:
        """Send a request and wait for its answer until ``deadline``, on Trio's clock.

        Raises `OutcomeUnknown`: sent, but not answered; `trio.TooSlowError`: sent, and neither answered nor
        failed by then. If the request was certainly not sent, raises the connection's error:
        `TransportError`, `AuthError`, `RemoteProtocolError`. Cancelled or too slow: the request may or may
        not take effect.
        """
        call = _Call(deadline)
        if not self._link.connected:
            call.timer_at = min(deadline, trio.current_time() + self._unsent_timeout_s)
        tag = self._start(request, call)
        if call.timer_at < self._timer_at:
            self._timer_at = self._timer.deadline = call.timer_at
        if call.is_ended:
            await trio.lowlevel.checkpoint()
        else:
            try:
                await call.wait()
            finally:
                self._calls.pop(tag, None)
        if call.response is not None:
            return call.response
        if call.is_late:
            if call.sent:
                raise trio.TooSlowError
            raise UnreachableError("not sent in time")
        if call.sent:
            raise OutcomeUnknown(f"the connection broke before the answer came: {self._error}")
        if isinstance(self._error, GarlicFarmError):
            raise self._error
        raise UnreachableError(f"not connected: {self._error}")

    async def _watch_deadlines(self) -> NoReturn:
        """End the calls whose deadline has passed, and those that were not sent in time. A timer per call
        would cost more than the call."""
        while True:
            self._timer_at = min((call.timer_at for call in self._calls.values()), default=math.inf)
            with trio.CancelScope(deadline=self._timer_at) as self._timer:
                await trio.sleep_forever()
            now = trio.current_time()
            for tag in [tag for tag, call in self._calls.items() if call.timer_at <= now]:
                call = self._calls[tag]
                is_sent = not self._link.withdraw(tag)
                if is_sent and now < call.deadline:
                    call.timer_at = call.deadline
                else:
                    del self._calls[tag]
                    call.is_late = True
                    call.end(None, is_sent)

    def _on_answer(self, tag: int, response: Response) -> None:
        if call := self._calls.pop(tag, None):
            call.end(response, True)

    def _on_failure(self, tag: int, sent: bool) -> None:
        if call := self._calls.pop(tag, None):
            call.end(None, sent)

    def _on_change(self, error: Exception | None) -> None:
        self._error = error
