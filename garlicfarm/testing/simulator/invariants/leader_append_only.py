"""Leader Append-Only: a leader never overwrites or deletes entries in its log (Raft §5.3)."""

from __future__ import annotations

from garlicfarm.raft import Ready, Role
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation

__all__ = ["LeaderAppendOnly"]


class LeaderAppendOnly:
    def on_ready(self, member: ObservedMember, ready: Ready, history: History) -> None:
        if ready.persist is None or ready.persist.truncate_from is None:
            return
        status, before = member.status, member.before
        if status is None or before is None or status.role is not Role.LEADER:
            return
        if before.role is Role.LEADER and before.term == status.term:
            raise Violation(
                "leader append-only",
                f"leader {member.id} of term {status.term} deletes from {ready.persist.truncate_from} on",
            )
