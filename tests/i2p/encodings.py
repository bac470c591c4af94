"""What the tests of I2P's structures share: strategies, and a second encoder of the LeaseSet2."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import strategies as st

from garlicfarm.i2p.destination import FILLER_BYTES, make_destination
from garlicfarm.i2p.keys import DestinationKeys, make_bundle
from garlicfarm.i2p.lease_set import X25519, EncryptionKey, Lease, LeaseSet, encode_lease_set
from garlicfarm.i2p.offline_signature import OfflineSignature
from garlicfarm.i2p.signing import P256, public_key

U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
SEEDS = st.binary(min_size=32, max_size=32)
NEVER_S = 2**32 - 1


def public(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def long_term(seed: bytes, filler: bytes = bytes(FILLER_BYTES)) -> DestinationKeys:
    return DestinationKeys(destination=make_destination(public(seed), filler), seed=seed)


def destination_of(kind: int, key: bytes) -> bytes:
    """A destination with a public key of this type."""
    field = key[:128].rjust(128, b"f")
    extra = key[128:]
    return bytes(256) + field + struct.pack(">BHHH", 5, 4 + len(extra), kind, 0) + extra


def ecdsa_keys(number: int) -> DestinationKeys:
    """Long-term keys of type 1."""
    seed = number.to_bytes(32, "big")
    return DestinationKeys(destination=destination_of(P256, public_key(P256, seed)), seed=seed)


@st.composite
def all_keys(draw: st.DrawFn, expires_s: int = NEVER_S) -> DestinationKeys:
    """Long-term keys, or a bundle."""
    fillers = st.binary(min_size=FILLER_BYTES, max_size=FILLER_BYTES)
    keys = draw(
        st.one_of(st.builds(long_term, SEEDS, fillers), st.builds(ecdsa_keys, st.integers(1, 2**250)))
    )
    if draw(st.booleans()):
        return keys
    node = draw(st.integers(1, 2**31 - 1))
    return make_bundle(
        keys, draw(SEEDS), node=node, expires_s=expires_s, now_ms=draw(U32), hops=3, quantity=2
    )


def lease_set_2(
    keys: DestinationKeys,
    published_s: int,
    expires_s: int,
    ends_s: tuple[int, ...],
    offline: OfflineSignature | None = None,
) -> bytes:
    """A signed LeaseSet2 whose leases have these ends."""
    lease_set = LeaseSet(
        destination=keys.destination,
        published_s=published_s,
        expires_s=expires_s,
        encryption_keys=(EncryptionKey(X25519, bytes(32)),),
        leases=tuple(Lease(bytes(32), 0, end_s) for end_s in ends_s),
        offline=offline,
    )
    return encode_lease_set(lease_set, keys.sign)


def layout_of(keys: DestinationKeys, lease_set: LeaseSet) -> bytes:
    """The specification's layout once more: a signed LeaseSet2."""
    body = keys.destination + lease_set.published_s.to_bytes(4, "big")
    body += lease_set.expires_s.to_bytes(2, "big")
    body += b"\0\1" + lease_set.offline.encode() if lease_set.offline else b"\0\0"
    body += len(lease_set.options).to_bytes(2, "big") + lease_set.options
    body += len(lease_set.encryption_keys).to_bytes(1, "big")
    for key in lease_set.encryption_keys:
        body += key.type.to_bytes(2, "big") + len(key.key).to_bytes(2, "big") + key.key
    body += bytes([len(lease_set.leases)])
    for lease in lease_set.leases:
        body += lease.gateway + lease.tunnel.to_bytes(4, "big") + lease.end_s.to_bytes(4, "big")
    return body + keys.sign(b"\x03" + body)


def cut(data: bytes) -> Iterator[bytes]:
    """``data`` cut short at every byte, and with one byte more."""
    for end in range(len(data)):
        yield data[:end]
    yield data + b"\0"


def flipped(data: bytes, bit: int) -> bytes:
    bit %= 8 * len(data)
    at = bit // 8
    return data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1 :]


def refuses(function: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        function(data)
