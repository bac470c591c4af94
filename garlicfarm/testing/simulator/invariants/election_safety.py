"""Election Safety: at most one leader can be elected in a term (Raft §5.2)."""

from __future__ import annotations

from garlicfarm.raft import Ready, Role
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation

__all__ = ["ElectionSafety"]


class ElectionSafety:
    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}

    def on_ready(self, member: ObservedMember, ready: Ready, history: History) -> None:
        status = member.status
        if status is not None and status.role is Role.LEADER:
            leader = self._leaders.setdefault(status.term, member.id)
            if leader != member.id:
                raise Violation(
                    "election safety", f"members {leader} and {member.id} lead in term {status.term}"
                )
