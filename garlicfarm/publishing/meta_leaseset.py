"""The contents of the farm's Meta LeaseSet (LS2 type 7): which leaves, at which cost, until when. Entries are
sorted by hash, so equal inputs give equal bytes (`garlicfarm.i2p.lease_set`).

* It lists the usable leaves of recent members, at most 16: those of lowest cost, then lowest hash.
* ``cost``, 0 … 15, follows from the score of the member's newest status: steps of 1/16 of the range, 0 the
  best. It changes only when the score is more than half a step outside its step, checked after each status of
  that member and each administrative entry. A leaf that several members report gets the lowest of their costs
  and the latest of their ends.
* ``end_date`` is farm time + the lifetime in force (one hour, unless administrators set another), or the end
  of the leaf's LeaseSet if its status reports an earlier one. Leaves that ended by farm time are not listed.

Source: docs/reference/protocol.md, "The common algorithm", point 7.
"""

from __future__ import annotations

from collections.abc import Iterable

from garlicfarm.i2p.lease_set import MAX_LEASES, MetaLease, encode_meta_leases
from garlicfarm.publishing.entries import Leaf
from garlicfarm.publishing.scoring import FULL

COSTS = 16

_STEP = FULL // COSTS


def cost(score: int, before: int | None) -> int:
    """The cost of a member's leaves at ``score``, 0 … 1,000,000, if it was ``before`` (None: new)."""
    missing = FULL - score
    if before is not None and abs(2 * missing - (2 * before + 1) * _STEP) <= 2 * _STEP:
        return before
    return min(missing // _STEP, COSTS - 1)


def choose(leaves: Iterable[tuple[Leaf, int]], farm_time_ms: int, lifetime_ms: int) -> tuple[MetaLease, ...]:
    """The entries for the usable leaves of the recent members, each with its member's cost, sorted by
    hash."""
    found: dict[bytes, tuple[int, int]] = {}
    now_s = farm_time_ms // 1000
    for leaf, cost in leaves:
        end_ms = farm_time_ms + lifetime_ms
        if leaf.expires_ms is not None:
            end_ms = min(end_ms, leaf.expires_ms)
        end_s = min(end_ms // 1000, 2**32 - 1)
        if end_s > now_s:
            other_cost, other_end_s = found.get(leaf.hash, (cost, end_s))
            found[leaf.hash] = min(cost, other_cost), max(end_s, other_end_s)
    listed = sorted(found, key=lambda hash_: (found[hash_][0], hash_))[:MAX_LEASES]
    return tuple(MetaLease(hash_, *found[hash_]) for hash_ in sorted(listed))


def encode_contents(leases: Iterable[MetaLease]) -> bytes:
    """The contents of a Meta LeaseSet as bytes, entries in the order given."""
    return encode_meta_leases(leases)


def published_ms(own_ms: int, last_published_ms: int) -> int:
    """The ``published`` date (ms) of the next Meta LeaseSet: our own time, but at least a second after the
    newest one that the farm knows, since floodfills accept only newer ones."""
    return max(own_ms, last_published_ms + 1000)
