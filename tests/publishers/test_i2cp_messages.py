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
    META_LEASE_SET,
    NO_SESSION,
    Disconnect,
    HostReply,
    Message,
    MessageDecoder,
    RequestLeaseSet,
    SessionStatus,
    SetDate,
    TunnelLease,
    UnknownMessage,
    encode_create_lease_set2,
    encode_create_session,
    encode_destroy_session,
    encode_get_date,
    encode_host_lookup,
    encode_reconfigure_session,
)

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
string = st.text(max_size=40)
hash_ = st.binary(min_size=32, max_size=32)
DECODED = {20, 21, 30, 33, 37, 39}


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
        case Disconnect(reason):
            data = reason.encode()
            return frame(30, bytes([len(data)]) + data)
        case HostReply(session, request, destination):
            return frame(
                39, struct.pack(">HIB", session, request, destination is None) + (destination or b"")
            )
        case UnknownMessage(type_, body):
            return frame(type_, body)


messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(SetDate, u64, string),
    st.builds(SessionStatus, u16, st.integers(0, 255)),
    st.builds(RequestLeaseSet, u16, st.lists(st.builds(TunnelLease, hash_, u32, u64), max_size=5).map(tuple)),
    st.builds(Disconnect, string),
    st.builds(HostReply, u16, u32, st.none() | st.binary(min_size=1, max_size=400)),
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


# A HostReply ends in a destination, which is of any length.
@given(messages.filter(lambda message: not isinstance(message, UnknownMessage | HostReply)).map(written))
def test_body_of_another_length_is_refused(data: bytes) -> None:
    type_, body = data[4], data[5:]
    for wrong in (body[:-1], body + b"\0"):
        assert refuse(frame(type_, wrong)) == f"a malformed message (I2CP message {type_})"


@pytest.mark.parametrize("body", [b"", b"\1\2\0\0\0\3\0", b"\1\2\0\0\0\3\1destination"])
def test_reply_without_one_of_destination_and_error_is_refused(body: bytes) -> None:
    assert refuse(frame(39, body)) == "a malformed message (I2CP message 39)"


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
        "0000000f21 0000019aa3e4c1d8 06 322e34352e31 0000000314 1f2b01 0000000727 ffff0000000101"
    )
    assert outcome([sent]) == (
        [SetDate(0x19AA3E4C1D8, "2.45.1"), SessionStatus(0x1F2B, 1), HostReply(NO_SESSION, 1, None)],
        "",
    )


def test_messages_to_the_router_are_those_that_i2pd_took() -> None:
    assert encode_get_date("0.9.57") == bytes.fromhex("0000000720 06 302e392e3537")
    assert encode_create_session(b"configuration") == bytes.fromhex("0000000d01") + b"configuration"
    assert encode_reconfigure_session(0x1F2B, b"new") == bytes.fromhex("0000000502 1f2b") + b"new"
    assert encode_destroy_session(0x1F2B) == bytes.fromhex("0000000203 1f2b")
    # The zero at the end, no private keys, is needed by i2pd.
    assert encode_create_lease_set2(0x1F2B, META_LEASE_SET, b"LS") == bytes.fromhex(
        "0000000629 1f2b 07 4c53 00"
    )
    expected = bytes.fromhex("0000002b26 ffff 00000009 00002710 00") + bytes(range(32))
    assert encode_host_lookup(NO_SESSION, 9, 10_000, bytes(range(32))) == expected


def test_what_has_no_bytes_is_refused() -> None:
    for encode in (
        lambda: encode_create_session(bytes(65_536)),
        lambda: encode_destroy_session(65_536),
        lambda: encode_get_date("9" * 256),
        lambda: encode_host_lookup(NO_SESSION, 1, 1, bytes(31)),
        lambda: encode_host_lookup(NO_SESSION, 2**32, 1, bytes(32)),
    ):
        with pytest.raises(LocalProtocolError):
            encode()
