"""What a Meta LeaseSet (LS2 type 7) of the farm lists, as bytes. Signing is the router's business.

::

    contents  = num u8 | num x MetaLease                            num 0 … 16
    MetaLease = hash 32 | flags 3 | cost u8 | end_date u32          40 bytes, big-endian

``hash`` is the SHA-256 of the leaf destination; ``flags`` is 3, a LeaseSet2, in its low four bits;
``cost`` is 0 for every leaf in algorithm version 1; ``end_date`` is in seconds. Entries are sorted by
hash, so equal inputs give equal bytes.

* Listed are the usable leaves of recent members, at most 16: those of lowest cost, then lowest hash.
* ``end_date`` is farm time + one hour (`LEASE_MS`, our policy), or the end of the leaf's LeaseSet if
  its status reports one and that is earlier. What ended by farm time is not listed. A leaf that several
  members report gets the latest of their ends.

Source: I2P common structures, "MetaLease", "MetaLeaseSet"; protocol page, section 6, point 7.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from garlicfarm.farm.status import Leaf

__all__ = ["LEASE_MS", "MAX_LEASES", "MetaLease", "choose", "encode_contents", "published_ms"]

LEASE_MS = 3_600_000
MAX_LEASES = 16

_META_LEASE = struct.Struct(">32s3sBI")
_FLAGS_LEASE_SET_2 = b"\0\0\3"


class MetaLease(msgspec.Struct, frozen=True, order=True):
    """One leaf in the Meta LeaseSet. ``cost`` 0 … 255, lower is better; ``end_date`` in seconds."""

    hash: bytes
    cost: int
    end_date: int


def choose(leaves: Iterable[Leaf], farm_time_ms: int) -> tuple[MetaLease, ...]:
    """The entries for the usable leaves of the recent members, sorted by hash."""
    ends: dict[bytes, int] = {}
    for leaf in leaves:
        end_ms = farm_time_ms + LEASE_MS
        if leaf.expires_ms is not None:
            end_ms = min(end_ms, leaf.expires_ms)
        ends[leaf.hash] = max(end_ms, ends.get(leaf.hash, 0))
    now_s = farm_time_ms // 1000
    listed = sorted((hash_, end_ms // 1000) for hash_, end_ms in ends.items() if end_ms // 1000 > now_s)
    return tuple(MetaLease(hash_, 0, min(end_s, 2**32 - 1)) for hash_, end_s in listed[:MAX_LEASES])


def encode_contents(leases: Iterable[MetaLease]) -> bytes:
    """The bytes that ``Router.publish_meta_ls`` takes, entries in the order given."""
    entries = [_META_LEASE.pack(one.hash, _FLAGS_LEASE_SET_2, one.cost, one.end_date) for one in leases]
    return bytes([len(entries)]) + b"".join(entries)


def published_ms(own_ms: int, last_published_ms: int) -> int:
    """The ``published`` date (ms) of the next Meta LeaseSet: our own time, but at least a second after
    the newest one that the farm knows of, since floodfills take only what is newer."""
    return max(own_ms, last_published_ms + 1000)
