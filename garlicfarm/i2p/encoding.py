"""I2P's base64 and base32.

I2P's base64 has ``-`` and ``~`` instead of the ``+`` and ``/`` of RFC 4648, and keeps the ``=``. Each value
has one spelling here: spare bits must be zero, and no other characters are allowed.

Source: I2P naming, "Base 32 names"; common structures.
"""

from __future__ import annotations

import base64
import binascii
from hashlib import sha256

B32 = ".b32.i2p"
_TO_I2P = bytes.maketrans(b"+/", b"-~")
_FROM_I2P = bytes.maketrans(b"-~", b"+/")


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


def b32_address(destination: bytes) -> str:
    """The address of a binary destination: 52 characters and ``.b32.i2p``."""
    return b32_of_hash(sha256(destination).digest())


def b32_of_hash(hash_: bytes) -> str:
    """The same from the SHA-256 of the destination."""
    return base64.b32encode(hash_).decode("ascii").rstrip("=").lower() + B32
