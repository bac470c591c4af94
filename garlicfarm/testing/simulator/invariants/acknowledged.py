"""No acknowledged entry is lost: an entry is acknowledged after its commit (D8), and committed entries never
change (`History.advance`)."""

from __future__ import annotations

from garlicfarm.testing.simulator.invariants.history import History, Violation

__all__ = ["check_acknowledged"]


def check_acknowledged(history: History, index: int, term: int, value: bytes) -> None:
    """Raises `Violation` unless ``value`` is committed at ``index`` with ``term``."""
    entries = history.chain.entries
    if index > len(entries) or (entries[index - 1].value, entries[index - 1].term) != (value, term):
        raise Violation("acknowledged is committed", f"{value!r} is not at {index}, term {term}")
