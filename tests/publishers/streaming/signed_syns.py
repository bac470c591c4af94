"""SYNs of peers whose keys are of any type."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512

from garlicfarm_plugin_i2cp.streaming.packet import FROM_INCLUDED, SYNCHRONIZE, Packet, encode_packet
from tests.i2p.encodings import destination_of

CURVES: dict[int, tuple[Any, Any, int]] = {
    1: (ec.SECP256R1(), SHA256(), 32),
    2: (ec.SECP384R1(), SHA384(), 48),
    3: (ec.SECP521R1(), SHA512(), 66),
}
_ED25519 = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def syn(destination: bytes, **changes: Any) -> Packet:
    return Packet(
        0, 7, 0, 0, flags=SYNCHRONIZE | FROM_INCLUDED, destination=destination, data=b"hello", **changes
    )


def signed_syn(kind: int) -> tuple[bytes, bytes]:
    """A destination with a key of this type, and the bytes of its SYN."""
    if kind not in CURVES:
        destination = destination_of(kind, _ED25519.public_key().public_bytes_raw())
        return destination, encode_packet(syn(destination), _ED25519.sign)
    curve, hash_, half = CURVES[kind]
    private = ec.derive_private_key(12345, curve)
    numbers = private.public_key().public_numbers()
    key = numbers.x.to_bytes(half, "big") + numbers.y.to_bytes(half, "big")

    def sign(data: bytes) -> bytes:
        r, s = decode_dss_signature(private.sign(data, ec.ECDSA(hash_)))
        return r.to_bytes(half, "big") + s.to_bytes(half, "big")

    destination = destination_of(kind, key)
    return destination, encode_packet(syn(destination), sign, 2 * half)
