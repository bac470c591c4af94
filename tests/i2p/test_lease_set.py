"""LeaseSets: bytes that another program made, round trips, and everything else refused."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.i2p.destination import decode_destination, make_destination
from garlicfarm.i2p.encoding import b32_address, encode
from garlicfarm.i2p.keys import DestinationKeys, make_bundle
from garlicfarm.i2p.lease_set import (
    X25519,
    EncryptionKey,
    Lease,
    LeaseSet,
    MetaLease,
    MetaLeaseSet,
    decode_lease_set,
    decode_meta_lease_set,
    encode_lease_set,
    encode_meta_lease_set,
    verify_lease_set,
    verify_meta_lease_set,
)
from tests.i2p.encodings import U32, all_keys, cut, flipped, layout_of, long_term, public, refuses

VECTOR = Path(__file__).parent.parent / "data" / "i2p" / "meta-lease-set.txt"
SEED = bytes(range(32))
LEASES = st.lists(
    st.builds(MetaLease, st.binary(min_size=32, max_size=32), st.integers(0, 255), U32), max_size=16
).map(tuple)


@st.composite
def meta_lease_sets(draw: st.DrawFn) -> tuple[MetaLeaseSet, DestinationKeys]:
    keys = draw(all_keys())
    meta = MetaLeaseSet(
        destination=keys.destination,
        published_s=draw(U32),
        expires_s=draw(st.integers(1, 2**16 - 1)),
        leases=draw(LEASES),
        offline=keys.offline,
    )
    return meta, keys


@st.composite
def lease_sets(draw: st.DrawFn) -> tuple[LeaseSet, DestinationKeys]:
    keys = draw(all_keys())
    hashes = st.binary(min_size=32, max_size=32)
    others = st.integers(0, 2**16 - 1).filter(lambda type_: type_ != X25519)
    encryption_keys = st.one_of(
        st.builds(EncryptionKey, st.just(X25519), hashes),
        st.builds(EncryptionKey, others, st.binary(max_size=40)),
    )
    lease_set = LeaseSet(
        destination=keys.destination,
        published_s=draw(U32),
        expires_s=draw(st.integers(1, 2**16 - 1)),
        encryption_keys=tuple(draw(st.lists(encryption_keys, min_size=1, max_size=16))),
        options=draw(st.binary(max_size=40)),
        leases=tuple(draw(st.lists(st.builds(Lease, hashes, U32, U32), max_size=16))),
        offline=keys.offline,
    )
    return lease_set, keys


def ordinary_example(keys: DestinationKeys) -> LeaseSet:
    return LeaseSet(
        destination=keys.destination,
        published_s=1000,
        expires_s=600,
        encryption_keys=(EncryptionKey(X25519, b"\5" * 32),),
        leases=(Lease(b"\1" * 32, 7, 1500), Lease(b"\2" * 32, 8, 1090)),
        offline=keys.offline,
    )


def meta_example(keys: DestinationKeys) -> MetaLeaseSet:
    return MetaLeaseSet(
        destination=keys.destination,
        published_s=1000,
        expires_s=600,
        leases=(MetaLease(bytes(32), 3, 2000), MetaLease(b"\1" * 32, 0, 3000)),
        offline=keys.offline,
    )


def example(keys: DestinationKeys) -> bytes:
    return encode_meta_lease_set(meta_example(keys), keys.sign)


def bundle(expires_s: int) -> DestinationKeys:
    return make_bundle(long_term(SEED), b"\7" * 32, node=1, expires_s=expires_s, now_ms=0, hops=3, quantity=2)


def test_meta_lease_set_of_another_program_is_reproduced_byte_by_byte() -> None:
    """The bytes that `tests/data/i2p/README.md` describes."""
    first, destination, size, data, contents = VECTOR.read_text().splitlines()
    expected = ast.literal_eval(contents)
    keys = DestinationKeys(destination=make_destination(public(SEED), SEED * 11), seed=SEED)
    assert f"{len(keys.destination)} {b32_address(keys.destination)}" == first
    assert (encode(keys.destination), decode_destination(destination)) == (destination, keys.destination)
    entries = expected["entries"]
    meta = MetaLeaseSet(
        destination=keys.destination,
        published_s=expected["published"],
        expires_s=expected["expires"],
        leases=tuple(MetaLease(bytes.fromhex(hash_), cost, end) for hash_, _, cost, end in entries),
    )
    made = encode_meta_lease_set(meta, keys.sign)
    assert made.hex() == data
    assert len(made) == int(size)
    assert verify_meta_lease_set(made, expected["published"]) == meta


@given(meta_lease_sets(), st.integers(0))
def test_meta_lease_set_is_read_and_verified_as_written_and_with_a_bit_flipped_refused(made, bit):
    meta, keys = made
    data = encode_meta_lease_set(meta, keys.sign)
    assert decode_meta_lease_set(data) == meta
    assert verify_meta_lease_set(data, 0) == meta
    refuses(partial(verify_meta_lease_set, now_s=0), flipped(data, bit))


@pytest.mark.parametrize("keys", [long_term(SEED), bundle(5000)], ids=["long-term", "offline"])
def test_lease_sets_cut_at_any_byte_or_with_any_byte_changed_are_refused(keys: DestinationKeys) -> None:
    meta, ordinary = example(keys), encode_lease_set(ordinary_example(keys), keys.sign)
    for part in cut(meta):
        refuses(decode_meta_lease_set, part)
    for part in cut(ordinary):
        refuses(decode_lease_set, part)
    for at in range(len(meta)):
        refuses(partial(verify_meta_lease_set, now_s=0), flipped(meta, 8 * at))
    for at in range(len(ordinary)):
        refuses(partial(verify_lease_set, now_s=0), flipped(ordinary, 8 * at + 7))


@given(st.binary(max_size=700))
def test_decoders_of_lease_sets_raise_nothing_else(data: bytes) -> None:
    destination = long_term(SEED).destination
    header = destination + bytes(8) + bytes.fromhex("0000 01 0004 0020")
    for decode in (decode_meta_lease_set, decode_lease_set):
        for each in (data, destination + data, header + data):
            try:
                decode(each)
            except ValueError:
                continue


@settings(max_examples=50)
@given(lease_sets(), st.integers(0))
def test_ordinary_lease_set_is_read_and_verified_as_written_and_with_a_bit_flipped_refused(made, bit):
    lease_set, keys = made
    data = encode_lease_set(lease_set, keys.sign)
    assert data[:-64] == layout_of(keys, lease_set)[:-64]
    assert decode_lease_set(data) == lease_set
    assert verify_lease_set(data, 0) == lease_set
    refuses(partial(verify_lease_set, now_s=0), flipped(data, bit))


def test_signature_of_another_type_of_lease_set_is_refused() -> None:
    """The type is signed, though not transmitted: with no leases and no keys the two look alike."""
    keys = long_term(SEED)
    body = example(keys)[:-64]
    refuses(partial(verify_meta_lease_set, now_s=0), body + keys.sign(b"\x03" + body))


def test_what_has_expired_is_refused() -> None:
    keys = long_term(SEED)
    assert verify_meta_lease_set(example(keys), 1599).published_s == 1000
    refuses(partial(verify_meta_lease_set, now_s=1600), example(keys))
    ordinary = encode_lease_set(ordinary_example(keys), keys.sign)
    assert verify_lease_set(ordinary, 1599) == ordinary_example(keys)
    refuses(partial(verify_lease_set, now_s=1600), ordinary)
    transient = bundle(1200)
    assert verify_meta_lease_set(example(transient), 1199).offline == transient.offline
    with pytest.raises(ValueError, match="transient key has expired"):
        verify_meta_lease_set(example(transient), 1200)


def test_offline_signature_by_another_key_is_refused() -> None:
    other = bundle(5000)
    meta = MetaLeaseSet(
        destination=long_term(b"\3" * 32).destination,
        published_s=1,
        expires_s=1,
        leases=(),
        offline=other.offline,
    )
    refuses(partial(verify_meta_lease_set, now_s=0), encode_meta_lease_set(meta, other.sign))


HEADERS = [
    {"published_s": -1},
    {"published_s": 2**32},
    {"expires_s": 2**16},
    {"destination": bytes(391)},
]
META = [
    {"leases": (MetaLease(bytes(31), 0, 0),)},
    {"leases": (MetaLease(bytes(32), 256, 0),)},
    {"leases": (MetaLease(bytes(32), 0, 2**32),)},
    {"leases": (MetaLease(bytes(32), 0, 0),) * 17},
]
ORDINARY = [
    {"encryption_keys": ()},
    {"encryption_keys": (EncryptionKey(X25519, bytes(32)),) * 17},
    {"encryption_keys": (EncryptionKey(X25519, bytes(31)),)},
    {"encryption_keys": (EncryptionKey(2**16, bytes(31)),)},
    {"encryption_keys": (EncryptionKey(0, bytes(2**16)),)},
    {"options": bytes(2**16)},
    {"leases": (Lease(bytes(31), 0, 0),)},
    {"leases": (Lease(bytes(32), 2**32, 0),)},
    {"leases": (Lease(bytes(32), 0, -1),)},
    {"leases": (Lease(bytes(32), 0, 0),) * 17},
]


@pytest.mark.parametrize(
    ("lease_set", "encode_it", "change"),
    [
        *((meta_example(long_term(SEED)), encode_meta_lease_set, change) for change in HEADERS + META),
        *((ordinary_example(long_term(SEED)), encode_lease_set, change) for change in HEADERS + ORDINARY),
    ],
)
def test_lease_set_that_cannot_be_written_is_refused(
    lease_set: Any, encode_it: Callable[..., bytes], change: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"possible in a (Meta )?LeaseSet|not a destination"):
        encode_it(msgspec.structs.replace(lease_set, **change), long_term(SEED).sign)


@pytest.mark.parametrize(
    ("at", "byte"),
    [(398, 2), (398, 4), (397, 1), (400, 1), (401, 0), (401, 17), (405, 31), (438, 17)],
    ids=["unpublished", "blinded", "flags", "options", "no keys", "keys", "length", "leases"],
)
def test_ordinary_lease_set_that_we_would_not_write_is_refused_though_it_is_signed(at, byte):
    keys = long_term(SEED)
    body = bytearray(encode_lease_set(ordinary_example(keys), keys.sign)[:-64])
    body[at] = byte
    refuses(decode_lease_set, bytes(body) + keys.sign(b"\x03" + bytes(body)))


@pytest.mark.parametrize(
    ("at", "byte"),
    [(398, 2), (397, 1), (400, 1), (401, 17), (402 + 34, 5), (-65, 1)],
    ids=["unpublished", "flags", "options", "leases", "entry", "revocations"],
)
def test_meta_lease_set_that_we_would_not_write_is_refused_though_it_is_signed(at: int, byte: int) -> None:
    keys = long_term(SEED)
    body = bytearray(example(keys)[:-64])
    body[at if at > 0 else at + 64] = byte
    refuses(decode_meta_lease_set, bytes(body) + keys.sign(b"\x07" + bytes(body)))
