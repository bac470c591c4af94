"""Packets of I2P's streaming protocol: bytes to packets, packets to bytes.

::

    packet = to stream u32 | from stream u32 | sequence u32 | ack through u32 | n u8 | n x NACK u32
             | resend delay u8 (s) | flags u16 | size of the options u16 | options | data

    options, in this order, each where its flag is set:
        DELAY_REQUESTED       delay u16 (ms)
        FROM_INCLUDED         destination, 387 bytes and more
        MAX_PACKET_SIZE       size u16 of the data of one packet
        OFFLINE_SIGNATURE     expires u32 (s) | type u16 | transient public key | signature
        SIGNATURE_INCLUDED    signature of the whole packet with zeros in this place

The sequence number counts packets; 0 is SYN, or without that flag a plain ACK, which takes no number. In the
first SYN the 32 bytes of eight NACKs are the hash of the destination that it is for, so that it cannot be
replayed to another.

Source: I2P's streaming specification, "Packet Format", "Flags and Option Data Fields".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import msgspec

from garlicfarm.i2p.destination import split_destination

SYNCHRONIZE = 0x0001
CLOSE = 0x0002
RESET = 0x0004
SIGNATURE_INCLUDED = 0x0008
FROM_INCLUDED = 0x0020
DELAY_REQUESTED = 0x0040
MAX_PACKET_SIZE = 0x0080
ECHO = 0x0200
NO_ACK = 0x0400
OFFLINE_SIGNATURE = 0x0800

MAX_NACKS = 255
CHOKE_MS = 60_000
"""A requested delay of so much or more: send nothing new. The specification says more than that, i2pd sends
exactly that."""

_HEADER = struct.Struct(">IIIIB")
_AFTER_NACKS = struct.Struct(">BHH")
_U16 = struct.Struct(">H")
_NO_NACKS = struct.Struct(">IIIIBBHH")


class Packet(msgspec.Struct):
    """One packet.

    ``to_stream`` is the id that its receiver has chosen (0: not known yet), ``from_stream`` that of its
    sender. ``ack_through``: all up to here has arrived, but for ``nacks``. ``delay_ms``, ``destination``,
    ``max_data``: None without their flags. ``signed_options``: the offline signature and the signature,
    which are not taken apart here, since their lengths depend on the keys.
    """

    to_stream: int
    from_stream: int
    sequence: int
    ack_through: int
    nacks: Sequence[int] = ()
    flags: int = 0
    resend_delay_s: int = 0
    delay_ms: int | None = None
    destination: bytes | None = None
    max_data: int | None = None
    signed_options: bytes = b""
    data: bytes = b""


def decode_packet(data: bytes) -> Packet:
    """Read a packet; its signature is not checked. Raises `ValueError`: it is truncated, or its options
    are."""
    try:
        to_stream, from_stream, sequence, ack_through, count = _HEADER.unpack_from(data)
        at = _HEADER.size
        nacks: Sequence[int] = ()
        if count:
            nacks = struct.unpack_from(f">{count}I", data, at)
            at += 4 * count
        resend_delay_s, flags, size = _AFTER_NACKS.unpack_from(data, at)
    except struct.error:
        raise ValueError("the packet is truncated") from None
    at += _AFTER_NACKS.size
    end = at + size
    if end > len(data):
        raise ValueError("the options are truncated")
    packet = Packet(to_stream, from_stream, sequence, ack_through, nacks, flags, resend_delay_s)
    if size:
        _decode_options(packet, data[at:end])
    packet.data = data[end:]
    return packet


def _decode_options(packet: Packet, options: bytes) -> None:
    at = 0
    if packet.flags & DELAY_REQUESTED:
        packet.delay_ms = _u16(options, at)
        at += 2
    if packet.flags & FROM_INCLUDED:
        packet.destination, _ = split_destination(options[at:])
        at += len(packet.destination)
    if packet.flags & MAX_PACKET_SIZE:
        packet.max_data = _u16(options, at)
        at += 2
    packet.signed_options = options[at:]


def _u16(options: bytes, at: int) -> int:
    if len(options) < at + 2:
        raise ValueError("the options are truncated")
    return int.from_bytes(options[at : at + 2], "big")


def encode_packet(
    packet: Packet, sign: Callable[[bytes], bytes] | None = None, signature_bytes: int = 64
) -> bytes:
    """The bytes of a packet. Flags of options must be set by the caller, but for `SIGNATURE_INCLUDED`.

    :param sign: returns the signature of its argument; the packet gets it. ``signed_options`` stand before it
    :param signature_bytes: how long that is
    """
    flags = packet.flags
    if sign is None and not flags and not packet.nacks:
        return (
            _NO_NACKS.pack(
                *(packet.to_stream, packet.from_stream, packet.sequence, packet.ack_through),
                *(0, packet.resend_delay_s, 0, 0),
            )
            + packet.data
        )
    options = b""
    if packet.delay_ms is not None:
        options += _U16.pack(packet.delay_ms)
    if packet.destination is not None:
        options += packet.destination
    if packet.max_data is not None:
        options += _U16.pack(packet.max_data)
    options += packet.signed_options
    if sign is not None:
        flags |= SIGNATURE_INCLUDED
        options += bytes(signature_bytes)
    count = len(packet.nacks)
    encoded = b"".join(
        (
            _HEADER.pack(packet.to_stream, packet.from_stream, packet.sequence, packet.ack_through, count),
            struct.pack(f">{count}I", *packet.nacks),
            _AFTER_NACKS.pack(packet.resend_delay_s, flags, len(options)),
            options,
            packet.data,
        )
    )
    if sign is None:
        return encoded
    end = len(encoded) - len(packet.data)
    return encoded[: end - signature_bytes] + sign(encoded) + packet.data
