"""Reads are linearizable: one sees every entry that was acknowledged before it began, and all that an
earlier one saw (Raft §8)."""

from __future__ import annotations

from garlicfarm.testing.simulator.invariants.history import Violation

__all__ = ["LinearizableReads"]


class LinearizableReads:
    def __init__(self) -> None:
        self._floor = 0
        self._begun: dict[int, int] = {}  # token -> what it has to see

    def on_acknowledged(self, index: int) -> None:
        """Somebody knows that ``index`` is committed."""
        self._floor = max(self._floor, index)

    def on_begin(self, token: int) -> None:
        """A read is asked for."""
        self._begun[token] = self._floor

    def on_done(self, token: int, index: int, seen: int) -> None:
        """It may read from ``index`` on, and reads where ``seen`` is applied. Raises `Violation`."""
        floor = self._begun.pop(token)
        if not floor <= index <= seen:
            raise Violation("reads are linearizable", f"one reads {seen} from {index} on, {floor} was known")
        self._floor = max(self._floor, seen)
