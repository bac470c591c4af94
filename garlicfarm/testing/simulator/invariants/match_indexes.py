"""Entries that the newest leader counts as replicated are durable at the follower, and equal there
(`MatchIndexLowerBound`; thesis 10.2.1)."""

from __future__ import annotations

from collections.abc import Mapping

from garlicfarm.raft import Ready, Role
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation

__all__ = ["MatchIndexes"]


class MatchIndexes:
    def __init__(self, members: Mapping[int, ObservedMember]) -> None:
        self._members = members
        self._newest = 0

    def on_ready(self, member: ObservedMember, ready: Ready, history: History) -> None:
        status = member.status
        # The entries that an older leader knows may be overwritten by now.
        if status is None or status.role is not Role.LEADER or status.term < self._newest:
            return
        self._newest = status.term
        for peer, progress in status.peers.items():
            match = progress.match_index
            if match and (
                peer not in self._members or not self._members[peer].disk.agrees(member.log, match)
            ):
                raise Violation(
                    "match indexes are durable",
                    f"leader {member.id} of term {status.term} thinks that {peer} holds all up to {match}",
                )
