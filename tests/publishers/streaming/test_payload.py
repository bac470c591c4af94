"""The gzip of I2CP's payloads: ports and protocol in its header, and never more than a packet in it."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm_plugin_i2cp.streaming.payload import (
    MAX_PACKET_BYTES,
    STREAMING,
    Payload,
    decode_payload,
    encode_payload,
)

PORTS = st.integers(0, 0xFFFF)
PLAIN_ACK_OF_I2PD = bytes.fromhex(
    "1f8b0800000000000206011600e9ff8205f5b36fd06e770000000000000000000000000000a5933ea216000000"
)


def test_stored_payload_of_i2pd_is_decoded_and_encoded_alike() -> None:
    payload = decode_payload(PLAIN_ACK_OF_I2PD)
    assert payload == Payload(0, 0, STREAMING, bytes.fromhex("8205f5b36fd06e77") + bytes(14))
    assert encode_payload(payload.data, 0, 0) == PLAIN_ACK_OF_I2PD


@given(st.binary(max_size=MAX_PACKET_BYTES), PORTS, PORTS)
def test_payload_round_trip(data: bytes, from_port: int, to_port: int) -> None:
    encoded = encode_payload(data, from_port, to_port)
    assert decode_payload(encoded) == Payload(from_port, to_port, STREAMING, data)
    assert gzip.decompress(encoded) == data


@pytest.mark.parametrize("level", [0, 1, 6, 9])
@pytest.mark.parametrize("size", [0, 1, MAX_PACKET_BYTES])
def test_payload_of_any_gzip_is_decoded(level: int, size: int) -> None:
    assert decode_payload(gzip.compress(b"x" * size, level)).data == b"x" * size


@pytest.mark.parametrize("size", [MAX_PACKET_BYTES + 1, 50_000_000])
def test_payload_with_more_than_a_packet_is_refused(size: int) -> None:
    bomb = gzip.compress(bytes(size))
    with pytest.raises(ValueError, match="more bytes"):
        decode_payload(bomb)


def test_payload_cut_anywhere_is_refused() -> None:
    whole = gzip.compress(bytes(range(200)))
    for end in range(len(whole)):
        with pytest.raises(ValueError, match="gzip"):
            decode_payload(whole[:end])


@pytest.mark.parametrize("at", [15, 100, -5, -1])
def test_payload_with_a_changed_byte_is_refused(at: int) -> None:
    whole = bytearray(encode_payload(bytes(range(200)), 1, 2))
    whole[at] ^= 0x40
    with pytest.raises(ValueError, match="gzip"):
        decode_payload(bytes(whole))


def test_payload_that_is_only_zlib_is_refused() -> None:
    with pytest.raises(ValueError, match="not gzip"):
        decode_payload(zlib.compress(b"data"))


def test_stored_block_that_is_damaged_is_refused_wherever_it_is() -> None:
    payload = encode_payload(b"some data", 1, 2)
    assert decode_payload(payload).data == b"some data"
    for at in [0, 1, 2, *range(10, len(payload))]:
        damaged = bytearray(payload)
        damaged[at] ^= 0xFF
        with pytest.raises(ValueError, match="gzip"):
            decode_payload(bytes(damaged))
