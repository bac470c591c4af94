"""HTTP requests get the headers that name the client, and no others of that name."""

from __future__ import annotations

from hashlib import sha256

import pytest

from garlicfarm.i2p.encoding import b32_address, encode
from garlicfarm_plugin_i2cp.streaming.client_headers import MAX_HEAD_BYTES, ClientHeaders
from tests.publishers.i2cp_keys import long_term_keys

CLIENT = long_term_keys(3).destination
ADDED = (
    f"X-I2P-DestHash: {encode(sha256(CLIENT).digest())}\r\n"
    f"X-I2P-DestB32: {b32_address(CLIENT)}\r\n"
    f"X-I2P-DestB64: {encode(CLIENT)}\r\n"
    "Connection: close\r\n\r\n"
).encode()


def rewrite(data: bytes) -> bytes:
    return ClientHeaders(CLIENT).rewrite(data)


def test_head_gets_the_headers_of_its_client_and_the_body_stays() -> None:
    body = b"\r\n\r\nX-I2P-DestHash: of the body\r\n\r\n"
    got = rewrite(b"POST /a?b HTTP/1.1\r\nHost: x.i2p\r\nContent-Length: 35\r\n\r\n" + body)
    assert got == b"POST /a?b HTTP/1.1\r\nHost: x.i2p\r\nContent-Length: 35\r\n" + ADDED + body


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
        b"Connection: keep-alive",
        b"Connection: X-I2P-DestHash",
        b"Keep-Alive: timeout=5",
        b"Proxy-Connection: keep-alive",
        b"Upgrade: h2c",
    ],
)
@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_header_that_a_client_may_not_send_is_removed(field: bytes, end: bytes) -> None:
    got = rewrite(end.join([b"GET / HTTP/1.0", field, b"Host: x.i2p", b"", b""]))
    assert got == b"GET / HTTP/1.0\r\nHost: x.i2p\r\n" + ADDED


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_head_in_pieces_is_rewritten_as_in_one(size: int) -> None:
    sent = b"GET / HTTP/1.1\r\nX-I2P-DestB32: forged\r\nHost: x.i2p\r\n\r\nthe rest\n\n"
    headers = ClientHeaders(CLIENT)
    got = b"".join(headers.rewrite(sent[at : at + size]) for at in range(0, len(sent), size))
    assert got == rewrite(sent)
    assert got.endswith(ADDED + b"the rest\n\n")


@pytest.mark.parametrize(
    "head",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\r\n\r\n",
        b"\r\nGET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1 \r\n\r\n",
        b"GET / HTTP/1.1\rX-I2P-DestB32: forged\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\rX-I2P-DestB32: forged\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-I2P-DestB32 : forged\r\n\r\n",
        b"GET / HTTP/1.1\r\n X-I2P-DestB32: forged\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\n\n",
    ],
)
def test_head_that_can_be_read_in_two_ways_is_refused(head: bytes) -> None:
    with pytest.raises(ValueError, match="of an HTTP request"):
        rewrite(head)


def test_head_without_end_is_refused() -> None:
    headers = ClientHeaders(CLIENT)
    assert headers.rewrite(b"GET / HTTP/1.1\r\nA: ") == b""
    with pytest.raises(ValueError, match="more than 32768 bytes"):
        headers.rewrite(bytes(MAX_HEAD_BYTES))
