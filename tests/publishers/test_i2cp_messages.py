"""I2CP: the bytes that i2pd took and sent, chunks, and everything that a router can get wrong."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import LocalProtocolError, RemoteProtocolError
from garlicfarm.i2p.i2cp import (
    LEASE_SET_2,
    META_LEASE_SET,
    BandwidthLimits,
    Disconnect,
    Message,
    MessageDecoder,
    MessagePayload,
    RequestLeaseSet,
    SessionStatus,
    SetDate,
    TunnelLease,
    UnknownMessage,
    encode_create_lease_set2,
    encode_create_session,
    encode_destroy_session,
    encode_get_bandwidth_limits,
    encode_get_date,
    encode_reconfigure_session,
    encode_send_message,
)
from garlicfarm.i2p.lease_set import EncryptionKey

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
string = st.text(max_size=40)
hash_ = st.binary(min_size=32, max_size=32)
DECODED = {20, 21, 23, 30, 31, 33, 37}


def frame(type_: int, body: bytes) -> bytes:
    return struct.pack(">IB", len(body), type_) + body


def written(message: Message) -> bytes:
    """What a router sends for ``message``: the specification's layouts once more."""
    match message:
        case SetDate(date_ms, version):
            data = version.encode()
            return frame(33, struct.pack(">QB", date_ms, len(data)) + data)
        case SessionStatus(session, status):
            return frame(20, struct.pack(">HB", session, status))
        case RequestLeaseSet(session, leases):
            body = struct.pack(">HB", session, len(leases))
            return frame(
                37,
                body + b"".join(one.gateway + struct.pack(">IQ", one.tunnel, one.end_ms) for one in leases),
            )
        case BandwidthLimits(client_in, client_out, router_in, router_out, burst_s):
            limits = [client_in, client_out, router_in, 7, router_out, 8, burst_s, *[9] * 9]
            return frame(23, b"".join(struct.pack(">I", limit) for limit in limits))
        case Disconnect(reason):
            data = reason.encode()
            return frame(30, bytes([len(data)]) + data)
        case MessagePayload(session, payload):
            return frame(31, struct.pack(">HII", session, 9, len(payload)) + payload)
        case UnknownMessage(type_, body):
            return frame(type_, body)


messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(SetDate, u64, string),
    st.builds(SessionStatus, u16, st.integers(0, 255)),
    st.builds(RequestLeaseSet, u16, st.lists(st.builds(TunnelLease, hash_, u32, u64), max_size=5).map(tuple)),
    st.builds(BandwidthLimits, u32, u32, u32, u32, u32),
    st.builds(Disconnect, string),
    st.builds(MessagePayload, u16, st.binary(max_size=400)),
    st.builds(
        UnknownMessage, st.integers(0, 255).filter(lambda type_: type_ not in DECODED), st.binary(max_size=50)
    ),
)


def outcome(chunks: list[bytes]) -> tuple[list[Any], str]:
    """The messages, and the error that ended them, "" if the end was clean."""
    decoder, found = MessageDecoder(), []
    try:
        for chunk in chunks:
            decoder.receive_data(chunk)
            while (message := decoder.next_message()) is not None:
                found.append(message)
        decoder.receive_eof()
    except RemoteProtocolError as error:
        return found, str(error)
    return found, ""


def refuse(data: bytes) -> str:
    """Feed ``data``, which must be refused now, and for ever after."""
    decoder = MessageDecoder()
    decoder.receive_data(data)
    with pytest.raises(RemoteProtocolError) as first:
        decoder.next_message()
    for again in (decoder.next_message, decoder.receive_eof, lambda: decoder.receive_data(b"")):
        with pytest.raises(RemoteProtocolError) as second:
            again()
        assert str(second.value) == str(first.value)
    return str(first.value)


@given(st.lists(messages, max_size=4), st.lists(st.integers(0, 2000), max_size=6))
def test_messages_in_any_pieces_are_decoded(sent: list[Message], places: list[int]) -> None:
    data = b"".join(map(written, sent))
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    chunks = [data[start:end] for start, end in pairwise(edges)]
    assert outcome(chunks) == (sent, "")


@given(messages)
def test_message_cut_short_is_waited_for(message: Message) -> None:
    data = written(message)
    for end in range(1, len(data)):
        assert outcome([data[:end]]) == ([], "the stream ended inside a message (I2CP)")


@given(messages.filter(lambda message: not isinstance(message, UnknownMessage)).map(written))
def test_body_of_another_length_is_refused(data: bytes) -> None:
    type_, body = data[4], data[5:]
    for wrong in (body[:-1], body + b"\0"):
        assert refuse(frame(type_, wrong)) == f"a malformed message (I2CP message {type_})"


@given(st.binary(max_size=200))
def test_hostile_bytes_raise_nothing_else(data: bytes) -> None:
    whole = outcome([data])
    assert outcome([data[place : place + 1] for place in range(len(data))]) == whole


def test_announced_length_is_refused_at_once_and_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        assert "a message of 65536 bytes" in refuse(struct.pack(">IB", 65_536, 33))
        assert "a message of 1213486160 bytes" in refuse(b"HTTP/1.1 400 Bad Request")
        assert outcome([struct.pack(">IB", 65_535, 31)]) == ([], "the stream ended inside a message (I2CP)")
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


def test_both_requests_for_a_lease_set_are_one_event() -> None:
    gateway = bytes(range(32))
    fixed = frame(21, struct.pack(">HB32sIQ", 7, 1, gateway, 5, 1000))
    variable = frame(37, struct.pack(">HB32sIQ", 7, 1, gateway, 5, 1000))
    expected = RequestLeaseSet(7, (TunnelLease(gateway, 5, 1000),))
    assert outcome([fixed, variable]) == ([expected, expected], "")


def test_answers_of_i2pd_are_decoded() -> None:
    sent = bytes.fromhex(
        "0000000f21 0000019aa3e4c1d8 06 322e34352e31 0000000314 1f2b01 0000000c1f 1f2b00000007000000021f8b"
    )
    assert outcome([sent]) == (
        [SetDate(0x19AA3E4C1D8, "2.45.1"), SessionStatus(0x1F2B, 1), MessagePayload(0x1F2B, b"\x1f\x8b")],
        "",
    )


def test_messages_to_the_router_are_those_that_i2pd_took() -> None:
    assert encode_get_date("0.9.57") == bytes.fromhex("0000000720 06 302e392e3537")
    assert encode_create_session(b"configuration") == bytes.fromhex("0000000d01") + b"configuration"
    assert encode_reconfigure_session(0x1F2B, b"new") == bytes.fromhex("0000000502 1f2b") + b"new"
    assert encode_destroy_session(0x1F2B) == bytes.fromhex("0000000203 1f2b")
    assert encode_get_bandwidth_limits() == bytes.fromhex(
        "0000000008"
    )  # 2.45.1 answered 0000004017, 64 zeros
    # The zero at the end, no private keys, is needed by i2pd.
    assert encode_create_lease_set2(0x1F2B, META_LEASE_SET, b"LS") == bytes.fromhex(
        "0000000629 1f2b 07 4c53 00"
    )
    key = bytes(range(32))
    assert encode_create_lease_set2(0x1F2B, LEASE_SET_2, b"LS", [EncryptionKey(4, key)]) == (
        bytes.fromhex("0000002a29 1f2b 03 4c53 01 0004 0020") + key
    )
    two = [EncryptionKey(6, key), EncryptionKey(4, key[::-1])]
    assert encode_create_lease_set2(0x1F2B, LEASE_SET_2, b"LS", two) == (
        bytes.fromhex("0000004e29 1f2b 03 4c53 02 0006 0020") + key + bytes.fromhex("0004 0020") + key[::-1]
    )
    assert encode_send_message(0x1F2B, b"peer", b"gzip") == (
        bytes.fromhex("0000001205 1f2b") + b"peer" + bytes.fromhex("00000004") + b"gzip" + bytes(4)
    )


def test_what_has_no_bytes_is_refused() -> None:
    for encode in (
        lambda: encode_create_session(bytes(65_536)),
        lambda: encode_destroy_session(65_536),
        lambda: encode_get_date("9" * 256),
        lambda: encode_create_lease_set2(1, LEASE_SET_2, b"LS", [EncryptionKey(4, bytes(31))]),
        lambda: encode_send_message(1, bytes(391), bytes(65_535)),
        lambda: encode_send_message(65_536, bytes(391), b""),
    ):
        with pytest.raises(LocalProtocolError):
            encode()
