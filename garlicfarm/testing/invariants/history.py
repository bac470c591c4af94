"""What the invariants look at: every member's log as a hash chain, and what was ever committed."""

from __future__ import annotations

from garlicfarm.raft import Entry, Persist, Status

__all__ = ["Chain", "History", "Member", "Violation"]


class Violation(AssertionError):
    """An invariant does not hold. ``name`` is the invariant's, ``text`` says who and where."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        super().__init__(f"{name}: {text}")


class Chain:
    """A log and, per index, a hash over all of it up to there: equal hashes, equal prefixes."""

    __slots__ = ("entries", "hashes")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.hashes = [0]

    def write(self, persist: Persist) -> None:
        """Carry out one durable step."""
        if persist.truncate_from is not None:
            del self.entries[persist.truncate_from - 1 :]
            del self.hashes[persist.truncate_from :]
        for entry in persist.entries:
            if entry.index != len(self.hashes):
                raise Violation("storage", f"index {entry.index} is to follow {len(self.entries)}")
            self.entries.append(entry)
            self.hashes.append(hash((self.hashes[-1], entry.term, entry.value_type, entry.value)))

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


class Member:
    """One member across its restarts. ``log`` is what it holds, ``disk`` what of it is durable;
    ``before`` and ``status`` are its states around the last event, None if it was or is down."""

    __slots__ = ("before", "disk", "id", "log", "status")

    def __init__(self, member_id: int) -> None:
        self.id = member_id
        self.log = Chain()
        self.disk = Chain()
        self.before: Status | None = None
        self.status: Status | None = None


class History:
    """What was ever known as committed: ``chain``, and ``steps``: (index up to which it grew, the term
    in which that was seen first)."""

    def __init__(self) -> None:
        self.chain = Chain()
        self.steps: list[tuple[int, int]] = []

    def advance(self, member: Member, status: Status) -> None:
        """``member`` says that it knows of commits."""
        known = len(self.chain.entries)
        if not member.log.agrees(self.chain, min(status.commit, known)):
            raise Violation("committed entries never change", f"member {member.id} at {status.commit}")
        if status.commit > known:
            self.chain.write(Persist(0, entries=tuple(member.log.entries[known : status.commit])))
            self.steps.append((status.commit, status.term))
