"""Filters the HTTP requests of a client on their way to the service: what I2P's server tunnels do, and more.

Theory of operation. Requests follow each other on a stream. The head of each is read whole, checked and
written anew; its body is passed on as it comes, and h11 says where it ends. So every request is seen, however
many a stream carries.

* ``X-I2P-DestHash`` is the SHA-256 of the client's destination in I2P base64, ``X-I2P-DestB32`` its
  ``….b32.i2p`` address, ``X-I2P-DestB64`` the destination itself. A service can trust them: what a client
  calls ``X-I2P-…`` is removed, in any spelling that a service might read as that.
* What two programs could read in two ways is refused: line folding, a space before a colon, control
  characters, lengths that contradict each other, two hosts, another version than HTTP/1.0 or 1.1.
* What concerns one connection only is removed (`_OF_THE_CONNECTION`), but for the wish to close it or to keep
  it. Chunks are written anew, without extensions and trailers.
* A WebSocket begins with the first request of a stream. What comes behind it waits for the service's answer:
  if that is 101, it is no HTTP, and passes unchanged. No other protocol is switched to: requests of ``h2c``
  could not be seen.

Source: RFC 9112, sections 2 to 7 and 9; RFC 6455, section 4; Java I2P, ``I2PTunnelHTTPServer``.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from http import HTTPStatus

import h11
import msgspec

from garlicfarm.i2p.encoding import b32_address, encode

MAX_HEAD_BYTES = 32_768
MAX_CLIENTS = 4096
"""Whose POSTs are counted; then those that came first are forgotten."""

_END = re.compile(rb"\n\r?\n")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~\x80-\xff]+) HTTP/1\.([01])")
_FIELD_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_ABSOLUTE = re.compile(rb"\A(?i:https?)://[^/?]*/?")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r\n]")
_STATUS_LINE_BYTES = len(b"HTTP/1.1 200 ")
_NO_ALPHANUMERIC = re.compile(rb"[^0-9a-z]")
"""Some servers of CGI give all of these to the service as one."""
_OF_I2P = b"x-i2p-"
_OF_IN_PROXIES = {b"forwarded", b"via"}
_X_FORWARDED = b"x-forwarded-"
_POSTS = (b"POST", b"PUT")
_WEBSOCKET = (b"GET", b"1", b"websocket")
_WISHES = (b"close", b"keep-alive")
_OF_THE_CONNECTION = {
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
}
_ONCE = {b"content-length", b"transfer-encoding", b"host"}
"""May come once at most, and in no other spelling."""

MALFORMED = "not an HTTP request"
TOO_LARGE = "HTTP head of more than 32 KiB"
TOO_SLOW = "HTTP head not complete within 30 s"
CUT_SHORT = "HTTP request without its end"
IN_PROXY = "HTTP request through an in-proxy"
TOO_MANY_POSTS = "too many POSTs"
_SWITCHING_PROTOCOLS = 101


class RequestRefused(Exception):
    """``cause``: a fixed phrase. ``status``: what to answer; None: a part of the request has been passed on,
    so only a reset ends it."""

    def __init__(self, cause: str, status: HTTPStatus | None = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(cause)
        self.cause = cause
        self.status = status

    @property
    def answer(self) -> bytes:
        """The whole answer, after which the connection is closed."""
        assert self.status is not None
        text = f"{self.cause}\n"
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        )
        return (head + text).encode()


class PostLimits:
    """Admits so many POSTs within ``check_s``: ``per_client``, and ``total`` of all clients; 0: any number.
    Who sends more, or all clients if all together do, may send none for ``ban_s``."""

    def __init__(self, per_client: int, total: int, check_s: float, ban_s: float) -> None:
        self._per_client = per_client
        self._total = total
        self._check_s = check_s
        self._ban_s = ban_s
        self._since_s = float("-inf")
        self._count = 0
        self._counts: Counter[bytes] = Counter()
        self._banned: OrderedDict[bytes, float] = OrderedDict()
        self._all_banned_s = float("-inf")

    def admit(self, client: bytes, now_s: float) -> bool:
        """Whether one more, of the client with that hash, is within the limits; then it counts."""
        if now_s - self._since_s >= self._check_s:
            self._since_s, self._count = now_s, 0
            self._counts.clear()
        if now_s < max(self._all_banned_s, self._banned.get(client, now_s)):
            return False
        if self._total and self._count >= self._total:
            self._all_banned_s = now_s + self._ban_s
            return False
        if self._per_client and self._counts[client] >= self._per_client:
            self._banned[client] = now_s + self._ban_s
            self._banned.move_to_end(client)
            _shorten(self._banned)
            return False
        self._count += 1
        self._counts[client] += 1
        _shorten(self._counts)
        return True


def _shorten(clients: dict[bytes, float] | dict[bytes, int]) -> None:
    if len(clients) > MAX_CLIENTS:
        del clients[next(iter(clients))]


class HttpRules(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of requests. ``has_client_headers``: they get the headers that name the client. ``host``:
    it takes the place of the host that is asked for; "": none does. ``rejects_in_proxies``: requests that a
    proxy passes on for others are refused. ``posts``: None: without limits."""

    has_client_headers: bool = False
    host: str = ""
    rejects_in_proxies: bool = False
    posts: PostLimits | None = None


class RequestFilter:
    """Filters what comes on one stream. ``client``: the binary destination of its client.

    ``heads``: how many heads were complete. ``refused``: why nothing more is passed on; None: more may come.
    """

    def __init__(self, rules: HttpRules, client: bytes) -> None:
        self._rules = rules
        self._client = sha256(client).digest()
        self._fields: list[bytes] = []
        if rules.has_client_headers:
            self._fields = [
                b"X-I2P-DestHash: " + encode(self._client).encode(),
                b"X-I2P-DestB32: " + b32_address(client).encode(),
                b"X-I2P-DestB64: " + encode(client).encode(),
            ]
        self.heads = 0
        self.refused: RequestRefused | None = None
        self._waiting = b""  # of a head, or of what comes behind a WebSocket's
        self._body: h11.Connection | None = None
        self._is_chunked = False
        self._answer: bytes | None = None  # what has come of it, where a WebSocket was asked for
        self._is_raw = False

    @property
    def is_within_head(self) -> bool:
        """A head has begun, or the first one is to come."""
        return bool(self._waiting) or not self.heads

    @property
    def awaits_answer(self) -> bool:
        """Nothing more is passed on until the service has answered: `receive_answer`."""
        return self._answer is not None

    def receive(self, data: bytes, now_s: float) -> bytes:
        """What the service is to get now that ``data`` has come."""
        if self._body is None:
            self._waiting += data
        else:
            self._body.receive_data(data)
        out = bytearray()
        try:
            while not self.awaits_answer and (piece := self._next(now_s)):
                out += piece
        except RequestRefused as refused:
            self.refused = refused
        return bytes(out)

    def receive_end(self) -> None:
        """The client sends nothing more."""
        if self._body is not None:
            self.refused = RequestRefused(CUT_SHORT, None)
        elif self._waiting and not self._is_raw:
            self.refused = RequestRefused(CUT_SHORT)

    def receive_answer(self, data: bytes) -> None:
        """What the service has sent, while `awaits_answer`; b"": it sends nothing more. Afterwards call
        `receive`, with what has come."""
        assert self._answer is not None
        self._answer += data
        while status := _STATUS_LINE.match(self._answer):
            if status[1][:1] != b"1" or int(status[1]) == _SWITCHING_PROTOCOLS:
                self._is_raw = int(status[1]) == _SWITCHING_PROTOCOLS
                self._answer = None
                return
            end = _END.search(self._answer)
            if end is None:
                break
            self._answer = self._answer[end.end() :]
        most = MAX_HEAD_BYTES if status else _STATUS_LINE_BYTES
        if not data or len(self._answer) >= most:  # no HTTP
            self._answer = None

    def _next(self, now_s: float) -> bytes:
        """The next piece for the service; b"": there is none yet."""
        if self._body is not None:
            return self._next_of_body(self._body, now_s)
        if self._is_raw:
            piece, self._waiting = self._waiting, b""
            return piece
        end = _END.search(self._waiting)
        if (end.start() if end else len(self._waiting)) > MAX_HEAD_BYTES:
            raise RequestRefused(TOO_LARGE, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if end is None:
            return b""
        head = self._rewrite(self._waiting[: end.start()], now_s)
        self._waiting = self._waiting[end.end() :]
        self.heads += 1
        if self._body is not None and self._waiting:
            self._body.receive_data(self._waiting)
            self._waiting = b""
        return head

    def _next_of_body(self, body: h11.Connection, now_s: float) -> bytes:
        try:
            event = body.next_event()
            while isinstance(event, h11.Request):
                event = body.next_event()
        except h11.RemoteProtocolError:
            raise RequestRefused(MALFORMED, None) from None
        if isinstance(event, h11.Data):
            data = bytes(event.data)
            return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data
        if not isinstance(event, h11.EndOfMessage):
            return b""
        self._waiting, _ = body.trailing_data
        self._body = None
        return b"0\r\n\r\n" if self._is_chunked else self._next(now_s)

    def _rewrite(self, head: bytes, now_s: float) -> bytes:
        """The head for the service. Raises `RequestRefused`."""
        first, *lines = [line.removesuffix(b"\r") for line in head.split(b"\n")]
        request = _REQUEST_LINE.fullmatch(first)
        if request is None or request[1] == b"CONNECT":
            raise RequestRefused(MALFORMED)
        method, target, version = request.groups()
        fields = [_field(line) for line in lines]
        values: dict[bytes, bytes] = {}
        for name, value, _ in fields:
            if name in _ONCE and name in values:
                raise RequestRefused(MALFORMED)
            values[name] = values[name] + b"," + value if name in values else value
        framing = _framing(values, version)
        self._admit(method, values, now_s)
        lines = [line for name, _, line in fields if self._is_kept(name)]
        if self._rules.host:
            target = _ABSOLUTE.sub(b"/", target)
            lines.insert(0, b"Host: " + self._rules.host.encode())
        if framing:
            self._is_chunked = b"transfer-encoding" in values
            self._body = h11.Connection(h11.SERVER)
            self._body.receive_data(b"POST / HTTP/1.1\r\nHost: service\r\n" + framing + b"\r\n\r\n")
        wishes = [wish.strip() for wish in values.get(b"connection", b"").split(b",")]
        asks_for = (method, version, values.get(b"upgrade"))
        if asks_for == _WEBSOCKET and b"upgrade" in wishes and not (framing or self.heads):
            self._answer = b""
            last = [b"Connection: Upgrade", b"Upgrade: websocket"]
        else:
            last = [b"Connection: " + wish for wish in _WISHES if wish in wishes][:1]
        request_line = b"%b %b HTTP/1.%b" % (method, target, version)
        return b"\r\n".join([request_line, *lines, *self._fields, *last]) + b"\r\n\r\n"

    def _is_kept(self, name: bytes) -> bool:
        is_replaced = name == b"host" and bool(self._rules.host)
        return not (is_replaced or name.startswith(_OF_I2P) or name in _OF_THE_CONNECTION)

    def _admit(self, method: bytes, names: Iterable[bytes], now_s: float) -> None:
        is_passed_on = any(name in _OF_IN_PROXIES or name.startswith(_X_FORWARDED) for name in names)
        if self._rules.rejects_in_proxies and is_passed_on:
            raise RequestRefused(IN_PROXY, HTTPStatus.FORBIDDEN)
        posts = self._rules.posts
        if posts is not None and method in _POSTS and not posts.admit(self._client, now_s):
            raise RequestRefused(TOO_MANY_POSTS, HTTPStatus.TOO_MANY_REQUESTS)


def _field(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Its name, with one spelling for all that services might read as the same; its value in lower case; and
    all of it. Raises `RequestRefused`."""
    match = _FIELD_LINE.fullmatch(line)
    if match is None:
        raise RequestRefused(MALFORMED)
    name = _NO_ALPHANUMERIC.sub(b"-", match[1].lower())
    if name in _ONCE and name != match[1].lower():
        raise RequestRefused(MALFORMED)
    return name, match[2].strip().lower(), line


def _framing(values: Mapping[bytes, bytes], version: bytes) -> bytes:
    """The header that says where the body ends; b"": there is no body. Raises `RequestRefused`."""
    length, coding = values.get(b"content-length"), values.get(b"transfer-encoding")
    if coding is not None:
        if coding != b"chunked" or length is not None or version == b"0":
            raise RequestRefused(MALFORMED)
        return b"Transfer-Encoding: chunked"
    if length is None:
        return b""
    if not _LENGTH.fullmatch(length):
        raise RequestRefused(MALFORMED)
    return b"Content-Length: %d" % int(length) if int(length) else b""
