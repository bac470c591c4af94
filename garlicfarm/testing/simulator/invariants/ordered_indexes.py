"""Purged ≤ snapshot ≤ applied ≤ commit ≤ last, and purged entries were durable (Raft §7)."""

from __future__ import annotations

from garlicfarm.raft import Status
from garlicfarm.testing.simulator.invariants.history import ObservedMember, Violation

__all__ = ["check_floor", "check_indexes"]


def check_indexes(member_id: int, status: Status) -> None:
    """Check the core's indexes. Raises `Violation`."""
    if not (
        status.applied <= status.commit <= status.last_index
        and status.first_index - 1 <= status.commit
        and status.stable <= status.last_index
    ):
        raise Violation("indexes are in order", f"member {member_id}: {status}")


def check_floor(member: ObservedMember, first_index: int, snapshot_index: int) -> None:
    """Check the beginning of its store. Raises `Violation`."""
    status = member.status
    if not first_index - 1 <= snapshot_index <= len(member.disk.entries) or (
        status is not None and snapshot_index > status.commit
    ):
        raise Violation(
            "indexes are in order",
            f"the store of member {member.id} begins at {first_index}, its snapshot is of {snapshot_index}",
        )
