"""LeaseSets as bytes, written and read: the Meta LeaseSet (type 7), and an ordinary LeaseSet2 (type 3).

::

    Meta LeaseSet = header | options u16, 0 | num u8 | num x MetaLease | revocations u8, 0 | signature 64
    LeaseSet2     = header | options Mapping | num u8 | num x key | num u8 | num x Lease2 | signature 64
    key           = type u16 | length u16 | length bytes, of the encryption type: 4 is X25519, 32 bytes
    Mapping       = length u16 | length bytes
    header        = destination | published u32 (s) | expires u16 (s after published) | flags u16
                    | (flags bit 0) offline signature 102
    MetaLease     = hash 32 | flags 3 | cost u8 | end_date u32 (s)      40 bytes; flags 000003: of a LeaseSet2
    Lease2        = gateway 32 | tunnel id u32 | end_date u32 (s)       40 bytes

All is big-endian. The signature is over the type in one byte, which is not transmitted, and all before it; it
is made by the transient key where there is an offline signature.

An ordinary LeaseSet is read with whatever options and keys; neither kind is with flags but the first, which
stand for what is not published, or encrypted.

Source: I2P common structures, "LeaseSet2", "Lease2", "MetaLease", "MetaLeaseSet"; proposal 123.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

import msgspec

from garlicfarm.i2p.destination import signing_key, split_destination
from garlicfarm.i2p.offline_signature import OFFLINE_BYTES, OfflineSignature, signer
from garlicfarm.i2p.signing import SIGNATURE_BYTES

MAX_LEASES = 16
MAX_KEYS = 16
X25519, ML_KEM_768 = 4, 6
"""Encryption types; the second is with X25519 together."""

_HEADER = struct.Struct(">IHH")
_META_LEASE = struct.Struct(">32s3sBI")
_LEASE = struct.Struct(">32sII")
_ENCRYPTION_KEY = struct.Struct(">HH")
_FLAGS_LEASE_SET_2 = b"\0\0\3"
_FLAG_OFFLINE = 1
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


class Lease(msgspec.Struct, frozen=True):
    """One inbound tunnel. ``gateway``: the hash of its router, 32 bytes. ``tunnel``: its id there.
    ``end_s``: when it ends, s since 1970."""

    gateway: bytes
    tunnel: int
    end_s: int


class EncryptionKey(msgspec.Struct, frozen=True):
    """A public key for messages to a destination. ``type``: the encryption type, 0 … 65535, by which the
    length goes; those of ML-KEM with X25519 (5 to 7) have 32 bytes here, too."""

    type: int
    key: bytes


class LeaseSet(msgspec.Struct, frozen=True, kw_only=True):
    """An ordinary LeaseSet2. ``encryption_keys``: 1 … 16, the preferred one first. ``options``: the bytes of
    a Mapping without its length, in which services publish records, for example. The rest as in
    `MetaLeaseSet`."""

    destination: bytes
    published_s: int
    expires_s: int
    encryption_keys: tuple[EncryptionKey, ...]
    leases: tuple[Lease, ...]
    options: bytes = b""
    offline: OfflineSignature | None = None


def encode_meta_leases(leases: Iterable[MetaLease]) -> bytes:
    """``num`` and the entries, in the order given."""
    entries = [_META_LEASE.pack(one.hash, _FLAGS_LEASE_SET_2, one.cost, one.end_date) for one in leases]
    return bytes([len(entries)]) + b"".join(entries)


def encode_meta_lease_set(meta: MetaLeaseSet, sign: Callable[[bytes], bytes]) -> bytes:
    """The signed Meta LeaseSet. ``sign`` returns the 64-byte signature of its argument, by the key that
    signs for the destination now. Raises `ValueError`: a field is outside its range."""
    for lease in meta.leases:
        if len(lease.hash) != 32 or not (0 <= lease.cost < 256 and 0 <= lease.end_date < 2**32):
            raise ValueError(f"{lease} is not possible in a Meta LeaseSet")
    body = _encode_header(meta) + bytes(2) + encode_meta_leases(meta.leases) + bytes(1)
    return body + sign(_TYPE_META + body)


def decode_meta_lease_set(data: bytes) -> MetaLeaseSet:
    """Read a Meta LeaseSet; its signatures are not checked. Raises `ValueError`: `encode_meta_lease_set`
    does not write such bytes."""
    reader = _Reader(data)
    destination, published_s, expires_s, offline = _read_header(reader)
    options = reader.number(2)
    leases = []
    for _ in range(_at_most(MAX_LEASES, reader.number(1))):
        hash_, flags, cost, end_date = _META_LEASE.unpack(reader.take(_META_LEASE.size))
        if flags != _FLAGS_LEASE_SET_2:
            raise ValueError("an entry does not name a LeaseSet2")
        leases.append(MetaLease(hash_, cost, end_date))
    revocations = reader.number(1)
    reader.take(SIGNATURE_BYTES)
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


def encode_lease_set(lease_set: LeaseSet, sign: Callable[[bytes], bytes]) -> bytes:
    """The signed LeaseSet2; ``sign`` and errors as of `encode_meta_lease_set`."""
    keys = lease_set.encryption_keys
    if not 0 < len(keys) <= MAX_KEYS or len(lease_set.options) >= 2**16:
        raise ValueError("the options or the number of keys are not possible in a LeaseSet2")
    for key in keys:
        if not 0 <= key.type < 2**16 or len(key.key) >= 2**16 or (key.type == X25519 and len(key.key) != 32):
            raise ValueError("an encryption key is not possible in a LeaseSet2")
    for lease in lease_set.leases:
        if len(lease.gateway) != 32 or not (0 <= lease.tunnel < 2**32 and 0 <= lease.end_s < 2**32):
            raise ValueError(f"{lease} is not possible in a LeaseSet2")
    leases = [_LEASE.pack(one.gateway, one.tunnel, one.end_s) for one in lease_set.leases]
    body = _encode_header(lease_set) + len(lease_set.options).to_bytes(2, "big") + lease_set.options
    body += bytes([len(keys)])
    body += b"".join(_ENCRYPTION_KEY.pack(key.type, len(key.key)) + key.key for key in keys)
    body += bytes([len(leases)]) + b"".join(leases)
    return body + sign(_TYPE_LEASE_SET_2 + body)


def decode_lease_set(data: bytes) -> LeaseSet:
    """Read a LeaseSet2; its signatures are not checked. Raises `ValueError`: `encode_lease_set` does not
    write such bytes."""
    reader = _Reader(data)
    destination, published_s, expires_s, offline = _read_header(reader)
    options = reader.take(reader.number(2))
    keys = []
    for _ in range(_at_most(MAX_KEYS, reader.number(1))):
        type_, length = _ENCRYPTION_KEY.unpack(reader.take(_ENCRYPTION_KEY.size))
        keys.append(EncryptionKey(type_, reader.take(length)))
    if not keys or any(key.type == X25519 and len(key.key) != 32 for key in keys):
        raise ValueError("it has no encryption key, or one of another length")
    count = _at_most(MAX_LEASES, reader.number(1))
    leases = tuple(Lease(*_LEASE.unpack(reader.take(_LEASE.size))) for _ in range(count))
    reader.take(SIGNATURE_BYTES)
    if not reader.is_at_end:
        raise ValueError("it has bytes after its end")
    return LeaseSet(
        destination=destination,
        published_s=published_s,
        expires_s=expires_s,
        encryption_keys=tuple(keys),
        options=options,
        leases=leases,
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
            raise ValueError("it is truncated")
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


def _encode_header(of: MetaLeaseSet | LeaseSet) -> bytes:
    signing_key(of.destination)
    if not (0 <= of.published_s < 2**32 and 0 <= of.expires_s < 2**16 and len(of.leases) <= MAX_LEASES):
        raise ValueError("a date or the number of leases is not possible in a LeaseSet")
    flags = 0 if of.offline is None else _FLAG_OFFLINE
    offline = b"" if of.offline is None else of.offline.encode()
    return of.destination + _HEADER.pack(of.published_s, of.expires_s, flags) + offline


def _read_header(reader: _Reader) -> tuple[bytes, int, int, OfflineSignature | None]:
    """Destination, published, expires, offline signature."""
    destination = reader.destination()
    published_s, expires_s, flags = _HEADER.unpack(reader.take(_HEADER.size))
    if flags & ~_FLAG_OFFLINE:
        raise ValueError(f"its flags {flags:04x} are unknown")
    offline = OfflineSignature.decode(reader.take(OFFLINE_BYTES)) if flags & _FLAG_OFFLINE else None
    return destination, published_s, expires_s, offline


def _at_most(limit: int, count: int) -> int:
    if count > limit:
        raise ValueError(f"it has {count} leases or keys, more than {limit}")
    return count


def _verify(read: MetaLeaseSet | LeaseSet, kind: bytes, data: bytes, now_s: int) -> None:
    key = signer(read.destination, read.offline)
    key.check(data[-SIGNATURE_BYTES:], kind + data[:-SIGNATURE_BYTES])
    if read.offline is not None and read.offline.expires_s <= now_s:
        raise ValueError("its transient key has expired")
    if read.published_s + read.expires_s <= now_s:
        raise ValueError("it has expired")
