"""One connection to a router's I2CP: what can go wrong with it becomes one sentence, a `PublisherError`."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address

import msgspec
import trio

from garlicfarm.credentials.router_login import RouterLogin
from garlicfarm.errors import ConfigError, PublisherError, RemoteProtocolError, cause_of
from garlicfarm.i2p.i2cp import (
    PROTOCOL_BYTE,
    BandwidthLimits,
    Disconnect,
    Message,
    MessageDecoder,
    SetDate,
    encode_get_bandwidth_limits,
    encode_get_date,
)
from garlicfarm.i2p.router_kind import KindMemory, RouterKind
from garlicfarm.publisher import ClockReading

ANSWER_TIMEOUT_S = 10.0
MAX_CLOCK_DIFFERENCE_MS = 600_000
"""Floodfills of i2pd refuse what is dated 12 minutes from their own clocks."""
_ML_KEM_SINCE = (9, 67)
_MAX_DATE_MS = (1 << 63) - 1

VERSION = "0.9.57"
GET_DATE = encode_get_date(VERSION)


class RouterAddress(msgspec.Struct, frozen=True):
    """Where a router's I2CP is: ``text``, for errors, how to ``connect`` to it, the ``login`` that it asks
    for, and what is known of its ``kind``."""

    text: str
    connect: Callable[[], Awaitable[trio.abc.Stream]]
    login: RouterLogin | None = None
    kind: KindMemory = msgspec.field(default_factory=KindMemory)


class Connection:
    """Messages over a stream. ``router``: its address, for errors. ``now_ms``: reads this node's wall clock,
    ms since 1970. ``date``: the router's newest answer to GetDate; ``version``: of its I2P. ``limits``: its
    answer to GetBandwidthLimits, None where it gave none; ``kind``: of the router. Those three by `greet`.
    `send` and `receive` may be in use at the same time, by one task each."""

    def __init__(self, stream: trio.abc.Stream, router: RouterAddress, now_ms: Callable[[], int]) -> None:
        self._stream = stream
        self.router = router.text
        self._greeting = GET_DATE if router.login is None else encode_get_date(VERSION, _words(router.login))
        self.date: ClockReading | None = None
        self.version = ""
        self.limits: BandwidthLimits | None = None
        self.kind: RouterKind = "i2pd"
        self._memory = router.kind
        self._now_ms = now_ms
        self._asked_ms: deque[int] = deque()  # for the date, unanswered: when
        self._decoder = MessageDecoder()

    async def send(self, *messages: bytes) -> None:
        """Raises `PublisherError`: the connection is closed, or the router reads nothing for 10 s. Cancelled:
        some, all or none was sent, and the connection cannot be used again."""
        self._asked_ms.extend(self._now_ms() for each in messages if each in (GET_DATE, self._greeting))
        try:
            with trio.fail_after(ANSWER_TIMEOUT_S):
                await self._stream.send_all(b"".join(messages))
        except trio.TooSlowError:
            raise self.silence() from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise self._closed() from None

    async def receive(self) -> Message:
        """The next message. Raises `PublisherError`: the connection is closed, or the bytes are not I2CP.
        Cancelled: nothing is lost."""
        try:
            while (message := self._decoder.next_message()) is None:
                try:
                    data = await self._stream.receive_some()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    raise self._closed() from None
                if not data:
                    raise self._closed()
                self._decoder.receive_data(bytes(data))
        except RemoteProtocolError as error:
            raise PublisherError(f"the server at {self.router} does not speak I2CP: {error}") from None
        if isinstance(message, Disconnect):
            self._memory.on_disconnect(self.version)
            raise PublisherError(
                f"the router at {self.router} closes the connection: {message.reason!r:.200}"
            )
        if isinstance(message, SetDate) and self._asked_ms:
            self.date = ClockReading(
                date_ms=min(message.date_ms, _MAX_DATE_MS),
                asked_ms=self._asked_ms.popleft(),
                answered_ms=self._now_ms(),
            )
        return message

    async def greet(self) -> int:
        """Begin, compare clocks, and find out the kind of the router. Returns its clock, ms since 1970.
        Raises `PublisherError`."""
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            await self.send(PROTOCOL_BYTE, self._greeting)
            message = await self.receive()
            if not isinstance(message, SetDate):
                raise PublisherError(
                    f"the server at {self.router} does not speak I2CP: its answer has no date"
                )
            self.check_clock(message)
            self.version = message.version
            # A router answers in order: the second date shows that it has nothing to say of its limits.
            await self.send(encode_get_bandwidth_limits(), GET_DATE)
            while not isinstance(message := await self.receive(), SetDate):
                if isinstance(message, BandwidthLimits):
                    self.limits = message
            self.kind = self._memory.kind(self.limits, self.version)
            return message.date_ms
        raise self.silence()

    def check_clock(self, message: SetDate) -> None:
        """Raises `PublisherError`: the router's clock is over 10 minutes from this node's."""
        ahead_ms = message.date_ms - self._now_ms()
        if abs(ahead_ms) > MAX_CLOCK_DIFFERENCE_MS:
            word = "ahead of" if ahead_ms > 0 else "behind"
            raise PublisherError(
                f"the clock of the router at {self.router} is {abs(ahead_ms) // 1000} s {word} this node's; "
                "correct the wrong one"
            )

    def silence(self, after_s: float = ANSWER_TIMEOUT_S) -> PublisherError:
        return PublisherError(f"I2CP at {self.router} has not answered for {after_s:.0f} s")

    def _closed(self) -> PublisherError:
        return PublisherError(f"the router at {self.router} has closed the connection")


@asynccontextmanager
async def open_connection(router: RouterAddress, now_ms: Callable[[], int]) -> AsyncIterator[Connection]:
    """A connection, closed at the end. ``now_ms``: see `Connection`. Raises `PublisherError`: nothing listens
    there."""
    try:
        with trio.fail_after(ANSWER_TIMEOUT_S):
            stream = await router.connect()
    except (OSError, trio.TooSlowError) as error:
        is_late = isinstance(error, trio.TooSlowError)
        text = f"no answer within {ANSWER_TIMEOUT_S:.0f} s" if is_late else cause_of(error)
        raise PublisherError(
            f"I2CP at {router.text} cannot be reached: {text}; is the router running, with I2CP enabled (in "
            "i2pd.conf: enabled = true of [i2cp])?"
        ) from None
    try:
        yield Connection(stream, router, now_ms)
    finally:
        await trio.aclose_forcefully(stream)


def parse_address(
    address: str, login: RouterLogin | None = None, kind: RouterKind | None = None
) -> RouterAddress:
    """From HOST:PORT. Raises `ConfigError`: not HOST:PORT, or not on loopback."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        is_loopback = host == "localhost" or ip_address(host).is_loopback
        number = int(port) if port.isascii() and port.isdigit() else 0
    except ValueError:
        is_loopback, number = False, 0
    if not is_loopback or not 1 <= number <= 65_535:
        raise ConfigError(
            [
                f"publisher i2cp: address is {address!r}; it must be HOST:PORT on loopback, such as "
                "127.0.0.1:7654: I2CP is neither encrypted nor authenticated"
            ]
        )
    return RouterAddress(address, partial(trio.open_tcp_stream, host, number), login, KindMemory(kind))


def has_ml_kem(version: str) -> bool:
    """Whether a router of this version of I2P, as ``0.9.67``, can have encryption types with ML-KEM. i2pd
    2.45 says its own version, ``2.45.1``."""
    found = re.fullmatch(r"0\.(\d{1,4})\.(\d{1,4})", version)
    return found is not None and (int(found[1]), int(found[2])) >= _ML_KEM_SINCE


def _words(login: RouterLogin) -> dict[str, str]:
    return {"i2cp.username": login.user, "i2cp.password": login.password}
