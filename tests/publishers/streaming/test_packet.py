"""Packets to bytes and back; truncated ones are refused."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm_plugin_i2cp.streaming.packet import (
    CLOSE,
    DELAY_REQUESTED,
    FROM_INCLUDED,
    MAX_PACKET_SIZE,
    NO_ACK,
    SIGNATURE_INCLUDED,
    SYNCHRONIZE,
    Packet,
    decode_packet,
    encode_packet,
)
from tests.publishers.streaming.network import PEERS

U32 = st.integers(0, 2**32 - 1)
DESTINATION = PEERS[0].destination


def sign(data: bytes) -> bytes:
    return b"S" * 64


def test_data_packet_has_a_header_of_22_bytes() -> None:
    encoded = encode_packet(Packet(0x01020304, 0x05060708, 9, 10, data=b"data"))
    assert (
        encoded.hex()
        == "0102030405060708" + "000000090000000a" + "00" + "00" + "0000" + "0000" + b"data".hex()
    )


def test_ack_names_the_missing_packets_before_flags() -> None:
    encoded = encode_packet(Packet(1, 2, 0, 6, [3, 5], DELAY_REQUESTED, delay_ms=0xEA60))
    assert encoded.hex() == (
        "0000000100000002"
        + "0000000000000006"
        + "02"
        + "00000003"
        + "00000005"
        + "00"
        + "0040"
        + "0002"
        + "ea60"
    )


def test_options_stand_in_their_order_and_the_signature_last() -> None:
    flags = SYNCHRONIZE | FROM_INCLUDED | MAX_PACKET_SIZE | DELAY_REQUESTED
    packet = Packet(1, 2, 0, 0, (), flags, 9, 7, DESTINATION, 1812, b"offline", b"data")
    encoded = encode_packet(packet, sign)
    size = 2 + len(DESTINATION) + 2 + 7 + 64
    head = struct.pack(">IIIIBBHH", 1, 2, 0, 0, 0, 9, flags | SIGNATURE_INCLUDED, size)
    assert encoded == head + b"\0\7" + DESTINATION + b"\x07\x14" + b"offline" + b"S" * 64 + b"data"


def test_what_is_signed_has_zeros_for_the_signature() -> None:
    signed = []

    def keep(data: bytes) -> bytes:
        signed.append(data)
        return b"S" * 64

    encoded = encode_packet(Packet(1, 2, 3, 4, (), CLOSE, data=b"data"), keep)
    assert signed == [encoded.replace(b"S" * 64, bytes(64))]


PACKETS = st.builds(
    Packet,
    *(U32, U32, U32, U32),
    nacks=st.lists(U32, max_size=255).map(tuple),
    flags=st.sampled_from([0, NO_ACK, CLOSE]),
    resend_delay_s=st.integers(0, 255),
    data=st.binary(max_size=100),
)


@given(PACKETS, st.booleans(), st.none() | st.integers(0, 0xFFFF), st.none() | st.integers(0, 0xFFFF))
def test_packet_round_trip(packet, has_from, delay_ms, max_data):
    if delay_ms is not None:
        packet.flags |= DELAY_REQUESTED
        packet.delay_ms = delay_ms
    if has_from:
        packet.flags |= FROM_INCLUDED
        packet.destination = DESTINATION
    if max_data is not None:
        packet.flags |= MAX_PACKET_SIZE
        packet.max_data = max_data
    assert decode_packet(encode_packet(packet)) == packet


def test_packet_cut_inside_its_header_or_options_is_refused() -> None:
    flags = SYNCHRONIZE | FROM_INCLUDED | MAX_PACKET_SIZE
    encoded = encode_packet(Packet(1, 2, 0, 0, [1, 2], flags, 0, None, DESTINATION, 1812), sign)
    for end in range(len(encoded)):
        with pytest.raises(ValueError, match=r"truncated"):
            decode_packet(encoded[:end])


@pytest.mark.parametrize("flags", [DELAY_REQUESTED, FROM_INCLUDED, MAX_PACKET_SIZE])
def test_packet_without_the_option_of_its_flag_is_refused(flags: int) -> None:
    with pytest.raises(ValueError, match=r"truncated|not a destination"):
        decode_packet(struct.pack(">IIIIBBHHB", 1, 2, 0, 0, 0, 0, flags, 1, 0))


@given(st.binary(max_size=600))
def test_random_bytes_are_a_packet_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        decode_packet(data)
