"""HTTP requests on their way to the service: what comes out is what went in, but for the heads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.i2p.encoding import b32_address, encode
from garlicfarm_plugin_i2cp.streaming.http_requests import (
    CUT_SHORT,
    IN_PROXY,
    MALFORMED,
    MAX_CLIENTS,
    MAX_HEAD_BYTES,
    TOO_LARGE,
    TOO_MANY_POSTS,
    HttpRules,
    PostLimits,
    RequestFilter,
)
from tests.publishers.i2cp_keys import long_term_keys

CLIENT = long_term_keys(3).destination
NAMED = (
    f"X-I2P-DestHash: {encode(sha256(CLIENT).digest())}\r\n"
    f"X-I2P-DestB32: {b32_address(CLIENT)}\r\n"
    f"X-I2P-DestB64: {encode(CLIENT)}\r\n"
).encode()
HEADERS = HttpRules(has_client_headers=True)


def requests(rules: HttpRules = HEADERS) -> RequestFilter:
    return RequestFilter(rules, CLIENT)


def passed(data: bytes, rules: HttpRules = HEADERS) -> bytes:
    """What the service gets, of which nothing is refused."""
    found = requests(rules)
    out = found.receive(data, 0)
    assert found.refused is None
    return out


def cause(data: bytes, rules: HttpRules = HEADERS, before: bytes = b"") -> tuple[str, int | None]:
    """Why it is refused, and the status of the answer; what of it has been passed on is ``before``."""
    found = requests(rules)
    assert found.receive(data, 0) == before
    assert found.refused is not None
    return found.refused.cause, found.refused.status


# heads


def test_head_gets_the_headers_of_its_client_and_the_body_stays() -> None:
    body = b"\r\n\r\nX-I2P-DestHash: of the body\r\n\r\n"
    got = passed(b"POST /a?b HTTP/1.1\r\nHost: x.i2p\r\nContent-Length: 35\r\n\r\n" + body)
    assert got == b"POST /a?b HTTP/1.1\r\nHost: x.i2p\r\nContent-Length: 35\r\n" + NAMED + b"\r\n" + body


@pytest.mark.parametrize(
    "field",
    [
        b"X-I2P-DestHash: forged",
        b"x-i2p-destb32: forged",
        b"X-I2P-DESTB64:forged",
        b"X_I2P_DestHash: forged",
        b"X.I2P.DestHash: forged",
        b"X-I2P~Dest!Hash: forged",
        b"X-I2P-Dest-Hash: forged",
        b"X-I2P-Later: forged",
        b"Connection: X-I2P-DestHash",
        b"Keep-Alive: timeout=5",
        b"Proxy-Connection: keep-alive",
        b"Upgrade: h2c",
        b"TE: trailers",
        b"Trailer: X-I2P-DestHash",
    ],
)
@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_header_that_a_client_may_not_send_is_removed(field: bytes, end: bytes) -> None:
    got = passed(end.join([b"GET / HTTP/1.0", field, b"Host: x.i2p", b"", b""]))
    assert got == b"GET / HTTP/1.0\r\nHost: x.i2p\r\n" + NAMED + b"\r\n"


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (b"Connection: close", b"close"),
        (b"Connection: Keep-Alive", b"keep-alive"),
        (b"Connection: keep-alive, X-I2P-DestHash\r\nConnection: Close", b"close"),
    ],
)
def test_wish_to_close_a_connection_or_to_keep_it_stays(asked: bytes, kept: bytes) -> None:
    got = passed(b"GET / HTTP/1.0\r\n" + asked + b"\r\n\r\n")
    assert got == b"GET / HTTP/1.0\r\n" + NAMED + b"Connection: " + kept + b"\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT x.i2p:80 HTTP/1.1\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"\r\nGET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1 \r\n\r\n",
        b"GET / HTTP/1.1\rX-I2P-DestB32: forged\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\rX-I2P-DestB32: forged\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-I2P-DestB32 : forged\r\n\r\n",
        b"GET / HTTP/1.1\r\n X-I2P-DestB32: forged\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\x0bX-I2P-DestB32: forged\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nH_ost: a\r\nHost : a\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 0x1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length:\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1000000000000000000\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent_Length: 1\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer_Encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\n\n",
    ],
)
def test_head_that_can_be_read_in_two_ways_is_refused(head: bytes) -> None:
    assert cause(head) == (MALFORMED, 400)


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_head_that_is_too_large_is_refused(end: bytes) -> None:
    assert cause(b"GET / HTTP/1.1\r\nA: " + bytes(MAX_HEAD_BYTES) + end) == (TOO_LARGE, 431)


def test_nothing_is_passed_on_of_a_head_before_its_end() -> None:
    found = requests()
    assert found.receive(b"GET / HTTP/1.1\r\nA: b\r\n", 0) == b""
    assert found.is_within_head
    assert found.receive(b"\r\n", 0).startswith(b"GET /")
    assert not found.is_within_head


# what operators may ask for


@pytest.mark.parametrize(
    ("target", "rewritten"),
    [
        (b"/a?b", b"/a?b"),
        (b"/a?b=http://other.i2p/c", b"/a?b=http://other.i2p/c"),
        (b"http://other.i2p/a?b", b"/a?b"),
        (b"HTTPS://other.i2p:81", b"/"),
        (b"http://other.i2p?b", b"/?b"),
        (b"*", b"*"),
    ],
)
def test_host_takes_the_place_of_that_which_is_asked_for(target: bytes, rewritten: bytes) -> None:
    rules = HttpRules(host="site.example:81")
    got = passed(b"GET " + target + b" HTTP/1.1\r\nA: b\r\nhost: other.i2p\r\n\r\n", rules)
    assert got == b"GET " + rewritten + b" HTTP/1.1\r\nHost: site.example:81\r\nA: b\r\n\r\n"


@pytest.mark.parametrize(
    "field", [b"X-Forwarded-For", b"x_forwarded_host", b"X-Forwarded-Server", b"FORWARDED", b"Via"]
)
def test_request_through_an_in_proxy_is_refused_where_that_is_asked_for(field: bytes) -> None:
    head = b"GET / HTTP/1.1\r\nHost: x.i2p\r\n" + field + b": a\r\n\r\n"
    assert cause(head, HttpRules(rejects_in_proxies=True)) == (IN_PROXY, 403)
    assert passed(head, HttpRules()) == head


def test_post_beyond_the_limit_is_refused_and_other_requests_are_not() -> None:
    rules = HttpRules(posts=PostLimits(per_client=2, total=0, check_s=60, ban_s=60))
    post, get = (b"%b / HTTP/1.1\r\nHost: x.i2p\r\n\r\n" % method for method in (b"POST", b"GET"))
    assert passed(post + get + get, rules) == post + get + get
    assert cause(get + post + post, rules, before=get + post) == (TOO_MANY_POSTS, 429)
    put = post.replace(b"POST", b"PUT")
    assert cause(put, rules) == (TOO_MANY_POSTS, 429)
    assert passed(get, rules) == get


def test_posts_of_a_client_are_counted_within_their_time_and_banned_for_theirs() -> None:
    limits = PostLimits(per_client=2, total=0, check_s=10, ban_s=100)
    assert [limits.admit(b"a", at_s) for at_s in (0, 9, 10, 11, 12)] == [True, True, True, True, False]
    assert limits.admit(b"b", 12)
    assert not limits.admit(b"a", 111)
    assert limits.admit(b"a", 112)


def test_posts_of_all_clients_are_counted_together() -> None:
    limits = PostLimits(per_client=0, total=3, check_s=10, ban_s=100)
    assert [limits.admit(client, 5) for client in (b"a", b"b", b"c", b"d")] == [True, True, True, False]
    assert not limits.admit(b"e", 104)
    assert limits.admit(b"e", 105)


def test_clients_whose_posts_are_counted_are_bounded() -> None:
    limits = PostLimits(per_client=1, total=0, check_s=10, ban_s=100)
    first = b"%d" % 0
    for number in range(MAX_CLIENTS + 1):
        assert limits.admit(b"%d" % number, 0)
    assert limits.admit(first, 0)  # forgotten
    assert not limits.admit(first, 0)


# bodies


@pytest.mark.parametrize(
    "body",
    [
        b"5\nhello\n0\n\n\r\n",
        b"\r\n",
        b"-1\r\n",
        b"0x1\r\na\r\n0\r\n\r\n",
        b"1\r\nab\r\n",
        b"fffffffffffffffffffff\r\n",
        b"0\r\nX-I2P-DestHash : a\r\n\r\n",
        b"1" * 20_000,
    ],
)
def test_body_whose_chunks_are_none_ends_the_stream(body: bytes) -> None:
    found = requests()
    found.receive(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 0)
    assert found.receive(body[:-1], 0) in (b"", b"1\r\na\r\n")
    found.receive(body[-1:], 0)
    assert found.refused is not None
    assert (found.refused.cause, found.refused.status) == (MALFORMED, None)


def test_chunks_lose_their_extensions_and_trailers() -> None:
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
    got = passed(head + b"\r\n3;a=b\r\nabc\r\n0\r\nX-I2P-DestHash: forged\r\n\r\n")
    assert got == head + NAMED + b"\r\n3\r\nabc\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        (b"", None),
        (b"GET / HTTP/1.1\r\n\r\n", None),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n1", None),
        (b"GET / HTTP/1.1\r\n", (CUT_SHORT, 400)),
        (b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n1", (CUT_SHORT, None)),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n", (CUT_SHORT, None)),
    ],
)
def test_request_that_the_client_does_not_complete_is_refused(
    sent: bytes, refused: tuple[str, int | None] | None
) -> None:
    found = requests()
    found.receive(sent, 0)
    found.receive_end()
    assert (found.refused and (found.refused.cause, found.refused.status)) == refused


# WebSockets

ASKS = b"GET /ws HTTP/1.1\r\nHost: x.i2p\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\r\n"
GETS_ON = b"GET / HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x00",
        b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 100 Continue\n\nHTTP/1.1 101\r\n\r\n",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_web_socket_passes_unchanged_once_the_service_has_agreed(answer: bytes, size: int) -> None:
    found = requests()
    head = b"GET /ws HTTP/1.1\r\nHost: x.i2p\r\n" + NAMED
    asks = head + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert found.receive(ASKS + b"\n\n\0", 0) == asks
    for at in range(0, len(answer), size):
        if found.awaits_answer:
            found.receive_answer(answer[at : at + size])
    assert found.receive(b"", 0) == b"\n\n\0"
    assert found.receive(b"X-I2P-DestHash: a frame\n\n", 0) == b"X-I2P-DestHash: a frame\n\n"
    found.receive_end()
    assert found.refused is None


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 426 Upgrade Required\r\n",
        b"HTTP/1.0 200 OK\r\n",
        b"SSH-2.0-OpenSSH",
        b"HTTP/1.1 103 Early Hints\r\nA: " + bytes(MAX_HEAD_BYTES),
        b"",
    ],
)
def test_what_follows_a_web_socket_that_is_refused_is_http(answer: bytes) -> None:
    found = requests()
    found.receive(ASKS + GETS_ON, 0)
    found.receive_answer(answer)
    assert not found.awaits_answer
    assert found.receive(b"", 0) == b"GET / HTTP/1.1\r\n" + NAMED + b"\r\n"
    assert found.receive(b"\0\n\n", 0) == b""
    assert found.refused is not None


@pytest.mark.parametrize(
    "head",
    [
        GETS_ON + ASKS,  # not the first one
        ASKS.replace(b"WebSocket", b"h2c"),
        ASKS.replace(b"WebSocket", b"websocket, h2c"),
        ASKS.replace(b"WebSocket", b"websocket\r\nUpgrade: h2c"),
        ASKS.replace(b"GET", b"POST"),
        ASKS.replace(b"HTTP/1.1", b"HTTP/1.0"),
        ASKS.replace(b", Upgrade", b""),
        ASKS.replace(b"Host:", b"Content-Length: 1\r\nHost:"),
    ],
)
def test_other_upgrades_are_not_asked_for(head: bytes) -> None:
    found = requests()
    assert b"pgrade" not in found.receive(head, 0)
    assert not found.awaits_answer


# any requests, in any pieces


class Request(NamedTuple):
    fields: list[tuple[str, str]]
    chunks: list[bytes]
    is_chunked: bool

    def encode(self) -> bytes:
        fields = [f"{name}: {value}\r\n".encode() for name, value in self.fields]
        body = b"".join(self.chunks)
        if self.is_chunked:
            fields.append(b"Transfer-Encoding: chunked\r\n")
            body = b"".join(b"%X\r\n%b\r\n" % (len(chunk), chunk) for chunk in self.chunks) + b"0\r\n\r\n"
        elif body:
            fields.append(b"Content-Length: %d\r\n" % len(body))
        return b"PUT /?q HTTP/1.1\r\nHost: x.i2p\r\n" + b"".join(fields) + b"\r\n" + body


NAMES = st.sampled_from(["A", "B-C", "X-I2P-DestHash", "Via", "Connection", "Keep-Alive", "Cookie"])
VALUES = st.text("ab:;, -\t", max_size=5)
REQUESTS = st.lists(
    st.builds(
        Request,
        st.lists(st.tuples(NAMES, VALUES), max_size=3),
        st.lists(st.binary(min_size=1, max_size=30), max_size=3),
        st.booleans(),
    ),
    max_size=4,
)
CUTS = st.lists(st.integers(0, 400), max_size=12)


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    ends = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(ends)]


def filtered(data: Sequence[bytes]) -> tuple[bytes, RequestFilter]:
    found, out = requests(), b""
    for piece in data:
        if found.refused is None:
            out += found.receive(piece, 0)
    return out, found


def decoded(data: bytes) -> list[tuple[list[tuple[bytes, bytes]], bytes]]:
    """The headers and the body of each request, as another program reads them."""
    found = []
    while data:
        reader = h11.Connection(h11.SERVER)
        reader.receive_data(data)
        request, body = reader.next_event(), b""
        assert isinstance(request, h11.Request)
        while not isinstance(event := reader.next_event(), h11.EndOfMessage):
            assert isinstance(event, h11.Data)
            body += event.data
        found.append((list(request.headers), body))
        data = reader.trailing_data[0]
    return found


@given(REQUESTS, CUTS)
def test_requests_in_any_pieces_come_out_as_they_went_in(sent: list[Request], cuts: list[int]) -> None:
    data = b"".join(request.encode() for request in sent)
    out, found = filtered(pieces(data, cuts))
    assert (found.refused, found.heads, found.is_within_head) == (None, len(sent), not sent)
    got = decoded(out)
    assert [body for _, body in got] == [b"".join(request.chunks) for request in sent]
    for (headers, _), request in zip(got, sent, strict=True):
        names = [name.decode() for name, _ in headers]
        assert names[-3:] == ["x-i2p-desthash", "x-i2p-destb32", "x-i2p-destb64"]
        kept = [name.lower() for name, _ in request.fields if name in ("A", "B-C", "Via", "Cookie")]
        assert [name for name in names if name in ("a", "b-c", "via", "cookie")] == kept


@given(REQUESTS, CUTS, st.integers(0, 400), st.binary(max_size=3))
def test_garbage_among_requests_has_the_same_end_in_any_pieces(
    sent: list[Request], cuts: list[int], at: int, garbage: bytes
) -> None:
    data = b"".join(request.encode() for request in sent)
    data = data[:at] + garbage + data[at + 1 :]
    (whole, one), (split, other) = filtered([data]), filtered(pieces(data, cuts))
    ends = [(each.heads, each.refused and each.refused.args, each.is_within_head) for each in (one, other)]
    assert ends[0] == ends[1]
    for out in (whole, split):
        assert out.count(NAMED) == one.heads
