"""Offline signatures: the long-term key of a destination lets a transient key sign in its place for a while.

::

    block = expires u32 (s) | transient type u16, 7 | transient public key 32 | signature 64       102 bytes

The long-term key signs the first 38 bytes.

Source: I2P proposal 123, "Offline keys"; common structures, "OfflineSignature".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Self

import msgspec

from garlicfarm.i2p.destination import signing_key
from garlicfarm.i2p.signing import ED25519, Verifier, verifier

OFFLINE_BYTES = 102

_SIGNED = struct.Struct(">IH32s")


class OfflineSignature(msgspec.Struct, frozen=True):
    """``expires_s``: s since 1970, 0 … 2^32 - 1. ``transient``: the public key, 32 bytes. ``signature``: 64
    bytes."""

    expires_s: int
    transient: bytes
    signature: bytes

    def encode(self) -> bytes:
        """The 102 bytes. Raises `ValueError`: a field is outside its range."""
        if len(self.signature) != 64:
            raise ValueError("a signature has 64 bytes")
        return _signed(self.transient, self.expires_s) + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `ValueError`: not 102 bytes, or the transient key is of another type."""
        if len(data) != OFFLINE_BYTES:
            raise ValueError("not an offline signature")
        expires_s, kind, transient = _SIGNED.unpack_from(data)
        if kind != ED25519:
            raise ValueError("the transient key is not of type 7 (Ed25519)")
        return cls(expires_s, transient, data[_SIGNED.size :])

    def verify(self, destination: bytes) -> None:
        """Raises `ValueError`: the long-term key of this binary destination did not sign it."""
        signing_key(destination).check(self.signature, _signed(self.transient, self.expires_s))


def sign_offline(sign: Callable[[bytes], bytes], transient: bytes, expires_s: int) -> OfflineSignature:
    """Let the key whose public half is ``transient`` sign until ``expires_s`` (s since 1970). ``sign``
    returns the 64-byte signature of its argument by the long-term key. Raises `ValueError`: an argument is
    outside its range."""
    return OfflineSignature(expires_s, transient, sign(_signed(transient, expires_s)))


def signer(destination: bytes, offline: OfflineSignature | None) -> Verifier:
    """The key that signs for a destination now. Raises `ValueError`: the destination's key is of another
    type, or did not sign ``offline``."""
    if offline is None:
        return signing_key(destination)
    offline.verify(destination)
    return verifier(ED25519, offline.transient)


def _signed(transient: bytes, expires_s: int) -> bytes:
    if len(transient) != 32 or not 0 <= expires_s < 2**32:
        raise ValueError("an offline signature needs a public key of 32 bytes and a date below 2^32 seconds")
    return _SIGNED.pack(expires_s, ED25519, transient)
