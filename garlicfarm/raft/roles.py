"""Which role a member has, and what makes it change (Raft §5.2)."""

from __future__ import annotations

from garlicfarm.raft.candidate import Candidate
from garlicfarm.raft.election_timer import ElectionTimer
from garlicfarm.raft.leader import Leader
from garlicfarm.raft.state import RaftState
from garlicfarm.raft.types import Role
from garlicfarm.raft.votes import can_campaign


class Roles:
    """At most one of ``candidate`` and ``leader`` is set; a member that has neither is a follower."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._timer = ElectionTimer(state)
        self._leave_term = 0  # of the leader that told this member to leave, 0: none did
        self.candidate: Candidate | None = None
        self.leader: Leader | None = None

    @property
    def role(self) -> Role:
        """The role. A member that asks for pre-votes is a candidate too."""
        if self.leader is not None:
            return Role.LEADER
        return Role.FOLLOWER if self.candidate is None else Role.CANDIDATE

    @property
    def has_live_leader(self) -> bool:
        """Whether a leader is alive, as far as this member can tell (thesis 4.2.3): itself, which a majority
        answers, or one that was heard within the lower election timeout and is not reported gone."""
        return self.leader is not None or self._timer.has_lease

    # ------------------------------------------------------------------ time

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has something to do, None: never."""
        return self.leader.deadline_ms if self.leader is not None else self._timer.deadline_ms

    def tick(self) -> None:
        """Take note of the time."""
        if self.leader is not None:
            self.leader.tick()
            self.update()
        elif self._timer.tick() and can_campaign(self._state, self.is_leaving):
            self.candidate = Candidate(self._state)
            self.update()

    def on_leader_gone(self, leader: int, term: int) -> None:
        """See `RawNode.report_leader_gone`."""
        state = self._state
        if leader not in (0, state.id) and (leader, term) == (state.leader_id, state.term):
            self._timer.on_leader_gone()

    # ------------------------------------------------------------------ changes of the role

    def update(self) -> None:
        """Follow up where a campaign or a leadership has come to its end. Call it after every input."""
        candidate = self.candidate
        if candidate is not None:
            if candidate.is_pre_vote and candidate.has_won:
                candidate.begin_election()
            if candidate.has_won:
                self.candidate = None
                self.leader = Leader(self._state)
                self._timer.on_leader()
            elif candidate.has_lost:
                self.candidate = None  # the next campaign begins when it would have begun anyway
        if self.leader is not None and self.leader.is_stepping_down:
            is_yielding = self.leader.is_yielding
            self.become_follower(self._state.term, 0)
            if is_yielding:
                self._timer.draw(extra_ms=2 * self._state.config.election_timeout_max_ms)

    def become_follower(self, term: int, leader: int) -> None:
        """Follow ``leader`` (0: not known) in a term that is not over."""
        state = self._state
        if term > state.term:
            state.advance_term(term)
        if self.leader is not None:
            self.leader.step_down(leader)
            state.leader_id = 0
        if self.leader is not None or self.candidate is not None or leader:
            self._timer.restart()
        self.leader = self.candidate = None
        if leader:
            state.leader_id = leader
            self._timer.on_leader()

    def campaign_at_once(self) -> None:
        """Campaign without a pre-vote, since the leader said so (TimeoutNow)."""
        self._state.leader_id = 0
        self._timer.draw()
        self.candidate = Candidate(self._state, is_transfer=True)

    def on_vote_granted(self) -> None:
        """Another member got this member's vote: give it time to win."""
        self._timer.restart()

    # ------------------------------------------------------------------ leaving

    @property
    def is_leaving(self) -> bool:
        """See `RawNode.is_leaving`."""
        return self._leave_term > 0

    def on_order_to_leave(self, term: int) -> None:
        """The leader of ``term`` told this member to leave."""
        self._leave_term = term

    def on_append(self, term: int) -> None:
        """A leader sent entries. If its term is later than that of the leader which told this member to
        leave, it counts on this member: the removal came to nothing."""
        if term > self._leave_term:
            self._leave_term = 0
