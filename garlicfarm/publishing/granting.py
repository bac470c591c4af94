"""What the leader's leases (D24) take from a farm's state, and what they put into its log. Without I/O."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from garlicfarm.leases import LeaseGranter
from garlicfarm.publishing.administration import LEADER
from garlicfarm.publishing.entries import encode_admin
from garlicfarm.publishing.farm_queries import FarmQueries

DRIFT = 100
"""Clocks run at most a hundredth too fast or too slow."""

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


def findings(granter: LeaseGranter, farm: FarmQueries, node_id: int, now_ms: int) -> list[Finding]:
    """What the leader ``node_id`` has to append in its term now, dated by farm time: its own wall clock may
    show anything."""

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
    return found
