"""Reads are linearizable: a read sees every entry acknowledged before it began, and everything that an
earlier read saw (Raft §8)."""

from __future__ import annotations

from garlicfarm.testing.simulator.invariants.history import Violation

__all__ = ["LinearizableReads"]


class LinearizableReads:
    def __init__(self) -> None:
        self._floor = 0
        self._begun: dict[int, int] = {}  # token -> the index that it must see

    def on_acknowledged(self, index: int) -> None:
        """A client knows that ``index`` is committed."""
        self._floor = max(self._floor, index)

    def on_begin(self, token: int) -> None:
        """A read begins."""
        self._begun[token] = self._floor

    def on_done(self, token: int, index: int, seen: int) -> None:
        """A read may be served from ``index`` on, and is served at ``seen``. Raises `Violation`."""
        floor = self._begun.pop(token)
        if not floor <= index <= seen:
            raise Violation("reads are linearizable", f"one reads {seen} from {index} on, {floor} was known")
        self._floor = max(self._floor, seen)
