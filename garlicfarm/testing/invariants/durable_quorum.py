"""Committed means durable at a majority: when an entry is first known as committed, a majority of the
*disks* hold it (`CommittedIsDurable` of etcd's TLA+ model)."""

from __future__ import annotations

from collections.abc import Sequence

from garlicfarm.raft import Ready
from garlicfarm.testing.invariants.history import History, Member, Violation

__all__ = ["DurableQuorum"]


class DurableQuorum:
    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._steps = 0

    def turn(self, member: Member, ready: Ready, history: History) -> None:
        if self._steps == len(history.steps):
            return
        self._steps = len(history.steps)
        index, term = history.steps[-1]
        holders = [m.id for m in self._members if m.disk.agrees(history.chain, index)]
        if len(holders) <= len(self._members) // 2:
            raise Violation(
                "committed is durable", f"{index}, committed in term {term}, is on the disks of {holders}"
            )
