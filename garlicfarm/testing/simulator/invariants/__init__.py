"""The invariants of a Raft cluster, checked after every event. docs/reference/testing-kits.md lists them, by
the names that a `Violation` gives.

The first five are those of the Raft paper (figure 3), in `raft_paper`; `members` and `entries` have the
others. An `Observer` gets every event and raises `Violation`. It checks only the member of the event, which
keeps it cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from garlicfarm.application import StateMachine
from garlicfarm.log_application import LogApplication
from garlicfarm.raft import Persist, RawNode, Ready, SnapshotMeta
from garlicfarm.testing.simulator.invariants.entries import (
    ApplicationEntries,
    LinearizableReads,
    RefusedProposals,
    ReplayedState,
    Snapshots,
    check_acknowledged,
)
from garlicfarm.testing.simulator.invariants.history import Chain, History, ObservedMember, Violation
from garlicfarm.testing.simulator.invariants.members import (
    Configurations,
    DurableQuorum,
    MatchIndexes,
    Monotonic,
    PersistentVote,
    RemovedMembers,
    check_floor,
    check_indexes,
)
from garlicfarm.testing.simulator.invariants.raft_paper import (
    ElectionSafety,
    LeaderAppendOnly,
    LeaderCompleteness,
    LogMatching,
    StateMachineSafety,
)
from garlicfarm.wire.messages import ClusterServer, Configuration

__all__ = ["Chain", "History", "ObservedMember", "Observer", "Violation"]


class Observer:
    """Checks all invariants over members that start with empty logs, and any that join. Every method may
    raise `Violation`. ``make_application``: what the members apply entries to."""

    def __init__(
        self, member_ids: Sequence[int], make_application: Callable[[], StateMachine] = LogApplication
    ) -> None:
        self.members = {member_id: ObservedMember(member_id) for member_id in member_ids}
        genesis = Configuration(0, 0, tuple(ClusterServer(i) for i in member_ids))
        self.history = History(genesis)
        self.reads = LinearizableReads()
        self.refused = RefusedProposals()
        self._replayed = ReplayedState(make_application)
        self._application_entries = ApplicationEntries()
        self._monotonic = Monotonic()
        self._invariants = (
            ElectionSafety(),
            LeaderAppendOnly(),
            LogMatching(),
            LeaderCompleteness(),
            StateMachineSafety(),
            DurableQuorum(self.members),
            PersistentVote(),
            self._monotonic,
            MatchIndexes(self.members),
            Configurations(),
            RemovedMembers(),
            Snapshots(),
        )

    def _member(self, member_id: int) -> ObservedMember:
        return self.members.setdefault(member_id, ObservedMember(member_id))

    def on_ready(self, member_id: int, node: RawNode, ready: Ready) -> None:
        """A member took one input and asked for ``ready``."""
        member = self._member(member_id)
        status = node.status()
        member.before, member.status = member.status, status
        known = status.configuration
        if not self.history.steps and known.servers and not known.log_index:
            self.history.configurations[0] = known  # the genesis, with its endpoints
        if ready.persist is not None:
            member.log.write(ready.persist, self.history.chain)
        self.history.advance(member, status)
        check_indexes(member.id, status)
        for invariant in self._invariants:
            invariant.on_ready(member, status, ready, self.history)

    def on_durable(self, member_id: int, persist: Persist) -> None:
        """A write is on a member's disk, whether or not the member knows."""
        self._member(member_id).disk.write(persist, self.history.chain)
        self._monotonic.on_durable(member_id, persist)

    def on_compacted(self, member_id: int, first_index: int, snapshot_index: int) -> None:
        """Where a member's stored log begins now, and its newest snapshot."""
        check_floor(self._member(member_id), first_index, snapshot_index)

    def on_applied(self, member_id: int, position: SnapshotMeta, state: bytes) -> None:
        """A member's application took all up to ``position`` and is in this state."""
        self._replayed.check(member_id, position.index, state, self.history)
        self._application_entries.check(member_id, position, self.history)

    def on_crashed(self, member_id: int) -> None:
        """A member lost what was not on its disk."""
        member = self._member(member_id)
        member.status = None
        member.log.replace(member.disk)

    def on_acknowledged(self, index: int, term: int, value: bytes) -> None:
        """A client was told that ``value`` is committed at ``index``."""
        check_acknowledged(self.history, index, term, value)
        self.reads.on_acknowledged(index)

    def on_end(self) -> None:
        """The run is over."""
        self.refused.check(self.history)
