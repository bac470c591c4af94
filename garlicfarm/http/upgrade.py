"""The upgrade before a Raft stream, both sides, sans-I/O (docs/reference/protocol.md, section 3).

Theory of operation. A handshake takes one or two connections::

    initiator                                  responder
    request 1: GET target, Connection: close → 404 (any wrong path) or 401 with a challenge, close
    request 2: GET target, Upgrade, Digest   → 101 and then raw Raft bytes, or 401, close

An `Initiator` that has a cached challenge starts with request 2. Each side takes the bytes that its
stream received; it returns None until it can decide, then one verdict, and takes no more bytes (an
`Initiator` starts over with `Initiator.request` on a new stream). Bytes after the header block belong to
the Raft stream and are returned as ``leftover``.

Strangers must learn nothing (D3): the request line must name one of our farms exactly, the method must be
GET and there must be no body; if any of these is wrong, the response is the same 404. Errors of syntax and
size are checked before the path.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

import h11

from garlicfarm.errors import AuthError, LocalProtocolError, RemoteProtocolError
from garlicfarm.extensions import LEADER_HINT
from garlicfarm.http.digest import (
    Authorization,
    ChallengeCache,
    Refused,
    Verified,
    parse_header,
)
from garlicfarm.levels import Program, parse_program
from garlicfarm.names import FARM_NAME_RULE, is_farm_name

HEADER_LIMIT = 16384
"""The largest size of request line or status line and headers together, in bytes."""

_FARM_ID = re.compile(r"[0-9a-fA-F]{32}")
_LEADER = re.compile(r"([1-9][0-9]{0,9}) ([!-~]{1,1024})")
_DATE = re.compile(r"[0-9]{1,18}")
_ZONE = re.compile(r"%[^\]]*(?=\])")
_TLS = b"\x16\x03"
"""The first bytes of every TLS connection."""
_WEBSOCKET_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def farm_target(farm: str) -> str:
    """The path of a farm's Raft stream.

    :raises LocalProtocolError: that is not a farm's name (the caller's fault).

    Source: proposal 150, HTTP request 1.
    """
    if not is_farm_name(farm):
        raise LocalProtocolError(f"{farm!r} is not a farm's name: {FARM_NAME_RULE}")
    return f"/GarlicFarm/{farm}/1/websocket"


class Verifier(Protocol):
    """Checks credentials: a `DigestVerifier`, or a wrapper that limits how often one is used."""

    def challenges(self, now_s: float, random: bytes, *, stale: bool = False) -> list[str]: ...
    def verify(
        self, method: str, target: str, authorization: str | None, now_s: float
    ) -> Verified | Refused: ...


@dataclass(frozen=True, slots=True)
class FarmCredentials:
    """What a responder needs in order to admit peers to the farm ``name``.

    ``offered`` maps names of extensions to versions (D5). ``leader`` returns the current leader's id and
    endpoint, or None; it is called only for a peer with the extension ``leader-hint``. ``program``: what
    this side says of itself to those that logged in (D26), None: nothing. ``wall_ms``: what it tells them as
    the time, ms since 1970, None: nothing.
    """

    name: str
    farm_id: bytes
    verifier: Verifier
    offered: Mapping[str, str] = field(default_factory=dict)
    leader: Callable[[], tuple[int, str] | None] = lambda: None
    program: Callable[[], Program | None] = lambda: None
    wall_ms: Callable[[], int | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The handshake is done and the stream carries Raft.

    ``reply`` is what the responder sends first (empty on the initiator). ``user`` logged in.
    ``extensions`` are in force: both sides named them (D5). ``farm_id`` is what the peer sent, ``leader``
    the hint that the initiator received. ``leftover`` are Raft bytes that came with the header block.
    ``program``: what the peer says of itself. ``date_ms``: what the initiator was told as the time, ms since
    1970.
    """

    reply: bytes
    farm: str
    user: str
    extensions: frozenset[str]
    farm_id: bytes | None
    leader: tuple[int, str] | None
    leftover: bytes
    program: Program
    date_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The responder sends ``reply`` (possibly empty) and closes.

    ``reason`` is a fixed word: challenge, stale, password, not-found, bad-request, tls (on a port without
    TLS), too-large, no-upgrade, other-farm, closed. ``pending``: the peer may still be sending.
    """

    reason: str
    reply: bytes = b""
    pending: bool = False


@dataclass(frozen=True, slots=True)
class NewStream:
    """The initiator closes this stream and sends its next request on a new one."""


def _header(event: h11.Request | h11.Response | h11.InformationalResponse, name: bytes) -> str | None:
    """All values of a header, joined with commas; None if it was not sent."""
    values = [value.decode("latin-1") for key, value in event.headers if key == name]
    return ", ".join(values) if values else None


def _upgrades(event: h11.Request | h11.InformationalResponse) -> bool:
    upgrade = _header(event, b"upgrade") or ""
    return "websocket" in [word.strip().lower() for word in upgrade.split(",")]


def _agreed(ours: Mapping[str, str], theirs: str | None) -> dict[str, str]:
    """The extensions that both sides named in the same version (D5)."""
    pairs = (item.partition("=") for item in (theirs or "").split(","))
    named = {name.strip(): version.strip() for name, _, version in pairs}
    return {name: version for name, version in ours.items() if named.get(name) == version}


def _extensions_header(extensions: Mapping[str, str]) -> list[tuple[str, str]]:
    listed = ", ".join(f"{name}={version}" for name, version in extensions.items())
    return [("Garlic-Farm-Extensions", listed)] if listed else []


def _program_header(program: Program | None) -> list[tuple[str, str]]:
    return [] if program is None else [("Garlic-Farm-Program", program.header())]


class Responder:
    """One incoming connection, from its first byte to a verdict.

    :param credentials: of the farms behind this listener, by name.
    """

    def __init__(self, credentials: Mapping[str, FarmCredentials]) -> None:
        self._credentials = {farm_target(farm.name).encode(): farm for farm in credentials.values()}
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_LIMIT)
        self._received = 0
        self._start = b""

    def receive(self, data: bytes, now_s: float, random: bytes) -> Accepted | Rejected | None:
        """Take bytes from the peer (b"" = end of stream); None means that more are needed.

        :param now_s: the clock of the verifiers.
        :param random: 16 fresh random bytes, for a nonce.
        :returns: a verdict for any input; bytes of the peer raise nothing.

        Source: docs/reference/protocol.md, section 3.
        """
        self._received += len(data)
        self._start += data[: len(_TLS) - len(self._start)]
        self._http.receive_data(data)
        try:
            request = self._http.next_event()
            if request is h11.NEED_DATA:
                return None
            if not isinstance(request, h11.Request):
                return Rejected("closed")
            bodiless = isinstance(self._http.next_event(), h11.EndOfMessage)
        except h11.RemoteProtocolError as error:
            return self._broken(error.error_status_hint)
        # h11 limits only incomplete header blocks.
        if self._received - len(self._http.trailing_data[0]) > HEADER_LIMIT:
            return self._broken(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        farm = self._credentials.get(request.target)
        if farm is None or request.method != b"GET" or not bodiless:
            reply = self._answer(HTTPStatus.NOT_FOUND, head=request.method == b"HEAD")
            return Rejected("not-found", reply, pending=not bodiless or bool(self._http.trailing_data[0]))
        return self._enter(farm, request, now_s, random)

    def _enter(
        self, farm: FarmCredentials, request: h11.Request, now_s: float, random: bytes
    ) -> Accepted | Rejected:
        authorization = _header(request, b"authorization")
        verdict = farm.verifier.verify("GET", request.target.decode(), authorization, now_s)
        if isinstance(verdict, Refused):
            challenges = farm.verifier.challenges(now_s, random, stale=verdict.stale)
            reason = "stale" if verdict.stale else "password" if verdict.failed else "challenge"
            headers = [("WWW-Authenticate", challenge) for challenge in challenges]
            return Rejected(reason, self._answer(HTTPStatus.UNAUTHORIZED, headers))
        if not _upgrades(request):
            return Rejected(
                "no-upgrade", self._answer(HTTPStatus.UPGRADE_REQUIRED, [("Upgrade", "websocket")])
            )
        identity = [("Garlic-Farm-Id", farm.farm_id.hex())]
        theirs = _header(request, b"garlic-farm-id")
        if theirs is not None and theirs.lower() != farm.farm_id.hex():
            return Rejected("other-farm", self._answer(HTTPStatus.CONFLICT, identity))
        try:
            program = parse_program(_header(request, b"garlic-farm-program"))
        except ValueError:
            return Rejected("bad-request", self._answer(HTTPStatus.BAD_REQUEST))
        agreed = _agreed(farm.offered, _header(request, b"garlic-farm-extensions"))
        headers = [("Connection", "Upgrade"), ("Upgrade", "websocket")]
        key = _header(request, b"sec-websocket-key")
        if key:
            headers.append(("Sec-WebSocket-Accept", _websocket_accept(key)))
        headers += [
            ("Authentication-Info", verdict.authentication_info),
            *identity,
            *_extensions_header(agreed),
            *_program_header(farm.program()),
        ]
        wall_ms = farm.wall_ms()
        if wall_ms is not None:
            headers.append(("Garlic-Farm-Date", str(wall_ms)))
        leader = farm.leader() if LEADER_HINT in agreed else None
        hint = f"{leader[0]} {leader[1]}" if leader else ""
        if _LEADER.fullmatch(hint):
            headers.append(("Garlic-Farm-Leader", hint))
        reply = self._http.send(
            h11.InformationalResponse(
                status_code=101, reason=b"Switching Protocols", headers=_encoded(headers)
            )
        )
        return Accepted(
            reply=reply,
            farm=farm.name,
            user=verdict.user,
            extensions=frozenset(agreed),
            farm_id=None if theirs is None else farm.farm_id,
            leader=None,
            leftover=self._http.trailing_data[0],
            program=program,
        )

    def _broken(self, status: int) -> Rejected:
        too_large = status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        reason = "tls" if self._start == _TLS else "too-large" if too_large else "bad-request"
        return Rejected(reason, self._answer(status), pending=True)

    def _answer(self, status: int, headers: Sequence[tuple[str, str]] = (), *, head: bool = False) -> bytes:
        phrase = HTTPStatus(status).phrase.encode()
        body = phrase + b"\n"
        block = [
            ("Content-Type", "text/plain"),
            ("Content-Length", str(len(body))),
            *headers,
            ("Connection", "close"),
        ]
        reply = self._http.send(h11.Response(status_code=status, reason=phrase, headers=_encoded(block)))
        return reply if head else reply + self._http.send(h11.Data(data=body))


def _date(header: str | None) -> int | None:
    """None where it is missing, or no date: a peer's clock may show anything."""
    return int(header) if header is not None and _DATE.fullmatch(header) else None


def _websocket_accept(key: str) -> str:
    """The Sec-WebSocket-Accept for a key. Source: RFC 6455 §4.2.2."""
    digest = hashlib.sha1((key + _WEBSOCKET_GUID).encode(), usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def _encoded(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers]


def _host_header(host: str) -> str:
    """A host name (possibly not ASCII) or an address with a zone, in the form of a Host header.
    Source: RFC 3986 §3.2.2, RFC 6874 §4."""
    host = _ZONE.sub("", host)
    return "".join(c if c.isascii() else "".join(f"%{byte:02X}" for byte in c.encode()) for c in host)


class Initiator:
    """One login into a farm, over one or two outgoing connections.

    :param host: ``host:port`` as dialled, IPv6 in brackets; goes into the Host header and keys the cached
        challenge.
    :param farm: the CLUSTER of the path.
    :param user: a member's decimal id, or a client's name.
    :param password: never leaves this object.
    :param cache: challenges of earlier logins, shared by all of them; determines the algorithms in use.
    :param farm_id: 16 bytes, sent and compared with the peer's; None while unknown.
    :param extensions: offered extensions, name -> version (D5).
    :param program: what this side says of itself (D26); None: nothing.
    :raises LocalProtocolError: ``farm`` is not a valid name of a farm.
    """

    def __init__(
        self,
        *,
        host: str,
        farm: str,
        user: str,
        password: str,
        cache: ChallengeCache,
        farm_id: bytes | None = None,
        extensions: Mapping[str, str] | None = None,
        program: Program | None = None,
    ) -> None:
        self._host = host
        self._farm = farm
        self._target = farm_target(farm)
        self._user = user
        self._password = password
        self._cache = cache
        self._key = (host, farm, user)
        self._farm_id = farm_id
        self._extensions = dict(extensions or {})
        self._program = program
        self._streams = 0
        self._sent: Authorization | None = None
        self._websocket_key = ""
        self._http = h11.Connection(h11.CLIENT)

    def request(self, cnonce: str, websocket_key: str = "") -> bytes:
        """The bytes to send on a new stream: request 2 if a challenge is cached, else request 1.

        :param cnonce: fresh random text, for instance 32 hex digits.
        :param websocket_key: base64 of 16 fresh random bytes, if a proxy requires a complete WebSocket
            handshake (D4); sent in request 2, and the 101 must accept it.
        :raises LocalProtocolError: the user name cannot be sent in a header.

        Source: proposal 150, HTTP request 1 and 2.
        """
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEADER_LIMIT)
        self._streams += 1
        self._websocket_key = websocket_key
        self._sent = self._cache.authorization(
            self._key, method="GET", target=self._target, password=self._password, cnonce=cnonce
        )
        headers = [("Host", _host_header(self._host)), ("Cache-Control", "no-cache")]
        if self._sent is None:
            headers.append(("Connection", "close"))
        else:
            headers += [("Connection", "keep-alive, Upgrade"), ("Upgrade", "websocket")]
            if websocket_key:
                headers += [("Sec-WebSocket-Key", websocket_key), ("Sec-WebSocket-Version", "13")]
            headers.append(("Authorization", self._sent.header))
            headers += _extensions_header(self._extensions) + _program_header(self._program)
            if self._farm_id is not None:
                headers.append(("Garlic-Farm-Id", self._farm_id.hex()))
        request = h11.Request(method="GET", target=self._target, headers=_encoded(headers))
        return self._http.send(request) + self._http.send(h11.EndOfMessage())

    def receive(self, data: bytes) -> Accepted | NewStream | None:
        """Take bytes from the server (b"" = end of stream); None means that more are needed.

        :raises AuthError: wrong password, or the server could not prove that it knows it.
        :raises RemoteProtocolError: unknown path, another farm, or not this protocol.

        Source: docs/reference/protocol.md, section 3.
        """
        if not data:
            raise RemoteProtocolError("closed before it answered", self._where)
        self._http.receive_data(data)
        try:
            event = self._http.next_event()
            while isinstance(event, h11.InformationalResponse) and event.status_code != 101:
                event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            # Cut: the text may quote many of the peer's bytes.
            raise RemoteProtocolError(f"the answer is not HTTP: {str(error)[:120]}", self._where) from error
        if isinstance(event, h11.InformationalResponse):
            return self._switched(event)
        if not isinstance(event, h11.Response):
            return None
        if event.status_code == HTTPStatus.UNAUTHORIZED:
            return self._challenged(event)
        if event.status_code == HTTPStatus.NOT_FOUND:
            raise RemoteProtocolError(f"no farm at {self._target}: check its name", self._where)
        self._check_farm_id(event)
        raise RemoteProtocolError(f"answered {event.status_code} instead of 101", self._where)

    @property
    def _where(self) -> str:
        return f"handshake with {self._host}"

    def _challenged(self, event: h11.Response) -> NewStream:
        values = [value.decode("latin-1") for name, value in event.headers if name == b"www-authenticate"]
        new = self._cache.learn(self._key, values)
        used = None if self._sent is None else self._sent.challenge
        if self._streams == 1 and (
            used is None or new.stale or (new.realm, new.algorithm) != (used.realm, used.algorithm)
        ):
            return NewStream()
        if new.stale:
            raise RemoteProtocolError("the server rejects its own new nonce as stale", self._where)
        raise AuthError(f"{self._host} refused user {self._user!r}: unknown there, or the password is wrong")

    def _switched(self, event: h11.InformationalResponse) -> Accepted:
        if not _upgrades(event) or self._sent is None:
            raise RemoteProtocolError("101 for another protocol than websocket", self._where)
        info = parse_header(_header(event, b"authentication-info") or "")
        proof = info[0][1].get("rspauth") if info else None
        if proof is None:
            raise AuthError(
                f"{self._host} did not prove that it knows the password (no rspauth): "
                "no member of this farm answers there"
            )
        if not hmac.compare_digest(proof.encode(), self._sent.rspauth.encode()):
            raise AuthError(f"{self._host} does not know the password (wrong rspauth): this is not our peer")
        if self._websocket_key:
            accept = _header(event, b"sec-websocket-accept") or ""
            if not hmac.compare_digest(accept.encode(), _websocket_accept(self._websocket_key).encode()):
                what = "it does not accept the key that was sent for the proxy before it"
                raise RemoteProtocolError(f"Sec-WebSocket-Accept: {what}", self._where)
        agreed = _agreed(self._extensions, _header(event, b"garlic-farm-extensions"))
        try:
            program = parse_program(_header(event, b"garlic-farm-program"))
        except ValueError as error:
            raise RemoteProtocolError(str(error), self._where) from None
        return Accepted(
            reply=b"",
            farm=self._farm,
            user=self._user,
            extensions=frozenset(agreed),
            farm_id=self._check_farm_id(event),
            leader=self._leader(event) if LEADER_HINT in agreed else None,
            leftover=self._http.trailing_data[0],
            program=program,
            date_ms=_date(_header(event, b"garlic-farm-date")),
        )

    def _check_farm_id(self, event: h11.InformationalResponse | h11.Response) -> bytes | None:
        theirs = _header(event, b"garlic-farm-id")
        if theirs is None:
            return None
        if _FARM_ID.fullmatch(theirs) is None:
            raise RemoteProtocolError("a farm id is 32 hex digits", "Garlic-Farm-Id")
        if self._farm_id is not None and bytes.fromhex(theirs) != self._farm_id:
            raise RemoteProtocolError(
                f"its farm id is {theirs}, not {self._farm_id.hex()}: it belongs to another farm", self._where
            )
        return bytes.fromhex(theirs)

    def _leader(self, event: h11.InformationalResponse) -> tuple[int, str] | None:
        hint = _header(event, b"garlic-farm-leader")
        if hint is None:
            return None
        match = _LEADER.fullmatch(hint)
        if match is None:
            raise RemoteProtocolError("the hint is not an id and an endpoint", "Garlic-Farm-Leader")
        return int(match[1]), match[2]
