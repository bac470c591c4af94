"""The five properties of figure 3 of the Raft paper."""

from __future__ import annotations

from garlicfarm.raft import Ready, Role, Status
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation


class ElectionSafety:
    """Election Safety: at most one leader can be elected in a term (Raft §5.2)."""

    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}

    def on_ready(self, member: ObservedMember, status: Status, ready: Ready, history: History) -> None:
        if status.role is Role.LEADER:
            leader = self._leaders.setdefault(status.term, member.id)
            if leader != member.id:
                raise Violation(
                    "election safety", f"members {leader} and {member.id} lead in term {status.term}"
                )


class LeaderAppendOnly:
    """Leader Append-Only: a leader never overwrites or deletes entries in its log (Raft §5.3)."""

    def on_ready(self, member: ObservedMember, status: Status, ready: Ready, history: History) -> None:
        if ready.persist is None or ready.persist.truncate_from is None:
            return
        before = member.before
        if before is None or status.role is not Role.LEADER:
            return
        if before.role is Role.LEADER and before.term == status.term:
            raise Violation(
                "leader append-only",
                f"leader {member.id} of term {status.term} deletes from {ready.persist.truncate_from} on",
            )


class LogMatching:
    """Log Matching: two logs with an entry of the same index and term are the same up to it (Raft §5.3)."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}

    def on_ready(self, member: ObservedMember, status: Status, ready: Ready, history: History) -> None:
        if ready.persist is None:
            return
        for entry in ready.persist.entries:
            found = member.log.hashes[entry.index]
            first, other = self._seen.setdefault((entry.index, entry.term), (found, member.id))
            if first != found:
                raise Violation(
                    "log matching",
                    f"members {other} and {member.id} differ at or below {entry.index}, term {entry.term}",
                )


class LeaderCompleteness:
    """Leader Completeness: entries committed in a term are in the log of every leader of a later term
    (Raft §5.4)."""

    def __init__(self) -> None:
        self._leaders: dict[int, ObservedMember] = {}  # the current ones by term
        self._steps = 0

    def on_ready(self, member: ObservedMember, status: Status, ready: Ready, history: History) -> None:
        before = member.before
        if status.role is Role.LEADER:
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


class StateMachineSafety:
    """State Machine Safety: no two members ever apply different entries at one index (Raft §5.4.3), and
    each applies every index once, in order."""

    def __init__(self) -> None:
        self._applied: dict[int, int] = {}

    def on_ready(self, member: ObservedMember, status: Status, ready: Ready, history: History) -> None:
        if member.before is None:
            self._applied[member.id] = status.applied  # as its snapshot says
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
