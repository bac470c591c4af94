"""Committed means durable at a majority: when an entry is first known as committed, it is on the *disks* of
a majority of the members in force, as far as the leader knows (`CommittedIsDurable` of etcd's TLA+ model).
"""

from __future__ import annotations

from collections.abc import Mapping

from garlicfarm.raft import Ready
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation
from garlicfarm.wire.messages import Configuration

__all__ = ["DurableQuorum"]


class DurableQuorum:
    def __init__(self, members: Mapping[int, ObservedMember]) -> None:
        self._members = members
        self._steps = 0

    def on_ready(self, member: ObservedMember, ready: Ready, history: History) -> None:
        if self._steps == len(history.steps):
            return
        self._steps = len(history.steps)
        upto, term, in_force = history.steps[-1]
        while (held := self._held(in_force, upto, history)) < upto:
            # A Configuration among the new entries is in force for those that follow.
            after = history.in_force(held)
            if after.log_index <= in_force.log_index:
                ids = [server.id for server in in_force.servers]
                raise Violation(
                    "committed is durable",
                    f"{upto}, committed in term {term}; most disks of {ids} hold no more than {held}",
                )
            in_force = after

    def _held(self, in_force: Configuration, upto: int, history: History) -> int:
        """What a majority holds, of the entries up to ``upto``."""
        held = sorted(self._agreed(server.id, upto, history) for server in in_force.servers)
        return held[(len(held) - 1) // 2]

    def _agreed(self, member_id: int, upto: int, history: History) -> int:
        member = self._members.get(member_id)
        if member is None:
            return 0
        index = min(upto, len(member.disk.entries))
        while not member.disk.agrees(history.chain, index):
            index -= 1
        return index
