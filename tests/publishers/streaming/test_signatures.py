"""Signatures of peers: key types, transient keys, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from garlicfarm.i2p.destination import signing_key
from garlicfarm.i2p.offline_signature import sign_offline
from garlicfarm.i2p.signing import key_type
from garlicfarm_plugin_i2cp.streaming.packet import (
    CLOSE,
    OFFLINE_SIGNATURE,
    Packet,
    decode_packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.signatures import COSTS, cost_of, verify_packet
from tests.i2p.encodings import destination_of
from tests.publishers.streaming.network import NOW_MS, PEERS
from tests.publishers.streaming.signed_syns import CURVES, signed_syn, syn

TRANSIENT = Ed25519PrivateKey.from_private_bytes(bytes([77]) * 32)


def check(destination: bytes, encoded: bytes, now_ms: int = NOW_MS) -> None:
    verify_packet(encoded, decode_packet(encoded), signing_key(destination), None, now_ms)


@pytest.mark.parametrize("kind", [7, 11])
def test_ed25519_and_reddsa_are_verified(kind: int) -> None:
    destination, encoded = signed_syn(kind)
    check(destination, encoded)
    with pytest.raises(ValueError, match="does not match"):
        check(destination, encoded[:-1] + b"?")


@pytest.mark.parametrize("kind", sorted(CURVES))
def test_ecdsa_is_verified(kind: int) -> None:
    destination, encoded = signed_syn(kind)
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


@pytest.mark.parametrize("kind", sorted(COSTS))
def test_cost_is_that_of_the_key_that_signs(kind: int) -> None:
    destination, encoded = signed_syn(kind)
    assert cost_of(decode_packet(encoded), signing_key(destination), None) == COSTS[kind]
    later = decode_packet(encode_packet(Packet(1, 7, 3, 0, flags=CLOSE), TRANSIENT.sign))
    transient = signing_key(signed_syn(7)[0])
    assert cost_of(later, signing_key(destination), transient) == COSTS[7]


@pytest.mark.parametrize(("kind", "cost"), [(7, 2), (3, 6), (99, 1)])
def test_cost_of_an_offline_signature_is_that_of_both_keys(kind: int, cost: int) -> None:
    block = bytes(4) + kind.to_bytes(2, "big") + bytes(200)
    packet = decode_packet(offline_syn(0, block=block))
    assert cost_of(packet, signing_key(PEERS[0].destination), None) == cost


def test_cost_of_an_offline_signature_that_is_cut_short_is_that_of_the_long_term_key() -> None:
    packet = Packet(0, 7, 0, 0, flags=OFFLINE_SIGNATURE, signed_options=bytes(5))
    assert cost_of(packet, signing_key(signed_syn(2)[0]), None) == 4


def test_types_that_are_verified_have_a_cost() -> None:
    for kind in range(20):
        try:
            key_type(kind)
        except ValueError:
            assert kind not in COSTS
        else:
            assert kind in COSTS
