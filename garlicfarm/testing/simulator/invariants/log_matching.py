"""Log Matching: two logs with an entry of the same index and term are the same up to it (Raft §5.3)."""

from __future__ import annotations

from garlicfarm.raft import Ready
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation

__all__ = ["LogMatching"]


class LogMatching:
    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}

    def on_ready(self, member: ObservedMember, ready: Ready, history: History) -> None:
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
