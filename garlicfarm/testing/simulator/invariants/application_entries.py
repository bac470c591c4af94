"""The number of Application entries up to an index is a function of the log: a member that came there entry
by entry, after a restart or from a snapshot of any other member, has counted what the whole log has."""

from __future__ import annotations

from garlicfarm.raft import SnapshotMeta
from garlicfarm.testing.simulator.invariants.history import History, Violation
from garlicfarm.wire.messages import ValueType

__all__ = ["ApplicationEntries"]


class ApplicationEntries:
    def __init__(self) -> None:
        self._counts = [0]  # by index

    def check(self, member_id: int, position: SnapshotMeta, history: History) -> None:
        """Raises `Violation` unless the member that applied up to ``position`` has counted right."""
        entries = history.chain.entries
        while len(self._counts) <= min(position.index, len(entries)):
            is_application = entries[len(self._counts) - 1].value_type is ValueType.APPLICATION
            self._counts.append(self._counts[-1] + is_application)
        if position.application_entries != self._counts[position.index]:
            raise Violation(
                "members count the same Application entries",
                f"member {member_id}: {position.application_entries} up to {position.index}",
            )
