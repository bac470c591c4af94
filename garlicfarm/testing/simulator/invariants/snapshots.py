"""A received snapshot covers committed entries: its term is that of its last entry, its Configuration the one
in force there (Raft §7)."""

from __future__ import annotations

from garlicfarm.raft import Ready
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation

__all__ = ["Snapshots"]


class Snapshots:
    def on_ready(self, member: ObservedMember, ready: Ready, history: History) -> None:
        snapshot = None if ready.persist is None else ready.persist.snapshot
        if snapshot is None:
            return
        entries = history.chain.entries
        if (
            snapshot.index > len(entries)
            or entries[snapshot.index - 1].term != snapshot.term
            or history.in_force(snapshot.index) != snapshot.configuration
        ):
            raise Violation("snapshots are of committed entries", f"member {member.id}: {snapshot}")
