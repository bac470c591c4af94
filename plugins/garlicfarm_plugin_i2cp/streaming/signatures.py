"""Signatures of peers: the key types of their destinations, their transient keys, and signed packets.

Ed25519, RedDSA (which verifies as Ed25519) and ECDSA. DSA with SHA-1, the default before 2015, and RSA are
refused: no router makes such destinations for clients today.

Source: I2P common structures, "KeysAndCert", "KeyCertificate", "OfflineSignature"; streaming specification,
"Variable Length Signature Notes".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    SECP384R1,
    SECP521R1,
    EllipticCurve,
    EllipticCurvePublicNumbers,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm

from garlicfarm.i2p.destination import check_signature
from garlicfarm_plugin_i2cp.streaming.packet import OFFLINE_SIGNATURE, SIGNATURE_INCLUDED, Packet

_SIGNING_FIELD = slice(256, 384)
_CERTIFICATE_AT = 384
_KEY_CERTIFICATE = 5
_OFFLINE = struct.Struct(">IH")


class Verifier(msgspec.Struct, frozen=True):
    """A public key. ``check(signature, data)`` raises `ValueError` where they do not match."""

    signature_bytes: int
    check: Callable[[bytes, bytes], None]


class _KeyType(msgspec.Struct, frozen=True):
    key_bytes: int
    signature_bytes: int
    load: Callable[[bytes], Callable[[bytes, bytes], None]]


def verifier_of(destination: bytes) -> Verifier:
    """The long-term key of a binary destination. Raises `ValueError`: its type is not supported."""
    certificate = destination[_CERTIFICATE_AT:]
    if certificate[0] != _KEY_CERTIFICATE or len(certificate) < 7:
        raise ValueError("signing keys of type 0 (DSA) are not supported")
    number = int.from_bytes(certificate[3:5], "big")
    key_type = _key_type(number)
    field = destination[_SIGNING_FIELD]
    excess = key_type.key_bytes - len(field)
    key = field[-key_type.key_bytes :] if excess <= 0 else field + certificate[7 : 7 + excess]
    return _load(key_type, key)


def verify_packet(
    encoded: bytes, packet: Packet, long_term: Verifier, transient: Verifier | None, now_ms: int
) -> Verifier:
    """Check the signature of a packet, and of its offline signature if there is one.

    :param encoded: the bytes of ``packet``
    :param long_term: the key of the destination that it is from
    :param transient: its transient key, from an earlier packet
    :param now_ms: ms since 1970
    :return: the key that signs for the destination now
    :raises ValueError: unsigned, malformed, expired, or a signature does not match
    """
    options = packet.signed_options
    if not packet.flags & SIGNATURE_INCLUDED:
        raise ValueError("the packet is not signed")
    signer = transient or long_term
    at = 0
    if packet.flags & OFFLINE_SIGNATURE:
        signer, at = _check_offline(options, long_term, now_ms)
    signature = options[at:]
    if len(signature) != signer.signature_bytes:
        raise ValueError("the signature has another length")
    end = len(encoded) - len(packet.data)
    signer.check(signature, encoded[: end - len(signature)] + bytes(len(signature)) + packet.data)
    return signer


def _check_offline(options: bytes, long_term: Verifier, now_ms: int) -> tuple[Verifier, int]:
    """The transient key, and where its block ends."""
    if len(options) < _OFFLINE.size:
        raise ValueError("the offline signature is truncated")
    expires_s, number = _OFFLINE.unpack_from(options)
    key_type = _key_type(number)
    signed = _OFFLINE.size + key_type.key_bytes
    end = signed + long_term.signature_bytes
    if len(options) < end:
        raise ValueError("the offline signature is truncated")
    long_term.check(options[signed:end], options[:signed])
    if expires_s * 1000 <= now_ms:
        raise ValueError("the offline signature has expired")
    return _load(key_type, options[_OFFLINE.size : signed]), end


def _key_type(number: int) -> _KeyType:
    if number not in _KEY_TYPES:
        raise ValueError(f"signing keys of type {number} are not supported")
    return _KEY_TYPES[number]


def _load(key_type: _KeyType, key: bytes) -> Verifier:
    if len(key) != key_type.key_bytes:
        raise ValueError("the public key is truncated")
    return Verifier(key_type.signature_bytes, key_type.load(key))


def _ecdsa(curve: EllipticCurve, hash_: HashAlgorithm, half: int) -> _KeyType:
    """``half``: the length of a coordinate, and of each of the two numbers of a signature."""

    def load(key: bytes) -> Callable[[bytes, bytes], None]:
        x, y = int.from_bytes(key[:half], "big"), int.from_bytes(key[half:], "big")
        public = EllipticCurvePublicNumbers(x, y, curve).public_key()

        def check(signature: bytes, data: bytes) -> None:
            r, s = int.from_bytes(signature[:half], "big"), int.from_bytes(signature[half:], "big")
            try:
                public.verify(encode_dss_signature(r, s), data, ECDSA(hash_))
            except InvalidSignature:
                raise ValueError("the signature does not match") from None

        return check

    return _KeyType(2 * half, 2 * half, load)


_ED25519 = _KeyType(32, 64, lambda key: partial(check_signature, Ed25519PublicKey.from_public_bytes(key)))
_KEY_TYPES = {
    1: _ecdsa(SECP256R1(), SHA256(), 32),
    2: _ecdsa(SECP384R1(), SHA384(), 48),
    3: _ecdsa(SECP521R1(), SHA512(), 66),
    7: _ED25519,
    11: _ED25519,
}
"""By the numbers in a key certificate: 11 is RedDSA with SHA-512 on Ed25519."""
