"""What is known of a farm's log while it runs, and what must hold of everything that is learnt of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from garlicfarm.log_application import LogApplication
from garlicfarm.raft.types import Entry
from tests.crash.crash_checks import Violation


class Ledger:
    """The application entries of the log, as all nodes show them. Its methods raise `Violation`."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}  # node → index up to which its log was compared
        self._entries: dict[int, Entry] = {}
        self._labels: dict[bytes, int] = {}
        self._last = 0
        self._application = LogApplication()
        self._states = {0: self._application.snapshot()}
        self._terms: dict[tuple[int, int], int] = {}
        self._leaders: dict[int, int] = {}

    def page(self, node: int, entries: Sequence[Entry], upto: int) -> None:
        """A node shows these entries: all up to index ``upto`` that it had not shown before."""
        after = self.seen.get(node, 0)
        for entry in entries:
            if entry.index > self._last:
                self._append(node, entry)
            elif self._entries.get(entry.index) != entry:
                raise Violation(f"node {node} shows another entry at index {entry.index} than was seen there")
        shown = {entry.index for entry in entries}
        for index in range(after + 1, min(upto, self._last) + 1):
            if index in self._entries and index not in shown:
                raise Violation(f"node {node} shows no entry at index {index}, where others have one")
        self.seen[node] = max(after, upto)

    def _append(self, node: int, entry: Entry) -> None:
        label = entry.value.rstrip(b".")
        if label in self._labels:
            raise Violation(
                f"node {node} shows {label.decode()} at {entry.index}; it is at {self._labels[label]} too"
            )
        if any(entry.index <= upto for upto in self.seen.values()):
            raise Violation(f"node {node} shows an entry at index {entry.index}, where others have none")
        self._labels[label] = entry.index
        self._entries[entry.index] = entry
        self._last = entry.index
        self._application.apply(entry.index, entry.term, entry.value)
        self._states[entry.index] = self._application.snapshot()

    def state(self, node: int, state: bytes) -> None:
        """A node serves this state of the application `log`: it must be that of the log up to there."""
        index = int.from_bytes(state[:8], "big")
        if index <= self._last and self._states.get(index) != state:
            raise Violation(f"the hash chain of node {node} at index {index} is not that of the log")

    def acknowledged(self, lines: Iterable[bytes]) -> None:
        """Lines of the client's journal; the log was compared up to the newest of them."""
        for line in lines:
            _, _, index, term, label = line.split()
            entry = self._entries.get(int(index))
            if entry is None or entry.value.rstrip(b".") != label or entry.term != int(term):
                there = "nothing" if entry is None else f"{entry.value.rstrip(b'.')!r} of term {entry.term}"
                raise Violation(
                    f"{label.decode()} was acknowledged at index {int(index)} in term {int(term)}; "
                    f"the log has {there} there"
                )

    def status(self, node: int, process: int, status: dict[str, object]) -> None:
        """What a node, in a process of this id, says of itself."""
        term = int(str(status["term"]))
        before = self._terms.get((node, process), 0)
        if term < before:
            raise Violation(f"node {node} is in term {term}, and was in {before}")
        self._terms[node, process] = term
        if status["role"] == "leader" and self._leaders.setdefault(term, node) != node:
            raise Violation(f"nodes {self._leaders[term]} and {node} both lead in term {term}")
