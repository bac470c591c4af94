"""Signing keys: the types that destinations have, how they verify, and which of them sign here.

=======  ============================  ===============  ================================================
type     name in I2P                   public key       signs here
=======  ============================  ===============  ================================================
1        ECDSA_SHA256_P256             64               yes
2, 3     ECDSA_SHA384_P384, …512_P521  96, 132          no: of peers only
7        EdDSA_SHA512_Ed25519          32               yes
11       RedDSA_SHA512_Ed25519         32               no: a router does (SAM); it verifies as type 7
=======  ============================  ===============  ================================================

Types 1, 7 and 11 have private keys of 32 bytes and signatures of 64. DSA with SHA-1, type 0, the default
before 2015, and RSA are refused: no router makes such destinations for clients today.

`cryptography` is imported where a key is used, as `garlicfarm.i2p.destination` says.

Source: I2P common structures, "KeysAndCert", "KeyCertificate".
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

NAMES = {0: "DSA_SHA1", 1: "ECDSA_SHA256_P256", 7: "EdDSA_SHA512_Ed25519", 11: "RedDSA_SHA512_Ed25519"}
"""Those that destinations have, or once had, as routers name them."""
P256, ED25519, REDDSA = 1, 7, 11
PRIVATE_BYTES = 32
SIGNATURE_BYTES = 64
"""Of keys of our own, which are of these three types."""

Check = Callable[[bytes, bytes], None]
"""``check(signature, data)`` raises `ValueError` where they do not match."""


class Verifier(msgspec.Struct, frozen=True):
    """A public key, as I2P writes it, and what it verifies."""

    type: int
    public: bytes
    signature_bytes: int
    check: Check


class KeyType(msgspec.Struct, frozen=True):
    """``key_bytes``: of the public key."""

    key_bytes: int
    signature_bytes: int
    load: Callable[[bytes], Check]


def key_type(number: int) -> KeyType:
    """Raises `ValueError`: it is not supported."""
    if number not in _KEY_TYPES:
        name = f" ({NAMES[number]})" if number in NAMES else ""
        raise ValueError(f"signing keys of type {number}{name} are not supported")
    return _KEY_TYPES[number]


def verifier(number: int, public: bytes) -> Verifier:
    """The public key of this type. Raises `ValueError`: the type is not supported, or there is no such
    key."""
    kind = key_type(number)
    if len(public) != kind.key_bytes:
        raise ValueError("the public key has another length")
    return Verifier(number, public, kind.signature_bytes, kind.load(public))


def public_key(number: int, private: bytes) -> bytes:
    """The public half of a private key of 32 bytes that signs here. Raises `ValueError`: it has another
    length, or is none, or its type does not sign here."""
    if len(private) != PRIVATE_BYTES:
        raise ValueError("a private key has 32 bytes")
    if number == ED25519:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    if number == P256:
        from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, derive_private_key

        numbers = (
            derive_private_key(int.from_bytes(private, "big"), SECP256R1()).public_key().public_numbers()
        )
        return numbers.x.to_bytes(32, "big") + numbers.y.to_bytes(32, "big")
    raise ValueError(f"keys of type {number} do not sign here")


def sign(number: int, private: bytes, data: bytes) -> bytes:
    """The signature of ``data``, 64 bytes. Raises `ValueError` as `public_key` does."""
    if number == ED25519:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(private).sign(data)
    if number == P256:
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, derive_private_key
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
        from cryptography.hazmat.primitives.hashes import SHA256

        key = derive_private_key(int.from_bytes(private, "big"), SECP256R1())
        r, s = decode_dss_signature(key.sign(data, ECDSA(SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")
    raise ValueError(f"keys of type {number} do not sign here")


def _ecdsa(number: int) -> Callable[[bytes], Check]:
    def load(public: bytes) -> Check:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import (
            ECDSA,
            SECP256R1,
            SECP384R1,
            SECP521R1,
            EllipticCurvePublicNumbers,
        )
        from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
        from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512

        curve, hash_ = {
            1: (SECP256R1(), SHA256()),
            2: (SECP384R1(), SHA384()),
            3: (SECP521R1(), SHA512()),
        }[number]
        half = len(public) // 2
        x, y = int.from_bytes(public[:half], "big"), int.from_bytes(public[half:], "big")
        key = EllipticCurvePublicNumbers(x, y, curve).public_key()

        def check(signature: bytes, data: bytes) -> None:
            r, s = int.from_bytes(signature[:half], "big"), int.from_bytes(signature[half:], "big")
            try:
                key.verify(encode_dss_signature(r, s), data, ECDSA(hash_))
            except InvalidSignature:
                raise ValueError("the signature does not match") from None

        return check

    return load


def _eddsa(public: bytes) -> Check:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = Ed25519PublicKey.from_public_bytes(public)

    def check(signature: bytes, data: bytes) -> None:
        try:
            key.verify(signature, data)
        except InvalidSignature:
            raise ValueError("the signature does not match") from None

    return check


_KEY_TYPES = {
    P256: KeyType(64, 64, _ecdsa(1)),
    2: KeyType(96, 96, _ecdsa(2)),
    3: KeyType(132, 132, _ecdsa(3)),
    ED25519: KeyType(32, 64, _eddsa),
    REDDSA: KeyType(32, 64, _eddsa),
}
