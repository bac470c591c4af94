"""What entries, snapshots and reads show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from garlicfarm.application import StateMachine
from garlicfarm.raft import Ready, SnapshotMeta, Status
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import ValueType


class Snapshots:
    """A received snapshot covers committed entries: its term is that of its last entry, its Configuration the
    one in force there (Raft §7)."""

    def on_ready(self, member: ObservedMember, status: Status, ready: Ready, history: History) -> None:
        snapshot = None if ready.persist is None else ready.persist.snapshot
        if snapshot is None:
            return
        entries = history.chain.entries
        if (
            snapshot.index > len(entries)
            or entries[snapshot.index - 1].term != snapshot.term
            or history.in_force(snapshot.index) != snapshot.configuration
        ):
            raise Violation("snapshots are of committed entries", f"member {member.id}: {snapshot}")


class ApplicationEntries:
    """The number of Application entries up to an index is a function of the log: a member that came there
    entry by entry, after a restart or from a snapshot of any other member, has counted what the whole log
    has."""

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


class ReplayedState:
    """A state is a function of the committed log: a member that applied up to an index, entry by entry or
    from a snapshot, is in the state that a replay of the whole log gives (Raft §7)."""

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


def check_acknowledged(history: History, index: int, term: int, value: bytes) -> None:
    """An acknowledged entry is committed (D8), and those never change (`History.advance`). Raises `Violation`
    unless ``value`` is committed at ``index`` with ``term``."""
    entries = history.chain.entries
    if index > len(entries) or (entries[index - 1].value, entries[index - 1].term) != (value, term):
        raise Violation("acknowledged is committed", f"{value!r} is not at {index}, term {term}")


class RefusedProposals:
    """A refused proposal is not in the log: a value occurs at most as often as it was proposed and not
    refused, and no other value occurs. A refusal is certain (D8)."""

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


class LinearizableReads:
    """Reads are linearizable: a read sees every entry acknowledged before it began, and everything that an
    earlier read saw (Raft §8)."""

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
