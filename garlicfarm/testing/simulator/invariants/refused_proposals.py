"""A refused proposal is not in the log: a value occurs at most as often as it was proposed and not refused,
and no other value occurs. A refusal is certain (D8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from garlicfarm.testing.simulator.invariants.history import History, Violation
from garlicfarm.wire.messages import ValueType

__all__ = ["RefusedProposals"]


class RefusedProposals:
    def __init__(self) -> None:
        self._offers: dict[int, Sequence[bytes]] = {}  # by token, each as often as a member took it
        self._refused: set[int] = set()

    def on_offered(self, token: int, values: Sequence[bytes]) -> None:
        """A member was asked to append these."""
        self._offers[token] = values

    def on_refused(self, token: int) -> None:
        """It answered that it does not."""
        self._refused.add(token)

    def check(self, history: History) -> None:
        """Raises `Violation`."""
        allowed = Counter(
            value for token, values in self._offers.items() if token not in self._refused for value in values
        )
        found = Counter(e.value for e in history.chain.entries if e.value_type is ValueType.APPLICATION)
        for value, count in found.items():
            if count > allowed[value]:
                raise Violation(
                    "refused proposals are not appended",
                    f"{value!r} is there {count} times, {allowed[value]} offers of it were not refused",
                )
