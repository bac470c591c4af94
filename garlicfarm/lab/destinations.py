"""Destinations for simulated routers: no router serves them, but their keys are valid in I2P."""

from __future__ import annotations

import random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["simulated_destination"]


def simulated_destination(seed: int) -> bytes:
    """A destination of 391 bytes with a real Ed25519 key, the same for the same ``seed``.

    ``encryption key 256 (unused) | padding 96 | public key 32 | 05 | 0004 | 0007 | 0000``
    (common structures: Destination, KeyCertificate).
    """
    rng = random.Random(f"destination {seed}")
    key = Ed25519PrivateKey.from_private_bytes(rng.randbytes(32)).public_key().public_bytes_raw()
    return rng.randbytes(256 + 96) + key + bytes.fromhex("05000400070000")
