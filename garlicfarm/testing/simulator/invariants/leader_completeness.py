"""Leader Completeness: entries committed in a term are in the log of every leader of a later term
(Raft §5.4)."""

from __future__ import annotations

from garlicfarm.raft import Ready, Role
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation

__all__ = ["LeaderCompleteness"]


class LeaderCompleteness:
    def __init__(self) -> None:
        self._leaders: dict[int, ObservedMember] = {}  # the current ones by term
        self._steps = 0

    def on_ready(self, member: ObservedMember, ready: Ready, history: History) -> None:
        status, before = member.status, member.before
        if status is not None and status.role is Role.LEADER:
            self._leaders[status.term] = member
            if before is None or before.role is not Role.LEADER or before.term != status.term:
                for index, term, _ in reversed(history.steps):
                    if term < status.term:
                        self._check(member, index, term, history)
                        break
        for index, term, _ in history.steps[self._steps :]:
            for later, leader in list(self._leaders.items()):
                now = leader.status
                if now is None or now.role is not Role.LEADER or now.term != later:
                    del self._leaders[later]
                elif later > term:
                    self._check(leader, index, term, history)
        self._steps = len(history.steps)

    def _check(self, leader: ObservedMember, index: int, term: int, history: History) -> None:
        if not leader.log.agrees(history.chain, index):
            raise Violation(
                "leader completeness",
                f"leader {leader.id} lacks what was committed up to {index} in term {term}",
            )
