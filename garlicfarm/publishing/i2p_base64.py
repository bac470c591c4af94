"""I2P's base64, and the shape of a destination.

I2P's base64 has ``-`` and ``~`` instead of the ``+`` and ``/`` of RFC 4648, and keeps the ``=``. Each value
has one spelling here: spare bits must be zero, and no other characters are allowed. ::

    destination = 256 bytes encryption key | 128 bytes signing field | certificate
    certificate = type u8 | length u16 | length bytes             387 bytes and more in all

Source: I2P common structures, "Destination".
"""

from __future__ import annotations

import binascii
from hashlib import sha256

__all__ = ["decode", "decode_destination", "decode_hash", "destination_hash", "encode", "router_hash"]

_TO_I2P = bytes.maketrans(b"+/", b"-~")
_FROM_I2P = bytes.maketrans(b"-~", b"+/")
_CERTIFICATE_LENGTH = slice(385, 387)
_MIN_DESTINATION_BYTES = 387


def encode(data: bytes) -> str:
    """Bytes to I2P base64."""
    return binascii.b2a_base64(data, newline=False).translate(_TO_I2P).decode("ascii")


def decode(text: str) -> bytes:
    """I2P base64 to bytes. Raises `ValueError` for anything that `encode` does not write."""
    try:
        data = binascii.a2b_base64(text.encode("ascii").translate(_FROM_I2P))
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("not I2P base64") from None
    if encode(data) != text:  # the decoder skips unknown characters and ignores spare bits
        raise ValueError("not I2P base64")
    return data


def decode_hash(text: str) -> bytes:
    """A SHA-256 in I2P base64 to its 32 bytes. Raises `ValueError`."""
    data = decode(text)
    if len(data) != 32:
        raise ValueError("not a hash")
    return data


def decode_destination(text: str) -> bytes:
    """A destination in I2P base64 to its binary form, of exactly the length that its certificate
    says. Raises `ValueError`."""
    data = decode(text)
    if len(data) < _MIN_DESTINATION_BYTES or len(data) != _MIN_DESTINATION_BYTES + int.from_bytes(
        data[_CERTIFICATE_LENGTH], "big"
    ):
        raise ValueError("not a destination")
    return data


def destination_hash(text: str) -> bytes:
    """The 32-byte SHA-256 under which a destination is known. Raises `ValueError`."""
    return sha256(decode_destination(text)).digest()


def router_hash(router_info: str) -> bytes:
    """The 32-byte SHA-256 under which the router of a router info (base64) is known: that of the identity
    it begins with, which has the shape of a destination. Raises `ValueError` for any other text."""
    data = decode(router_info)
    return sha256(data[: _MIN_DESTINATION_BYTES + int.from_bytes(data[_CERTIFICATE_LENGTH], "big")]).digest()
