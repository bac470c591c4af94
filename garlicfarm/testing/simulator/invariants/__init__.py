"""What must be true of a Raft cluster after every event, one invariant per module.

========================  ==========================================================================
`election_safety`         at most one leader in a term
`leader_append_only`      a leader only ever appends to its log
`log_matching`            same index and term: same log up to there
`leader_completeness`     what is committed is in every later leader's log
`state_machine_safety`    every member applies the same entries, each once and in order
`durable_quorum`          committed means durable at a majority of the members then in force
`kept_word`               one vote a term, and no term that was spoken in is forgotten, across crashes
`monotonic`               terms, commits and what is applied never fall, on disk nor in memory
`ordered_indexes`         purged ≤ snapshot ≤ applied ≤ commit ≤ last
`match_indexes`           what a leader takes for replicated is on the follower's disk
`configurations`          one change at a time, of one server, after a commit of the leader's term
`removed_members`         who is no member by what it knows neither leads nor stands
`snapshots`               a snapshot is of committed entries, and names the members there
`replayed_state`          the state out of a snapshot is the state that replaying gives
`acknowledged`            what a client was told is committed is committed, where it was told
`refused`                 what was refused is not in the log, and nothing is there that nobody asked for
`reads`                   a read sees all that was acknowledged, or read, before it began
========================  ==========================================================================

The first five are those of the Raft paper (figure 3). An `Observer` is told of every event and
raises `Violation`; it looks at the one member that the event concerned, so that it costs little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from garlicfarm.application import Application
from garlicfarm.log_application import LogApplication
from garlicfarm.raft import Persist, RawNode, Ready
from garlicfarm.testing.simulator.invariants.acknowledged import check_acknowledged
from garlicfarm.testing.simulator.invariants.configurations import Configurations
from garlicfarm.testing.simulator.invariants.durable_quorum import DurableQuorum
from garlicfarm.testing.simulator.invariants.election_safety import ElectionSafety
from garlicfarm.testing.simulator.invariants.history import Chain, History, Member, Violation
from garlicfarm.testing.simulator.invariants.kept_word import KeptWord
from garlicfarm.testing.simulator.invariants.leader_append_only import LeaderAppendOnly
from garlicfarm.testing.simulator.invariants.leader_completeness import LeaderCompleteness
from garlicfarm.testing.simulator.invariants.log_matching import LogMatching
from garlicfarm.testing.simulator.invariants.match_indexes import MatchIndexes
from garlicfarm.testing.simulator.invariants.monotonic import Monotonic
from garlicfarm.testing.simulator.invariants.ordered_indexes import check_floor, check_indexes
from garlicfarm.testing.simulator.invariants.reads import Reads
from garlicfarm.testing.simulator.invariants.refused import Refused
from garlicfarm.testing.simulator.invariants.removed_members import RemovedMembers
from garlicfarm.testing.simulator.invariants.replayed_state import ReplayedState
from garlicfarm.testing.simulator.invariants.snapshots import Snapshots
from garlicfarm.testing.simulator.invariants.state_machine_safety import StateMachineSafety
from garlicfarm.wire.messages import ClusterServer, Configuration

__all__ = ["Chain", "History", "Member", "Observer", "Violation"]


class Observer:
    """Checks all invariants over members that start with empty logs, and any that join. Every method may
    raise `Violation`. ``make_application``: what the members apply entries to."""

    def __init__(
        self, member_ids: Sequence[int], make_application: Callable[[], Application] = LogApplication
    ) -> None:
        self.members = {member_id: Member(member_id) for member_id in member_ids}
        genesis = Configuration(0, 0, tuple(ClusterServer(i) for i in member_ids))
        self.history = History(genesis)
        self.reads = Reads()
        self.refused = Refused()
        self._replayed = ReplayedState(make_application)
        self._monotonic = Monotonic()
        self._invariants = (
            ElectionSafety(),
            LeaderAppendOnly(),
            LogMatching(),
            LeaderCompleteness(),
            StateMachineSafety(),
            DurableQuorum(self.members),
            KeptWord(),
            self._monotonic,
            MatchIndexes(self.members),
            Configurations(),
            RemovedMembers(),
            Snapshots(),
        )

    def _member(self, member_id: int) -> Member:
        return self.members.setdefault(member_id, Member(member_id))

    def turn(self, member_id: int, node: RawNode, ready: Ready) -> None:
        """A member took one input and asked for ``ready``."""
        member = self._member(member_id)
        member.before, member.status = member.status, node.status()
        known = member.status.configuration
        if not self.history.steps and known.servers and not known.log_index:
            self.history.configurations[0] = known  # the genesis, with its endpoints
        if ready.persist is not None:
            member.log.write(ready.persist, self.history.chain)
        self.history.advance(member, member.status)
        check_indexes(member.id, member.status)
        for invariant in self._invariants:
            invariant.turn(member, ready, self.history)

    def durable(self, member_id: int, persist: Persist) -> None:
        """A write is on a member's disk, whether or not the member knows."""
        self._member(member_id).disk.write(persist, self.history.chain)
        self._monotonic.durable(member_id, persist)

    def floor(self, member_id: int, first_index: int, snapshot_index: int) -> None:
        """Where a member's stored log begins now, and its newest snapshot."""
        check_floor(self._member(member_id), first_index, snapshot_index)

    def applied(self, member_id: int, index: int, state: bytes) -> None:
        """A member's application took all up to ``index`` and is in this state."""
        self._replayed.check(member_id, index, state, self.history)

    def crashed(self, member_id: int) -> None:
        """A member lost what was not on its disk."""
        member = self._member(member_id)
        member.status = None
        member.log.replace(member.disk)

    def acknowledged(self, index: int, term: int, value: bytes) -> None:
        """A client was told that ``value`` is committed at ``index``."""
        check_acknowledged(self.history, index, term, value)
        self.reads.acknowledged(index)

    def ended(self) -> None:
        """The run is over."""
        self.refused.check(self.history)
