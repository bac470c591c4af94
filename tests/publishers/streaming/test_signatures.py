"""Signatures of peers: key types, transient keys, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512

from garlicfarm.i2p.destination import signing_key
from garlicfarm.i2p.offline_signature import sign_offline
from garlicfarm_plugin_i2cp.streaming.packet import (
    CLOSE,
    FROM_INCLUDED,
    OFFLINE_SIGNATURE,
    SYNCHRONIZE,
    Packet,
    decode_packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.signatures import verify_packet
from tests.i2p.encodings import destination_of
from tests.publishers.streaming.network import NOW_MS, PEERS

CURVES: dict[int, tuple[Any, Any, int]] = {
    1: (ec.SECP256R1(), SHA256(), 32),
    2: (ec.SECP384R1(), SHA384(), 48),
    3: (ec.SECP521R1(), SHA512(), 66),
}
SEED = bytes(range(32))
ED25519 = Ed25519PrivateKey.from_private_bytes(SEED)
TRANSIENT = Ed25519PrivateKey.from_private_bytes(bytes([77]) * 32)


def ecdsa(kind: int) -> tuple[bytes, Any, int]:
    """A destination, what signs for it, and how long that is."""
    curve, hash_, half = CURVES[kind]
    private = ec.derive_private_key(12345, curve)
    numbers = private.public_key().public_numbers()
    key = numbers.x.to_bytes(half, "big") + numbers.y.to_bytes(half, "big")

    def sign(data: bytes) -> bytes:
        r, s = decode_dss_signature(private.sign(data, ec.ECDSA(hash_)))
        return r.to_bytes(half, "big") + s.to_bytes(half, "big")

    return destination_of(kind, key), sign, 2 * half


def check(destination: bytes, encoded: bytes, now_ms: int = NOW_MS) -> None:
    verify_packet(encoded, decode_packet(encoded), signing_key(destination), None, now_ms)


def syn(destination: bytes, **changes: Any) -> Packet:
    return Packet(
        0, 7, 0, 0, flags=SYNCHRONIZE | FROM_INCLUDED, destination=destination, data=b"hello", **changes
    )


@pytest.mark.parametrize("kind", [7, 11])
def test_ed25519_and_reddsa_are_verified(kind: int) -> None:
    destination = destination_of(kind, ED25519.public_key().public_bytes_raw())
    encoded = encode_packet(syn(destination), ED25519.sign)
    check(destination, encoded)
    with pytest.raises(ValueError, match="does not match"):
        check(destination, encoded[:-1] + b"?")


@pytest.mark.parametrize("kind", sorted(CURVES))
def test_ecdsa_is_verified(kind: int) -> None:
    destination, sign, size = ecdsa(kind)
    encoded = encode_packet(syn(destination), sign, size)
    check(destination, encoded)
    with pytest.raises(ValueError, match="does not match"):
        check(destination, encoded[:-1] + b"?")


@pytest.mark.parametrize("kind", [0, 4, 5, 6, 8, 10, 99])
def test_other_key_types_are_refused(kind: int) -> None:
    with pytest.raises(ValueError, match="not supported"):
        signing_key(destination_of(kind, bytes(32)))


def test_destination_without_a_key_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="not supported"):
        signing_key(bytes(384) + b"\0\0\0")


@pytest.mark.parametrize("kind", sorted(CURVES))
def test_ecdsa_key_that_is_no_point_is_refused(kind: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        signing_key(destination_of(kind, b"\x01" * (2 * CURVES[kind][2])))


def offline_syn(expires_s: int, **changes: Any) -> bytes:
    peer = PEERS[0]
    block = sign_offline(peer.sign, TRANSIENT.public_key().public_bytes_raw(), expires_s).encode()
    packet = syn(peer.destination, signed_options=changes.pop("block", block))
    packet.flags |= OFFLINE_SIGNATURE
    return encode_packet(packet, TRANSIENT.sign)


def test_transient_key_signs_until_it_expires() -> None:
    encoded = offline_syn(NOW_MS // 1000 + 1)
    check(PEERS[0].destination, encoded)
    check(PEERS[0].destination, encoded, NOW_MS + 999)
    with pytest.raises(ValueError, match="expired"):
        check(PEERS[0].destination, encoded, NOW_MS + 1000)


def test_transient_key_of_an_earlier_packet_signs_later_ones() -> None:
    long_term = signing_key(PEERS[0].destination)
    first = offline_syn(NOW_MS // 1000 + 1)
    transient = verify_packet(first, decode_packet(first), long_term, None, NOW_MS)
    later = encode_packet(Packet(1, 7, 3, 0, flags=CLOSE), TRANSIENT.sign)
    assert verify_packet(later, decode_packet(later), long_term, transient, NOW_MS) is transient
    with pytest.raises(ValueError, match="does not match"):
        verify_packet(later, decode_packet(later), long_term, None, NOW_MS)


def test_transient_key_that_another_signed_is_refused() -> None:
    block = sign_offline(PEERS[1].sign, TRANSIENT.public_key().public_bytes_raw(), 2**32 - 1).encode()
    with pytest.raises(ValueError, match="does not match"):
        check(PEERS[0].destination, offline_syn(0, block=block))


@pytest.mark.parametrize("block", [b"", bytes(5), bytes(6), b"\xff\xff\xff\xff\0\7" + bytes(90)])
def test_offline_signature_that_is_cut_short_is_refused(block: bytes) -> None:
    packet = syn(PEERS[0].destination, signed_options=block)
    packet.flags |= OFFLINE_SIGNATURE
    encoded = encode_packet(packet, lambda data: b"", 0)
    with pytest.raises(ValueError, match=r"truncated|not supported"):
        check(PEERS[0].destination, encoded)


def test_unsigned_packet_is_refused() -> None:
    with pytest.raises(ValueError, match="not signed"):
        check(PEERS[0].destination, encode_packet(syn(PEERS[0].destination)))


def test_signature_of_another_length_is_refused() -> None:
    encoded = encode_packet(syn(PEERS[0].destination), lambda data: bytes(63), 63)
    with pytest.raises(ValueError, match="length"):
        check(PEERS[0].destination, encoded)
