"""Term, vote within a term, commit and applied index of a member never fall while it runs, nor do those on
its disk across crashes (Raft §5.1, figure 2)."""

from __future__ import annotations

from garlicfarm.raft import HardState, Persist, Ready
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation

__all__ = ["Monotonic"]


class Monotonic:
    def __init__(self) -> None:
        self._durable: dict[int, HardState] = {}

    def on_ready(self, member: ObservedMember, ready: Ready, history: History) -> None:
        status, before = member.status, member.before
        if status is None:
            return
        if before is None:
            kept = self._durable.get(member.id, HardState())
            fell = status.term < kept.term or status.commit < kept.commit
        else:
            fell = (
                status.term < before.term
                or status.commit < before.commit
                or status.applied < before.applied
                or (status.term == before.term and before.vote not in (0, status.vote))
            )
        if fell:
            raise Violation("nothing goes back", f"member {member.id}: {before}, then {status}")

    def on_durable(self, member_id: int, persist: Persist) -> None:
        """A write is on a member's disk."""
        new, old = persist.hard_state, self._durable.get(member_id, HardState())
        if new is None:
            return
        changed = new.term == old.term and old.vote not in (0, new.vote)
        if new.term < old.term or new.commit < old.commit or changed:
            raise Violation("nothing goes back", f"the disk of member {member_id}: {old}, then {new}")
        self._durable[member_id] = new
