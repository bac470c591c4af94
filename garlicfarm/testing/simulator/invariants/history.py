"""The history that the invariants check: every member's log as a hash chain, and all that was ever
committed."""

from __future__ import annotations

from typing import NamedTuple

from garlicfarm.raft import Entry, Persist, Status
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import Configuration, ValueType


class Violation(AssertionError):
    """An invariant does not hold. ``name`` is the invariant's, ``text`` names members and places."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        super().__init__(f"{name}: {text}")


class Chain:
    """A log and, per index, a hash over all of it up to there: equal hashes, equal prefixes.

    It is complete from index 1 on, even if the member's own log begins later: the entries that a snapshot
    covers are known from the committed ones.
    """

    __slots__ = ("entries", "hashes")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.hashes = [0]

    def write(self, persist: Persist, committed: Chain | None = None) -> None:
        """Carry out one durable step; a snapshot in it covers the beginning of ``committed``."""
        if persist.truncate_from is not None:
            del self.entries[persist.truncate_from - 1 :]
            del self.hashes[persist.truncate_from :]
        if persist.snapshot is not None and committed is not None:
            self._install(persist.snapshot.index, committed)
        for entry in persist.entries:
            if entry.index != len(self.hashes):
                raise Violation("storage", f"index {entry.index} is to follow {len(self.entries)}")
            self.entries.append(entry)
            self.hashes.append(hash((self.hashes[-1], entry.term, entry.value_type, entry.value)))

    def _install(self, index: int, committed: Chain) -> None:
        if self.agrees(committed, index):
            return
        if index >= len(committed.hashes) or len(self.entries) > index:
            raise Violation("storage", f"entries behind {index} that do not follow the snapshot there")
        self.entries[:], self.hashes[:] = committed.entries[:index], committed.hashes[: index + 1]

    def replace(self, other: Chain) -> None:
        """Become a copy of another one."""
        self.entries[:], self.hashes[:] = other.entries, other.hashes

    def agrees(self, other: Chain, index: int) -> bool:
        """Whether both logs reach ``index`` and are the same up to it."""
        return (
            index < len(self.hashes)
            and index < len(other.hashes)
            and self.hashes[index] == other.hashes[index]
        )


class ObservedMember:
    """One member across its restarts. ``log`` is its log, ``disk`` the durable part of it;
    ``before`` and ``status`` are its states around the last event, None if it was or is down."""

    __slots__ = ("before", "disk", "id", "log", "status")

    def __init__(self, member_id: int) -> None:
        self.id = member_id
        self.log = Chain()
        self.disk = Chain()
        self.before: Status | None = None
        self.status: Status | None = None


class CommitStep(NamedTuple):
    """One advance of the commit index to ``upto``, first seen in ``term``, by a leader whose newest committed
    Configuration was ``in_force``."""

    upto: int
    term: int
    in_force: Configuration


class History:
    """Everything ever known as committed: ``chain``, the ``steps`` in which it grew, and the committed
    ``configurations``, the genesis first."""

    def __init__(self, genesis: Configuration) -> None:
        self.chain = Chain()
        self.steps: list[CommitStep] = []
        self.configurations = [genesis]

    def in_force(self, index: int) -> Configuration:
        """The Configuration in force where ``index`` is the last committed one."""
        return next(c for c in reversed(self.configurations) if c.log_index <= index)

    def advance(self, member: ObservedMember, status: Status) -> None:
        """``member`` reports its commit index."""
        known = len(self.chain.entries)
        if not member.log.agrees(self.chain, min(status.commit, known)):
            raise Violation("committed entries never change", f"member {member.id} at {status.commit}")
        if status.commit > known:
            new = tuple(member.log.entries[known : status.commit])
            if len(new) < status.commit - known:
                raise Violation("committed entries never change", f"member {member.id} lacks {status.commit}")
            self.chain.write(Persist(0, entries=new))
            # A Configuration takes force when committed (D7). A leader may not know yet that a newer one is;
            # both majorities overlap.
            in_force = self.in_force(member.before.commit if member.before is not None else 0)
            self.steps.append(CommitStep(status.commit, status.term, in_force))
            for entry in new:
                if entry.value_type is ValueType.CONFIGURATION:
                    self.configurations.append(decode_configuration(entry.value))
