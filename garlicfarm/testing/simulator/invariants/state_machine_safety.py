"""State Machine Safety: no two members ever apply different entries at one index (Raft §5.4.3), and
each applies every index once, in order."""

from __future__ import annotations

from garlicfarm.raft import Ready
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation

__all__ = ["StateMachineSafety"]


class StateMachineSafety:
    def __init__(self) -> None:
        self._applied: dict[int, int] = {}

    def on_ready(self, member: ObservedMember, ready: Ready, history: History) -> None:
        if member.before is None and member.status is not None:
            self._applied[member.id] = member.status.applied  # as its snapshot says
        if ready.restore is not None:
            if ready.restore.index <= self._applied[member.id]:
                raise Violation(
                    "state machine safety",
                    f"member {member.id} goes back to {ready.restore.index} from {self._applied[member.id]}",
                )
            self._applied[member.id] = ready.restore.index
        for entry in ready.committed:
            if entry.index != self._applied[member.id] + 1:
                raise Violation(
                    "state machine safety",
                    f"member {member.id} applies {entry.index} after {self._applied[member.id]}",
                )
            self._applied[member.id] = entry.index
            if entry != history.chain.entries[entry.index - 1]:
                raise Violation(
                    "state machine safety", f"member {member.id} applies another entry at {entry.index}"
                )
