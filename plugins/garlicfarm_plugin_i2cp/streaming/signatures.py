"""Signed packets of peers: the key of their destination, or a transient one that it permits.

Source: I2P common structures, "OfflineSignature"; streaming specification, "Variable Length Signature Notes".
"""

from __future__ import annotations

import struct

from garlicfarm.i2p.signing import ED25519, P256, REDDSA, Verifier, key_type, verifier
from garlicfarm_plugin_i2cp.streaming.packet import OFFLINE_SIGNATURE, SIGNATURE_INCLUDED, Packet

COSTS = {P256: 1, 2: 4, 3: 5, ED25519: 1, REDDSA: 1}
"""What a signature of each type takes to verify, with the loading of its key, in signatures of Ed25519, as
whole numbers, by ``python -m benchmarks.signatures``."""

_OFFLINE = struct.Struct(">IH")


def cost_of(packet: Packet, long_term: Verifier, transient: Verifier | None) -> int:
    """What `verify_packet` costs at most, by `COSTS`."""
    if not packet.flags & OFFLINE_SIGNATURE:
        return COSTS[(transient or long_term).type]
    options = packet.signed_options
    number: int = _OFFLINE.unpack_from(options)[1] if len(options) >= _OFFLINE.size else -1
    return COSTS[long_term.type] + COSTS.get(number, 0)  # an unknown type is refused before it is verified


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
    signed = _OFFLINE.size + key_type(number).key_bytes
    end = signed + long_term.signature_bytes
    if len(options) < end:
        raise ValueError("the offline signature is truncated")
    long_term.check(options[signed:end], options[:signed])
    if expires_s * 1000 <= now_ms:
        raise ValueError("the offline signature has expired")
    return verifier(number, options[_OFFLINE.size : signed]), end
