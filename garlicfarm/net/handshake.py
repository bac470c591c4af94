"""The handshake on Trio streams: `initiate` and `respond` drive `garlicfarm.http.upgrade`.

Only `respond` spends resources on strangers, and `HandshakeLimiter` bounds them (D3). A peer that misbehaves
is reported to `HandshakeLimiter.on_rejected` and its stream is closed; it never causes an exception.
"""

from __future__ import annotations

import base64
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from garlicfarm.credentials.login_attempts import LONGEST_DELAY_S, LoginAttempts
from garlicfarm.errors import TransportError
from garlicfarm.http.digest import ChallengeCache, Refused, Verified
from garlicfarm.http.upgrade import Accepted, FarmCredentials, Initiator, Rejected, Responder, Verifier
from garlicfarm.levels import SAYS_NOTHING, Program
from garlicfarm.net.admission import Admission
from garlicfarm.transport import AdmissionSlot, Endpoint, Peer, Stage, Transport

_CHUNK = 4096
_LINGER_S = 1.0
_LINGER_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Established:
    """A stream that carries Raft from here on; it belongs to the caller.

    ``user`` logged in, "" if the transport has no login. ``farm_id`` and ``leader`` are what the peer sent,
    None if it sent none. ``leftover`` are bytes that arrived already and precede those of the stream.
    ``program``: what it says of itself. ``told``: on the side that dialled, the time that the peer told,
    and this node's wall clock before it was asked and after it had answered; ms since 1970. None: it told
    none.
    """

    stream: trio.abc.Stream
    farm: str
    user: str
    extensions: frozenset[str]
    farm_id: bytes | None
    leader: tuple[int, str] | None
    leftover: bytes
    program: Program = SAYS_NOTHING
    told: tuple[int, int, int] | None = None


def without_handshake(stream: trio.abc.Stream, farm: str) -> Established:
    """A stream of a transport without a handshake: it carries only the proposal's messages."""
    return Established(stream, farm, "", frozenset(), None, None, b"")


def _established(stream: trio.abc.Stream, accepted: Accepted, asked_ms: int = 0) -> Established:
    date_ms = accepted.date_ms
    return Established(
        stream=stream,
        farm=accepted.farm,
        user=accepted.user,
        extensions=accepted.extensions,
        farm_id=accepted.farm_id,
        leader=accepted.leader,
        leftover=accepted.leftover,
        program=accepted.program,
        told=None if date_ms is None else (date_ms, asked_ms, wall_ms()),
    )


def wall_ms() -> int:
    """This node's wall clock, ms since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class DialCredentials:
    """The login of a dialler: its identity and the farm; see `garlicfarm.http.upgrade.Initiator`.

    ``farm_id``: the farm that is meant, None: any of that name. ``extensions``: what is offered, name and
    version. ``challenges`` are remembered from one stream to the next. ``program``: what it says of itself
    now, None: nothing.
    """

    farm: str
    user: str
    password: str = field(repr=False)
    challenges: ChallengeCache = field(repr=False)
    farm_id: bytes | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)
    program: Callable[[], Program | None] = lambda: None


async def initiate(
    open_stream: Callable[[], Awaitable[trio.abc.Stream]],
    credentials: DialCredentials,
    *,
    host: str,
    proxied: bool = False,
) -> Established:
    """Log in to a farm: over one stream if a cached challenge is still valid, else over two.

    ``host``: as for `Initiator`. ``proxied``: send a WebSocket key for the proxy in front of the server (D4).
    The caller sets the deadline.

    :returns: the open stream. All others are closed, also when this raises.
    :raises AuthError: wrong password, or a server that cannot prove that it knows it.
    :raises RemoteProtocolError: no such farm there, another farm, or another protocol.
    :raises TransportError: from ``open_stream``, or the peer closed the connection.

    Cancelled: closes what it opened; the server may or may not have let us in.

    Source: docs/reference/protocol.md, "Handshake".
    """
    initiator = Initiator(
        host=host,
        farm=credentials.farm,
        user=credentials.user,
        password=credentials.password,
        cache=credentials.challenges,
        farm_id=credentials.farm_id,
        extensions=credentials.extensions,
        program=credentials.program(),
    )
    while True:
        stream = await open_stream()
        accepted: Accepted | None = None
        try:
            key = base64.b64encode(secrets.token_bytes(16)).decode() if proxied else ""
            asked_ms = wall_ms()
            await stream.send_all(initiator.request(secrets.token_hex(16), key))
            verdict = None
            while verdict is None:
                data = await stream.receive_some(_CHUNK)
                if not data:
                    raise _gone(host)
                verdict = initiator.receive(bytes(data))
            if isinstance(verdict, Accepted):
                accepted = verdict
                return _established(stream, accepted, asked_ms)
        except trio.BrokenResourceError as error:
            raise _gone(host) from error
        finally:
            if accepted is None:
                await trio.aclose_forcefully(stream)


async def dial(transport: Transport, endpoint: Endpoint, credentials: DialCredentials) -> Established:
    """Open a stream to the member at ``endpoint``, and log in where ``transport`` has a handshake. The
    deadline is the caller's.

    :raises TransportError: from the transport, or the peer went away; or there is no handshake, and
        ``endpoint`` is not on loopback, where alone that is allowed.
    :raises AuthError, RemoteProtocolError: as `initiate`.

    Cancelled: leaves nothing open.
    """
    if not transport.handshake:
        if not endpoint.is_loopback:
            wrong = f"{endpoint} is not dialled: {endpoint.scheme} has no handshake"
            raise TransportError(
                wrong, "it is for loopback only; elsewhere use a tunnel, or another transport"
            )
        return without_handshake(await transport.open_stream(endpoint), credentials.farm)
    open_stream = partial(transport.open_stream, endpoint)
    return await initiate(open_stream, credentials, host=endpoint.authority, proxied=endpoint.proxied)


def _gone(host: str) -> TransportError:
    return TransportError(
        f"{host} closed the connection during the handshake", "it may be busy; try again later"
    )


class HandshakeLimiter:
    """Limits what strangers cost one listener (D3): sockets, time, and password guesses.

    :param deadline_s: bounds the whole handshake, from the end of the transport's own handshake.
    :param admission: the slots of connections that have not logged in; listeners may share them.
    :param longest_delay_s: of the answer to a wrong password. An honest peer should get the answer before it
        gives up.
    :param on_rejected: called once for every connection that is not let in, before the answer, with a fixed
        word: those of `Rejected`, or too-soon, busy, timeout, broken. It must not raise. ``challenge`` is the
        ordinary first half of a login; ``stale`` costs an honest peer one more stream.
    """

    def __init__(
        self,
        *,
        deadline_s: float = 10.0,
        admission: Admission | None = None,
        longest_delay_s: float = LONGEST_DELAY_S,
        on_rejected: Callable[[Peer, str], None] = lambda peer, reason: None,
    ) -> None:
        self.deadline_s = deadline_s
        self.admission = Admission() if admission is None else admission
        self.on_rejected = on_rejected
        self.attempts = LoginAttempts(longest_delay_s)

    def slot(self, peer: Peer) -> AbstractContextManager[AdmissionSlot]:
        """The slot that the transport took for this connection, else a new one."""
        if peer.slot is not None:
            return nullcontext(peer.slot)
        return self.admission.admit(peer, lambda peer: self.on_rejected(peer, "busy"))


class _LimitedVerifier:
    """The verifier of one farm, for one connection. ``wait_s`` is how long to hold the answer. While a delay
    for this user name is running (``is_too_soon``), it is the rest of it, and nothing is verified."""

    def __init__(self, verifier: Verifier, attempts: LoginAttempts, peer: Peer) -> None:
        self._verifier = verifier
        self._attempts = attempts
        self._peer = peer
        self.is_too_soon = False
        self.wait_s = 0.0

    def challenges(self, now_s: float, random: bytes, *, stale: bool = False) -> list[str]:
        return self._verifier.challenges(now_s, random, stale=stale)

    def verify(self, method: str, target: str, authorization: str | None, now_s: float) -> Verified | Refused:
        verdict, self.wait_s = self._attempts.judge(
            self._verifier, self._peer, method, target, authorization, now_s
        )
        self.is_too_soon = verdict is None
        return verdict or Refused()


async def respond(
    stream: trio.abc.Stream, credentials: Mapping[str, FarmCredentials], limiter: HandshakeLimiter, peer: Peer
) -> Established | None:
    """Take one incoming connection through the handshake, within the limiter's limits.

    :returns: None if the peer was not let in. Then it was answered, ``limiter.on_rejected`` was called, and
        ``stream`` is closed.
    :raises ConfigError: from a lookup, if the users file is damaged (the operator's fault).

    Nothing that a peer does raises. Cancelled, or raising: ``stream`` is closed.

    Source: docs/reference/protocol.md, "Handshake"; D3 (strangers learn nothing, and cost little).
    """
    established: Established | None = None
    with limiter.slot(peer) as slot:
        slot.advance(Stage.STREAM)
        reason = "timeout"  # the rejection that is yet to be reported
        try:
            with trio.move_on_after(limiter.deadline_s):
                verdict, hold_s = await _judge(stream, credentials, limiter.attempts, peer, slot)
                if isinstance(verdict, Rejected):
                    reason = ""
                    limiter.on_rejected(peer, verdict.reason)
                    await _refuse(stream, verdict, hold_s, slot)
                else:
                    slot.leave()
                    await stream.send_all(verdict.reply)
                    established, reason = _established(stream, verdict), ""
        except trio.BrokenResourceError:
            reason = reason and "broken"
        finally:
            if established is None:
                await trio.aclose_forcefully(stream)
        if reason:
            limiter.on_rejected(peer, reason)
    return established


async def _judge(
    stream: trio.abc.Stream,
    credentials: Mapping[str, FarmCredentials],
    attempts: LoginAttempts,
    peer: Peer,
    slot: AdmissionSlot,
) -> tuple[Accepted | Rejected, float]:
    """The verdict, and how many seconds to hold its answer."""
    limited = {name: _LimitedVerifier(farm.verifier, attempts, peer) for name, farm in credentials.items()}
    responder = Responder({name: replace(farm, verifier=limited[name]) for name, farm in credentials.items()})
    verdict = None
    while verdict is None:
        data = await stream.receive_some(_CHUNK)
        slot.advance(Stage.REQUEST)
        verdict = responder.receive(bytes(data), trio.current_time(), secrets.token_bytes(16))
    for each in limited.values():
        if each.is_too_soon:
            return Rejected("too-soon", _too_soon(each.wait_s)), 0.0
        if each.wait_s:
            return verdict, each.wait_s
    return verdict, 0.0


def _too_soon(wait_s: float) -> bytes:
    """Source: RFC 6585 §4."""
    lines = (
        "HTTP/1.1 429 Too Many Requests",
        "Content-Type: text/plain",
        "Content-Length: 18",
        f"Retry-After: {math.ceil(wait_s)}",
        "Connection: close",
        "",
        "Too Many Requests\n",
    )
    return "\r\n".join(lines).encode()


async def _refuse(stream: trio.abc.Stream, verdict: Rejected, hold_s: float, slot: AdmissionSlot) -> None:
    if hold_s:
        slot.advance(Stage.CLOSING)
        await trio.sleep(hold_s)
    if verdict.reply:
        await stream.send_all(verdict.reply)
    slot.advance(Stage.CLOSING)
    if verdict.pending:
        # Closing with unread bytes resets the connection, and the peer may lose our answer.
        left = _LINGER_BYTES
        with trio.move_on_after(_LINGER_S):
            while left > 0 and (data := await stream.receive_some(_CHUNK)):
                left -= len(data)
    await stream.aclose()
