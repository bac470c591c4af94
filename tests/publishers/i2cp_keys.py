"""Keys of a master destination, and Meta LeaseSets that they sign."""

from __future__ import annotations

import hashlib
import time

from garlicfarm.i2p.destination import FILLER_BYTES
from garlicfarm.i2p.keys import DestinationKeys, make_bundle
from garlicfarm.i2p.lease_set import MetaLease, MetaLeaseSet, encode_meta_lease_set
from garlicfarm.publisher import PublishOrder
from tests.i2p.encodings import long_term

LIFETIME_S = 6 * 3600  # more than a run of all tests takes
DAY_S = 86_400
FILLER = hashlib.shake_128(b"filler").digest(FILLER_BYTES)
"""As `create_keys` draws it, without repetitions: Java I2P 2.7.0 fails on those (KeysAndCert.getPadding)."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def long_term_keys(number: int = 1) -> DestinationKeys:
    return long_term(number.to_bytes(2, "big") * 16 if number > 255 else bytes([number]) * 32, FILLER)


def bundle(now_ms: int, *, expires_s: int | None = None, hops: int = 3) -> DestinationKeys:
    return make_bundle(
        long_term_keys(),
        bytes([9]) * 32,
        node=1,
        expires_s=now_ms // 1000 + DAY_S if expires_s is None else expires_s,
        now_ms=now_ms,
        hops=hops,
        quantity=2,
    )


def meta_lease_set(keys: DestinationKeys, published_ms: int, lifetime_s: int = LIFETIME_S) -> bytes:
    published_s = published_ms // 1000
    meta = MetaLeaseSet(
        destination=keys.destination,
        published_s=published_s,
        expires_s=lifetime_s,
        leases=(MetaLease(bytes(range(32)), 0, published_s + lifetime_s),),
        offline=keys.offline,
    )
    return encode_meta_lease_set(meta, keys.sign)


def publication(
    keys: DestinationKeys, due_index: int, published_ms: int, lifetime_s: int = LIFETIME_S
) -> PublishOrder:
    return PublishOrder(
        due_index=due_index,
        published_ms=published_ms,
        expires_ms=published_ms // 1000 * 1000 + lifetime_s * 1000,
        lease_set=meta_lease_set(keys, published_ms, lifetime_s),
    )
