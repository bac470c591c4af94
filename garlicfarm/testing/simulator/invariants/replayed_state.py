"""A state is a function of the committed log: a member that applied up to an index, entry by entry or from a
snapshot, is in the state that a replay of the whole log gives (Raft §7)."""

from __future__ import annotations

from collections.abc import Callable

from garlicfarm.application import StateMachine
from garlicfarm.testing.simulator.invariants.history import History, Violation
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import ValueType

__all__ = ["ReplayedState"]


class ReplayedState:
    def __init__(self, make_application: Callable[[], StateMachine]) -> None:
        self._application = make_application()
        self._states: list[bytes] = []

    def check(self, member_id: int, index: int, state: bytes, history: History) -> None:
        """Raises `Violation` unless ``state`` is that of ``index``."""
        if index > len(history.chain.entries):
            raise Violation("state is replayed state", f"member {member_id} applied {index}")
        while len(self._states) <= index:
            self._fold(len(self._states), history)
        if self._states[index] != state:
            raise Violation("state is replayed state", f"member {member_id} is in another one at {index}")

    def _fold(self, index: int, history: History) -> None:
        if not index:
            self._application.configure(0, history.configurations[0])
        else:
            entry = history.chain.entries[index - 1]
            if entry.value_type is ValueType.CONFIGURATION:
                self._application.configure(index, decode_configuration(entry.value))
            else:
                self._application.apply(index, entry.term, entry.value)
        self._states.append(self._application.snapshot())
