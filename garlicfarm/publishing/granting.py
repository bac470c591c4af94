"""What the leader's leases (D24) take from a farm's state, and what they put into its log. Without I/O."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from garlicfarm.leases import LeaseGranter
from garlicfarm.publishing.administration import LEADER, MAX_LEASE_MS
from garlicfarm.publishing.entries import encode_admin
from garlicfarm.publishing.farm_queries import FarmQueries
from garlicfarm.round_trips import RoundTrips

DRIFT = 100
"""Clocks run at most a hundredth too fast or too slow."""

LEAST_BOUND_MS = 60_000
"""Quick round trips shorten no lease below that. An order may."""

Finding = tuple[bytes, Callable[[], None]]
"""An entry, and what to call once it is appended."""


def tell(granter: LeaseGranter, farm: FarmQueries, now_ms: int) -> None:
    """The leader has applied the first entry of its term, and the state may be another one."""
    lasts_ms, waits_ms = farm.lease_lasts_ms, farm.lease_waits_ms
    granter.on_applied(
        farm.holdings() if farm.has_leases else (),
        lasts_ms=lasts_ms - lasts_ms // DRIFT,
        waits_ms=waits_ms + waits_ms // DRIFT,
        unsettled=farm.unsettled_index,
        now_ms=now_ms,
    )


def findings(
    granter: LeaseGranter,
    trips: RoundTrips,
    farm: FarmQueries,
    node_id: int,
    now_ms: int,
    lease_ms: Callable[[int], int],
) -> list[Finding]:
    """What the leader ``node_id`` has to append in its term now, dated by farm time: its own wall clock may
    show anything. ``lease_ms``: how long a lease has to last with this upper election time-out."""

    def entry(action: str, args: dict[str, object]) -> bytes:
        args = {**args, "term": granter.term}
        return encode_admin(farm.farm, farm.farm_time_ms, node_id, None, action, LEADER, args)

    found: list[Finding] = [
        (
            entry("lost", {"member": holding.member, "index": holding.index}),
            partial(granter.on_lost, holding),
        )
        for holding in granter.lost(now_ms)
    ]
    if index := granter.settled(now_ms):
        found.append((entry("settled", {"index": index}), granter.on_settled))
    if farm.has_leases and (election_ms := trips.wanted_ms(farm.election_timeout_ms, now_ms)):
        is_longest = election_ms == trips.longest_ms
        bound_ms = MAX_LEASE_MS if is_longest else max(lease_ms(election_ms), LEAST_BOUND_MS)
        told = entry("timeouts", {"election_ms": election_ms, "lease_ms": min(bound_ms, MAX_LEASE_MS)})
        found.append((told, partial(trips.on_told, election_ms, now_ms)))
    return found
