"""LeaseSets as bytes: the Meta LeaseSet (type 7), written and read; an ordinary LeaseSet2 (type 3), read.

::

    Meta LeaseSet = header | options u16, 0 | num u8 | num x MetaLease | revocations u8, 0 | signature 64
    LeaseSet2     = header | options u16 length, Mapping | keys u8 | keys x (type u16 | length u16 | key)
                    | num u8 | num x Lease2 | signature 64
    header        = destination | published u32 (s) | expires u16 (s after published) | flags u16
                    | (flags bit 0) offline signature 102
    MetaLease     = hash 32 | flags 3 | cost u8 | end_date u32 (s)      40 bytes; flags 000003: of a LeaseSet2
    Lease2        = gateway 32 | tunnel id u32 | end_date u32 (s)       40 bytes

All is big-endian. The signature is over the type in one byte, which is not transmitted, and all before it; it
is made by the transient key where there is an offline signature.

Source: I2P common structures, "LeaseSet2", "MetaLease", "MetaLeaseSet"; proposal 123.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

import msgspec

from garlicfarm.i2p.destination import check_signature, signing_key, split_destination
from garlicfarm.i2p.offline import OFFLINE_BYTES, OfflineSignature, signer

__all__ = [
    "MAX_LEASES",
    "LeaseSet",
    "MetaLease",
    "MetaLeaseSet",
    "decode_lease_set",
    "decode_meta_lease_set",
    "encode_meta_lease_set",
    "encode_meta_leases",
    "verify_lease_set",
    "verify_meta_lease_set",
]

MAX_LEASES = 16

_HEADER = struct.Struct(">IHH")
_META_LEASE = struct.Struct(">32s3sBI")
_LEASE = struct.Struct(">32sII")
_ENCRYPTION_KEY = struct.Struct(">HH")
_FLAGS_LEASE_SET_2 = b"\0\0\3"
_FLAG_OFFLINE = 1
_LEASE_SET_2_FLAGS = 0b111
_SIGNATURE_BYTES = 64
_TYPE_LEASE_SET_2 = b"\x03"
_TYPE_META = b"\x07"


class MetaLease(msgspec.Struct, frozen=True, order=True):
    """One leaf in the Meta LeaseSet. ``hash``: of the leaf's destination, 32 bytes. ``cost`` 0 … 255, lower
    is better (the farm uses 0 … 15); ``end_date`` in s since 1970."""

    hash: bytes
    cost: int
    end_date: int


class MetaLeaseSet(msgspec.Struct, frozen=True, kw_only=True):
    """``destination``: binary. ``published_s``: s since 1970. ``expires_s``: s after ``published_s``,
    0 … 65535. ``leases``: at most 16."""

    destination: bytes
    published_s: int
    expires_s: int
    leases: tuple[MetaLease, ...]
    offline: OfflineSignature | None = None


class LeaseSet(msgspec.Struct, frozen=True, kw_only=True):
    """What we need of an ordinary LeaseSet2. ``ends_s``: the end of each of its leases, s since 1970; the
    rest as in `MetaLeaseSet`."""

    destination: bytes
    published_s: int
    expires_s: int
    ends_s: tuple[int, ...]
    offline: OfflineSignature | None = None


def encode_meta_leases(leases: Iterable[MetaLease]) -> bytes:
    """``num`` and the entries, in the order given."""
    entries = [_META_LEASE.pack(one.hash, _FLAGS_LEASE_SET_2, one.cost, one.end_date) for one in leases]
    return bytes([len(entries)]) + b"".join(entries)


def encode_meta_lease_set(meta: MetaLeaseSet, sign: Callable[[bytes], bytes]) -> bytes:
    """The signed Meta LeaseSet. ``sign`` returns the 64-byte signature of its argument, by the key that
    signs for the destination now. Raises `ValueError`: a field is outside its range."""
    signing_key(meta.destination)
    for lease in meta.leases:
        if len(lease.hash) != 32 or not (0 <= lease.cost < 256 and 0 <= lease.end_date < 2**32):
            raise ValueError(f"{lease} is not possible in a Meta LeaseSet")
    if not (0 <= meta.published_s < 2**32 and 0 <= meta.expires_s < 2**16 and len(meta.leases) <= MAX_LEASES):
        raise ValueError("a date or the number of leases is not possible in a Meta LeaseSet")
    flags = 0 if meta.offline is None else _FLAG_OFFLINE
    body = meta.destination + _HEADER.pack(meta.published_s, meta.expires_s, flags)
    if meta.offline is not None:
        body += meta.offline.encode()
    body += bytes(2) + encode_meta_leases(meta.leases) + bytes(1)
    return body + sign(_TYPE_META + body)


def decode_meta_lease_set(data: bytes) -> MetaLeaseSet:
    """Read a Meta LeaseSet; its signatures are not checked. Raises `ValueError`: `encode_meta_lease_set`
    does not write such bytes."""
    reader = _Reader(data)
    destination, published_s, expires_s, offline = _read_header(reader, _FLAG_OFFLINE)
    options = reader.number(2)
    leases = []
    for _ in range(_at_most(MAX_LEASES, reader.number(1))):
        hash_, flags, cost, end_date = _META_LEASE.unpack(reader.take(_META_LEASE.size))
        if flags != _FLAGS_LEASE_SET_2:
            raise ValueError("an entry does not name a LeaseSet2")
        leases.append(MetaLease(hash_, cost, end_date))
    revocations = reader.number(1)
    reader.take(_SIGNATURE_BYTES)
    if options or revocations or not reader.is_at_end:
        raise ValueError("it has options, revocations or bytes after its end")
    return MetaLeaseSet(
        destination=destination,
        published_s=published_s,
        expires_s=expires_s,
        leases=tuple(leases),
        offline=offline,
    )


def verify_meta_lease_set(data: bytes, now_s: int) -> MetaLeaseSet:
    """Read a Meta LeaseSet and check it as a floodfill does. ``now_s``: s since 1970. Raises `ValueError`:
    malformed, a signature does not match, or it or its transient key has expired."""
    meta = decode_meta_lease_set(data)
    _verify(meta, _TYPE_META, data, now_s)
    return meta


def decode_lease_set(data: bytes) -> LeaseSet:
    """Read an ordinary LeaseSet2 of a destination with an Ed25519 key; its signatures are not checked.
    Raises `ValueError`: malformed, or the key is of another type."""
    reader = _Reader(data)
    destination, published_s, expires_s, offline = _read_header(reader, _LEASE_SET_2_FLAGS)
    reader.take(reader.number(2))
    for _ in range(reader.number(1)):
        _, length = _ENCRYPTION_KEY.unpack(reader.take(_ENCRYPTION_KEY.size))
        reader.take(length)
    ends_s = []
    for _ in range(_at_most(MAX_LEASES, reader.number(1))):
        _, _, end_s = _LEASE.unpack(reader.take(_LEASE.size))
        ends_s.append(end_s)
    reader.take(_SIGNATURE_BYTES)
    if not reader.is_at_end:
        raise ValueError("it has bytes after its end")
    return LeaseSet(
        destination=destination,
        published_s=published_s,
        expires_s=expires_s,
        ends_s=tuple(ends_s),
        offline=offline,
    )


def verify_lease_set(data: bytes, now_s: int) -> LeaseSet:
    """As `verify_meta_lease_set`, of an ordinary LeaseSet2."""
    lease_set = decode_lease_set(data)
    _verify(lease_set, _TYPE_LEASE_SET_2, data, now_s)
    return lease_set


class _Reader:
    """Takes bytes off the front; `ValueError` where there are too few."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise ValueError("it is cut short")
        self._at += size
        return taken

    def destination(self) -> bytes:
        destination, _ = split_destination(self._data[self._at :])
        signing_key(destination)
        return self.take(len(destination))

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)


def _read_header(reader: _Reader, allowed: int) -> tuple[bytes, int, int, OfflineSignature | None]:
    """Destination, published, expires, offline signature. ``allowed``: the flags that may be set."""
    destination = reader.destination()
    published_s, expires_s, flags = _HEADER.unpack(reader.take(_HEADER.size))
    if flags & ~allowed:
        raise ValueError(f"its flags {flags:04x} are unknown")
    offline = OfflineSignature.decode(reader.take(OFFLINE_BYTES)) if flags & _FLAG_OFFLINE else None
    return destination, published_s, expires_s, offline


def _at_most(limit: int, count: int) -> int:
    if count > limit:
        raise ValueError(f"it has {count} leases, more than {limit}")
    return count


def _verify(read: MetaLeaseSet | LeaseSet, kind: bytes, data: bytes, now_s: int) -> None:
    key = signer(read.destination, read.offline)
    check_signature(key, data[-_SIGNATURE_BYTES:], kind + data[:-_SIGNATURE_BYTES])
    if read.offline is not None and read.offline.expires_s <= now_s:
        raise ValueError("its transient key has expired")
    if read.published_s + read.expires_s <= now_s:
        raise ValueError("it has expired")
