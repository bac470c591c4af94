"""The payload of an I2CP message: gzip whose header carries ports and a protocol.

::

    1f 8b 08 | flags u8 | from port u16 | to port u16 | extra flags u8 | protocol u8 | deflate | CRC-32 | size

Any gzip is read, up to a size. What is written is not compressed: routers read stored blocks fastest, and
most of what services send is compressed already.

Source: I2CP specification, "Payload format" and "Protocol numbers"; RFC 1951, RFC 1952.
"""

from __future__ import annotations

import struct
import zlib

import msgspec

STREAMING = 6
"""The protocol number of streaming."""
MAX_PACKET_BYTES = 8192
"""Of what was compressed. i2pd allows 4096, and 8192 where it signs with post-quantum keys."""

_GZIP = b"\x1f\x8b\x08"
_PORTS = struct.Struct(">HHxB")
_PORTS_AT = 4
_HEAD = struct.Struct(">3sBHHBB")
_STORED = struct.Struct("<BHH")
_TAIL = struct.Struct("<II")
_FLAGS_AT = 3
_DATA_AT = _HEAD.size + _STORED.size
_FINAL_STORED = 1
_FASTEST = 2
_WINDOW_BITS_OF_GZIP = 31


class Payload(msgspec.Struct, frozen=True):
    """``data``: what was compressed, at most `MAX_PACKET_BYTES`."""

    from_port: int
    to_port: int
    protocol: int
    data: bytes


def decode_payload(payload: bytes) -> Payload:
    """Raises `ValueError`: not one whole gzip member, or more than `MAX_PACKET_BYTES` in it. No more than
    that is ever decompressed."""
    if not payload.startswith(_GZIP):
        raise ValueError("not gzip")
    data = _stored(payload)
    if data is None:
        data = _decompress(payload)
    from_port, to_port, protocol = _PORTS.unpack_from(payload, _PORTS_AT)
    return Payload(from_port, to_port, protocol, data)


def _stored(payload: bytes) -> bytes | None:
    """The data of a gzip that is nothing but one stored block, as `encode_payload` and i2pd write it; None:
    it is another one, or wrong."""
    size = len(payload) - _DATA_AT - _TAIL.size
    if not 0 <= size <= MAX_PACKET_BYTES or payload[_FLAGS_AT]:
        return None
    if _STORED.unpack_from(payload, _HEAD.size) != (_FINAL_STORED, size, 0xFFFF - size):
        return None
    data = payload[_DATA_AT : -_TAIL.size]
    return data if _TAIL.unpack_from(payload, _DATA_AT + size) == (zlib.crc32(data), size) else None


def _decompress(payload: bytes) -> bytes:
    decoder = zlib.decompressobj(_WINDOW_BITS_OF_GZIP)
    try:
        data = decoder.decompress(payload, MAX_PACKET_BYTES)
        if not decoder.eof:  # the checksum may be unread, where the data ended at the limit
            if decoder.decompress(decoder.unconsumed_tail, 1):
                raise ValueError("more bytes than a packet may have")
            if not decoder.eof:
                raise ValueError("the gzip is truncated")
    except zlib.error as error:
        raise ValueError(f"not gzip: {error}") from None
    return data


def encode_payload(data: bytes, from_port: int, to_port: int) -> bytes:
    """The payload of one streaming packet of at most `MAX_PACKET_BYTES`."""
    return b"".join(
        (
            _HEAD.pack(_GZIP, 0, from_port, to_port, _FASTEST, STREAMING),
            _STORED.pack(_FINAL_STORED, len(data), 0xFFFF - len(data)),
            data,
            _TAIL.pack(zlib.crc32(data), len(data)),
        )
    )
