"""The handshake on Trio streams: `initiate` and `respond` drive `garlicfarm.http.upgrade`.

`respond` is the one place where strangers can cost us something; `Guard` bounds that (D3). What a bad
peer does ends in `Guard.on_rejected` and a closed stream, never in an exception.
"""

from __future__ import annotations

import base64
import ipaddress
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from garlicfarm.errors import TransportError
from garlicfarm.http.digest import ChallengeCache
from garlicfarm.http.upgrade import Accepted, Gate, Initiator, Rejected, Responder
from garlicfarm.transport import Endpoint, Peer, Transport

__all__ = ["Established", "Gate", "Guard", "dial_plain", "initiate", "respond", "without_handshake"]

_CHUNK = 4096
_LINGER_S = 1.0
_LINGER_BYTES = 65536
_FIRST_DELAY_S = 0.25
_FORGIVEN_AFTER_S = 900.0
_REMEMBERED_ADDRESSES = 1024


@dataclass(frozen=True, slots=True)
class Established:
    """A stream that carries Raft from here on; it belongs to the caller.

    ``user`` is who logged in, "" where nobody had to. ``farm_id`` and ``leader`` are what the peer sent,
    None if it did not. ``leftover`` are bytes that already arrived and come before whatever the stream still
    brings.
    """

    stream: trio.abc.Stream
    farm: str
    user: str
    extensions: frozenset[str]
    farm_id: bytes | None
    leader: tuple[int, str] | None
    leftover: bytes


def without_handshake(stream: trio.abc.Stream, farm: str) -> Established:
    """A stream of a transport that has no handshake: the proposal's messages, and nothing else."""
    return Established(stream, farm, "", frozenset(), None, None, b"")


async def dial_plain(transport: Transport, endpoint: Endpoint, farm: str) -> Established:
    """Open a stream where there is no handshake.

    :raises TransportError: ``endpoint`` is not on loopback, where alone this may be; or from the transport.

    Cancelled: leaves nothing open.
    """
    if not endpoint.is_loopback:
        wrong = f"{endpoint} is not dialled: {endpoint.scheme} has no handshake"
        raise TransportError(wrong, "it is for loopback only; elsewhere use a tunnel, or another transport")
    return without_handshake(await transport.open_stream(endpoint), farm)


def _established(stream: trio.abc.Stream, accepted: Accepted) -> Established:
    return Established(
        stream=stream,
        farm=accepted.farm,
        user=accepted.user,
        extensions=accepted.extensions,
        farm_id=accepted.farm_id,
        leader=accepted.leader,
        leftover=accepted.leftover,
    )


async def initiate(
    open_stream: Callable[[], Awaitable[trio.abc.Stream]],
    *,
    host: str,
    farm: str,
    user: str,
    password: str,
    cache: ChallengeCache,
    farm_id: bytes | None = None,
    extensions: Mapping[str, str] | None = None,
    proxied: bool = False,
) -> Established:
    """Log in to a farm: one stream with a cached challenge that still holds, else two.

    Arguments are those of `Initiator`; ``proxied``: send a WebSocket's key for the proxy before the server
    (D4). The deadline is the caller's.

    :returns: the open stream; all others are closed, also when this raises.
    :raises AuthError: wrong password, or a server that cannot prove that it knows it.
    :raises RemoteProtocolError: no such farm there, another farm, or not this protocol.
    :raises TransportError: from ``open_stream``, or the peer went away.

    Cancelled: closes what it opened; the server may or may not have let us in.

    Source: protocol page §3.
    """
    initiator = Initiator(
        host=host,
        farm=farm,
        user=user,
        password=password,
        cache=cache,
        farm_id=farm_id,
        extensions=extensions,
    )
    while True:
        stream = await open_stream()
        accepted: Accepted | None = None
        try:
            key = base64.b64encode(secrets.token_bytes(16)).decode() if proxied else ""
            await stream.send_all(initiator.request(secrets.token_hex(16), key))
            verdict = None
            while verdict is None:
                data = await stream.receive_some(_CHUNK)
                if not data:
                    raise _gone(host)
                verdict = initiator.receive(bytes(data))
            if isinstance(verdict, Accepted):
                accepted = verdict
                return _established(stream, accepted)
        except trio.BrokenResourceError as error:
            raise _gone(host) from error
        finally:
            if accepted is None:
                await trio.aclose_forcefully(stream)


def _gone(host: str) -> TransportError:
    return TransportError(
        f"{host} closed the connection during the handshake", "it may be busy; try again later"
    )


class Guard:
    """What strangers may cost one node (D3): sockets, time, and guesses.

    :param deadline_s: for a whole handshake, with the TLS handshake where that is still to come.
    :param per_address: unauthenticated sockets at one time from one address (IPv6: one /64).
    :param total: unauthenticated sockets at one time; one more, and the oldest is closed.
    :param longest_delay_s: of the answer to a wrong password. Whoever gave it by mistake should hear so
        before it gives up.
    :param on_rejected: told once of every connection that is not let in, before it is answered, with
        a fixed word: those of `Rejected`, or busy, timeout, broken. It must not raise. ``challenge`` is
        the ordinary first half of a login, and ``stale`` costs an honest peer one more stream.

    Wrong passwords delay their answer, twice as long each time from the same address: with all its sockets
    in use, it guesses ``per_address`` times in the longest delay. A peer whose address is not its own
    (``address_is_peer`` False) is bounded by ``total`` and the first delay alone.
    """

    def __init__(
        self,
        *,
        deadline_s: float = 10.0,
        per_address: int = 16,
        total: int = 256,
        longest_delay_s: float = 5.0,
        on_rejected: Callable[[Peer, str], None] = lambda peer, reason: None,
    ) -> None:
        self.deadline_s = deadline_s
        self.on_rejected = on_rejected
        self._per_address = per_address
        self._total = total
        self._longest_delay_s = longest_delay_s
        self._sockets: Counter[str] = Counter()
        self._admitted: dict[trio.CancelScope, None] = {}  # the oldest first
        self._failures: dict[str, tuple[int, float]] = {}

    @contextmanager
    def admit(self, peer: Peer) -> Iterator[bool]:
        """Count an unauthenticated socket for as long as the context lasts; False: there are too many.

        Too many in all end the context of the oldest: whoever keeps others out, by many addresses or through
        a tunnel, has to open all of them anew in the time that a login takes.
        """
        bucket = _bucket(peer)
        if peer.address_is_peer and self._sockets[bucket] >= self._per_address:
            yield False
            return
        if len(self._admitted) >= self._total:
            oldest = next(iter(self._admitted))
            del self._admitted[oldest]
            oldest.cancel()
        self._sockets[bucket] += 1
        with trio.CancelScope() as scope:
            self._admitted[scope] = None
            try:
                yield True
            finally:
                self._admitted.pop(scope, None)
                self._sockets[bucket] -= 1
                if not self._sockets[bucket]:
                    del self._sockets[bucket]

    def failed(self, peer: Peer) -> float:
        """Count a wrong password; returns after how many seconds to answer it."""
        if not peer.address_is_peer:
            return _FIRST_DELAY_S
        bucket = _bucket(peer)
        now_s = trio.current_time()
        count, last_s = self._failures.pop(bucket, (0, now_s))
        count = 1 if now_s - last_s > _FORGIVEN_AFTER_S else count + 1
        self._failures[bucket] = (count, now_s)
        if len(self._failures) > _REMEMBERED_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        return min(_FIRST_DELAY_S * 2.0 ** min(count - 1, 30), self._longest_delay_s)


def _bucket(peer: Peer) -> str:
    """What shares a limit with this peer: one IPv4 address, or one IPv6 /64, which one host can own."""
    try:
        address = ipaddress.ip_address(peer.address)
    except ValueError:
        return peer.address
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(int(address) >> 64)
    return str(getattr(address, "ipv4_mapped", None) or address)


async def respond(
    stream: trio.abc.Stream, gates: Mapping[str, Gate], guard: Guard, peer: Peer
) -> Established | None:
    """Take one incoming connection through the handshake, within the guard's limits.

    :returns: None if the peer was not let in: it was answered, ``guard.on_rejected`` was told, and
        ``stream`` is closed.
    :raises ConfigError: from a lookup, if the users file broke (the operator's fault).

    Nothing that a peer does raises. Cancelled, or raising: ``stream`` is closed.

    Source: protocol page §3, D3.
    """
    established: Established | None = None
    reason = "busy"  # what is still to be reported
    with guard.admit(peer) as admitted:
        try:
            if admitted:
                with trio.move_on_after(guard.deadline_s) as deadline:
                    verdict = await _judge(stream, gates)
                    if isinstance(verdict, Rejected):
                        reason = ""
                        guard.on_rejected(peer, verdict.reason)
                        delay_s = guard.failed(peer) if verdict.reason == "password" else 0.0
                        await _refuse(stream, verdict, delay_s)
                    else:
                        await stream.send_all(verdict.reply)
                        established = _established(stream, verdict)
                if deadline.cancelled_caught and reason:
                    reason = "timeout"
        except trio.BrokenResourceError:
            reason = "broken" if reason else ""
        finally:
            if established is None:
                await trio.aclose_forcefully(stream)
    if established is None and reason:
        guard.on_rejected(peer, reason)
    return established


async def _judge(stream: trio.abc.Stream, gates: Mapping[str, Gate]) -> Accepted | Rejected:
    responder = Responder(gates)
    verdict = None
    while verdict is None:
        data = await stream.receive_some(_CHUNK)
        verdict = responder.receive(bytes(data), trio.current_time(), secrets.token_bytes(16))
    return verdict


async def _refuse(stream: trio.abc.Stream, verdict: Rejected, delay_s: float) -> None:
    await trio.sleep(delay_s)
    if verdict.reply:
        await stream.send_all(verdict.reply)
    if verdict.pending:
        # Closing over unread bytes resets the connection, and our answer with it.
        left = _LINGER_BYTES
        with trio.move_on_after(_LINGER_S):
            while left > 0 and (data := await stream.receive_some(_CHUNK)):
                left -= len(data)
    await stream.aclose()
