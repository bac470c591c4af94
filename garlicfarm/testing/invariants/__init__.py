"""What must be true of a Raft cluster after every event, one invariant per module.

=======================  ==========================================================================
`election_safety`        at most one leader in a term
`leader_append_only`     a leader only ever appends to its log
`log_matching`           same index and term: same log up to there
`leader_completeness`    what is committed is in every later leader's log
`state_machine_safety`   every member applies the same entries, each once and in order
`durable_quorum`         committed means durable at a majority
`kept_word`              terms, votes and commits survive a crash
`acknowledged`           what a client was told is committed is committed, where it was told
=======================  ==========================================================================

The first five are those of the Raft paper (figure 3). An `Observer` is told of every event and
raises `Violation`; it looks at the one member that the event concerned, so that it costs little.
"""

from __future__ import annotations

from collections.abc import Sequence

from garlicfarm.raft import Persist, RawNode, Ready
from garlicfarm.testing.invariants.acknowledged import check_acknowledged
from garlicfarm.testing.invariants.durable_quorum import DurableQuorum
from garlicfarm.testing.invariants.election_safety import ElectionSafety
from garlicfarm.testing.invariants.history import Chain, History, Member, Violation
from garlicfarm.testing.invariants.kept_word import KeptWord
from garlicfarm.testing.invariants.leader_append_only import LeaderAppendOnly
from garlicfarm.testing.invariants.leader_completeness import LeaderCompleteness
from garlicfarm.testing.invariants.log_matching import LogMatching
from garlicfarm.testing.invariants.state_machine_safety import StateMachineSafety

__all__ = ["Chain", "History", "Member", "Observer", "Violation"]


class Observer:
    """Checks all invariants over members that start with empty logs. Every method may raise
    `Violation`."""

    def __init__(self, member_ids: Sequence[int]) -> None:
        self.members = {member_id: Member(member_id) for member_id in member_ids}
        self.history = History()
        self._invariants = (
            ElectionSafety(),
            LeaderAppendOnly(),
            LogMatching(),
            LeaderCompleteness(),
            StateMachineSafety(),
            DurableQuorum(tuple(self.members.values())),
            KeptWord(),
        )

    def turn(self, member_id: int, node: RawNode, ready: Ready) -> None:
        """A member took one input and asked for ``ready``."""
        member = self.members[member_id]
        member.before, member.status = member.status, node.status()
        if ready.persist is not None:
            member.log.write(ready.persist)
        self.history.advance(member, member.status)
        for invariant in self._invariants:
            invariant.turn(member, ready, self.history)

    def durable(self, member_id: int, persist: Persist) -> None:
        """A write is on a member's disk, whether or not the member knows."""
        self.members[member_id].disk.write(persist)

    def crashed(self, member_id: int) -> None:
        """A member lost what was not on its disk."""
        member = self.members[member_id]
        member.status = None
        member.log.replace(member.disk)

    def acknowledged(self, index: int, term: int, value: bytes) -> None:
        """A client was told that ``value`` is committed at ``index``."""
        check_acknowledged(self.history, index, term, value)
