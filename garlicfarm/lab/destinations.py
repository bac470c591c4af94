"""Destinations for simulated routers: no router serves them, but their keys are valid in I2P."""

from __future__ import annotations

import random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from garlicfarm.i2p.destination import FILLER_BYTES, make_destination


def simulated_destination(seed: int) -> bytes:
    """A destination of 391 bytes with a real Ed25519 key, the same for the same ``seed``."""
    rng = random.Random(f"destination {seed}")
    key = Ed25519PrivateKey.from_private_bytes(rng.randbytes(32)).public_key().public_bytes_raw()
    return make_destination(key, rng.randbytes(FILLER_BYTES))
