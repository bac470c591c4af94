"""What the fold keeps of leases on heartbeats since level 2 (point 8 of `garlicfarm.publishing.fold`)."""

from __future__ import annotations

from garlicfarm.levels import LEASES, level_of
from garlicfarm.publishing.administration import MAX_LEASE_MS
from garlicfarm.publishing.fold_state import FarmState, LeaseState
from garlicfarm.publishing.lease import lease_ms


def configure(state: FarmState, index: int) -> None:
    """The members and the level of ``state`` are those of the Configuration at ``index`` now."""
    leases, policy = state.leases, state.policy
    if leases:
        leases.boots = {id_: boot for id_, boot in leases.boots.items() if id_ in state.members}
        leases.lost = {id_: lost for id_, lost in leases.lost.items() if id_ in state.members}
    elif level_of(state.algorithm) >= LEASES:
        held = [lease_ms(one.interval_ms, one.R) for one in state.records.values() if one.index]
        lasts_ms = lease_ms(policy.interval_ms, policy.R)
        ordered_ms = min(lasts_ms, MAX_LEASE_MS)
        leases = state.leases = LeaseState(lasts_ms=ordered_ms, ordered_ms=ordered_ms)
        if state.holders:
            leases.before_ms, leases.changed = max([lasts_ms, *held]), index
    has_statuses = any(record.index for record in state.records.values())
    if leases and not has_statuses and "lease" not in policy.orders:
        # Founders know the level before the orders that the farm begins with, those who join after them.
        leases.ordered_ms = min(lease_ms(policy.interval_ms, policy.R), MAX_LEASE_MS)
        leases.lasts_ms = min(leases.ordered_ms, leases.bound_ms)


def change(state: FarmState, index: int, *, ordered_ms: int = 0, bound_ms: int = 0) -> None:
    """The entry at ``index`` orders or bounds how long a lease lasts; 0: that stays. Where nobody holds the
    role, no lease of the former length can run."""
    leases = state.leases
    if not leases:
        return
    leases.ordered_ms = ordered_ms or leases.ordered_ms
    leases.bound_ms = bound_ms or leases.bound_ms
    lasts_ms = min(leases.ordered_ms, leases.bound_ms)
    if leases.lasts_ms != lasts_ms:
        before_ms = max(leases.before_ms, leases.lasts_ms) if state.holders else 0
        leases.lasts_ms, leases.before_ms, leases.changed = lasts_ms, before_ms, index


def is_former(state: FarmState, author: int, boot: int) -> bool:
    """Whether a status is of a process of ``author`` before the one that is known."""
    leases = state.leases
    return bool(leases and boot < leases.boots.get(author, 0))


def is_next(state: FarmState, author: int, boot: int) -> bool:
    """Note which process of ``author`` has posted a status; whether an earlier one is known."""
    leases = state.leases
    if not leases:
        return False
    known = leases.boots.get(author, 0)
    if boot:
        leases.boots[author] = boot
    return boot > known > 0
