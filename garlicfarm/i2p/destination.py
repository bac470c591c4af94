"""Destinations, and the public keys in them.

::

    destination = 256 bytes encryption key | 128 bytes signing field | certificate
    certificate = type u8 | length u16 | length bytes             387 bytes and more in all

The signing field ends with the public key; what does not fit into it follows in the certificate. One that we
make has 391 bytes: its encryption key is unused, and its certificate is ``05 0004 0007 0000``: a key
certificate, signing type 7 (Ed25519), encryption type 0.

`cryptography` is imported where a key is used: no command that only names destinations needs it, nor does a
node without keys, and it would be a tenth of what they import.

Source: I2P common structures, "Destination", "KeyCertificate".
"""

from __future__ import annotations

from base64 import b32decode
from hashlib import sha256

from garlicfarm.i2p.encoding import B32, decode, decode_hash, encode
from garlicfarm.i2p.signing import Verifier, key_type, verifier

DESTINATION_BYTES = 391
"""Of a destination with an Ed25519 key."""
FILLER_BYTES = 256 + 96

_HASH_CHARS = 44
_CERTIFICATE_LENGTH = slice(385, 387)
_MIN_DESTINATION_BYTES = 387
_SIGNING_FIELD = slice(256, 384)
_CERTIFICATE_AT = 384
_KEY_CERTIFICATE_TYPE = 5
_KEY_CERTIFICATE = bytes.fromhex("050004")
_ED25519 = bytes.fromhex("0007")
_ENCRYPTION_TYPE_0 = bytes(2)


def decode_destination(text: str) -> bytes:
    """A destination in I2P base64 to its binary form, of exactly the length that its certificate
    says. Raises `ValueError`."""
    destination, rest = split_destination(decode(text))
    if rest:
        raise ValueError("not a destination")
    return destination


def split_destination(data: bytes) -> tuple[bytes, bytes]:
    """The destination that ``data`` begins with, and the rest. Raises `ValueError`: it is too short."""
    end = _MIN_DESTINATION_BYTES + int.from_bytes(data[_CERTIFICATE_LENGTH], "big")
    if len(data) < end:
        raise ValueError("not a destination")
    return data[:end], data[end:]


def hash_of(text: str) -> bytes:
    """The 32-byte hash of a destination from any of its names: the address ….b32.i2p, the hash in I2P base64,
    or the destination itself. Raises `ValueError`."""
    if text.endswith(B32):
        digits = text.removesuffix(B32).upper()
        return decode_hash(encode(b32decode(digits + "=" * (-len(digits) % 8))))
    return decode_hash(text) if len(text) <= _HASH_CHARS else destination_hash(text)


def destination_hash(text: str) -> bytes:
    """The 32-byte SHA-256 under which a destination (I2P base64) is known. Raises `ValueError`."""
    return sha256(decode_destination(text)).digest()


def make_destination(public: bytes, filler: bytes) -> bytes:
    """The destination of an Ed25519 public key of 32 bytes. ``filler``: 352 random bytes, which make its
    hash one of many for this key."""
    if len(public) != 32 or len(filler) != FILLER_BYTES:
        raise ValueError("a destination is made of a public key of 32 bytes and 352 bytes of filler")
    return filler + public + _KEY_CERTIFICATE + _ED25519 + _ENCRYPTION_TYPE_0


def signing_key(destination: bytes) -> Verifier:
    """The public key of a binary destination. Raises `ValueError`: it is none, or its type is not
    supported."""
    if split_destination(destination)[1]:
        raise ValueError("not a destination")
    certificate = destination[_CERTIFICATE_AT:]
    if certificate[0] != _KEY_CERTIFICATE_TYPE or len(certificate) < len(_KEY_CERTIFICATE) + 4:
        return verifier(0, destination[_SIGNING_FIELD])
    number = int.from_bytes(certificate[3:5], "big")
    field, size = destination[_SIGNING_FIELD], key_type(number).key_bytes
    excess = max(0, size - len(field))
    return verifier(number, field[-size:] + certificate[7 : 7 + excess])
