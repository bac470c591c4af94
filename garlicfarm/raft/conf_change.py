"""Changes of the Configuration, one server at a time, each in force when it is committed (thesis 4.1 to 4.3;
D7); and of its level (D26)."""

from __future__ import annotations

import msgspec

from garlicfarm.errors import ProposalDropped
from garlicfarm.raft.joiner import Joiner
from garlicfarm.raft.state import RaftState
from garlicfarm.raft.types import Change, ConfChange, LogPosition, ProposalOutcome
from garlicfarm.refusals import Refusal
from garlicfarm.wire.messages import ClusterServer, Configuration


class PendingConfChange:
    """The one change that a leader has in flight. It is appended when all Configurations before it are
    committed and applied, and takes force when it is committed itself."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self.joiner: Joiner | None = None  # the server to be added, until its Configuration is appended
        self._change: ConfChange | None = None
        self._token = 0
        self._index = 0  # of the Configuration, 0: not appended yet

    def begin(self, change: ConfChange, token: int, active: set[int]) -> None:
        """Check a change and begin it. Append it at once, unless a `joiner` has to catch up first.
        ``active``: the members that the leader heard recently, itself included. Raises `ProposalDropped`."""
        self.check(change, active)
        self._change, self._token, self._index = change, token, 0
        if change.change is Change.ADD:
            self.joiner = Joiner(self._state, change.server)

    def check(self, change: ConfChange, active: set[int]) -> None:
        """Raises `ProposalDropped` where `begin` does; changes nothing."""
        membership, server = self._state.membership, change.server
        if (
            self._change is not None
            or membership.has_pending
            or membership.in_force.log_index > self._state.applied_index
        ):
            raise ProposalDropped(Refusal.ANOTHER_CHANGE_IN_FLIGHT)
        if change.change is Change.RAISE:
            if change.level <= membership.in_force.level:
                raise ProposalDropped(Refusal.LEVEL_REACHED)
            if not membership.is_quorum(active):
                raise ProposalDropped(Refusal.TOO_FEW_MEMBERS_HEARD)
            return
        is_member = server.id in membership
        if is_member is (change.change is Change.ADD):
            raise ProposalDropped(Refusal.A_MEMBER_ALREADY if is_member else Refusal.NO_SUCH_MEMBER)
        others = [s for s in membership.in_force.servers if s.id != server.id]
        if change.change is not Change.REMOVE and server.endpoint in [s.endpoint for s in others]:
            raise ProposalDropped(Refusal.ENDPOINT_OF_ANOTHER_MEMBER)
        if change.change is Change.REMOVE and not others:
            raise ProposalDropped(Refusal.THE_LAST_MEMBER)
        active_others = sum(s.id in active for s in others)
        loses_quorum = change.change is Change.REMOVE and active_others < len(others) // 2 + 1
        if not change.force and (loses_quorum or not membership.is_quorum(active)):
            raise ProposalDropped(Refusal.TOO_FEW_MEMBERS_HEARD)

    def new_configuration(self) -> Configuration:
        """The Configuration in force with the change made."""
        assert self._change is not None
        server, in_force = self._change.server, self._state.membership.in_force
        others = [s for s in in_force.servers if s.id != server.id]
        match self._change.change:
            case Change.RAISE:
                return msgspec.structs.replace(in_force, level=self._change.level)
            case Change.SET:
                servers = [server if s.id == server.id else s for s in in_force.servers]
            case Change.ADD:
                servers = [*others, server]
            case Change.REMOVE:
                servers = others
        return msgspec.structs.replace(in_force, servers=tuple(servers))

    def joiner_of(self, peer: int) -> Joiner | None:
        """The joiner if ``peer`` is it, None if ``peer`` is a member."""
        return self.joiner if self.joiner is not None and self.joiner.server.id == peer else None

    def is_ready_to_append(self, match_index: int) -> bool:
        """Whether the joiner, which holds the log up to ``match_index``, has caught up. Gives up the change
        if it had its last round."""
        assert self.joiner is not None
        if self.joiner.is_caught_up(match_index):
            return True
        if self.joiner.begin_round(match_index):
            self.give_up(Refusal.JOINER_DOES_NOT_CATCH_UP)
        return False

    def give_up(self, reason: Refusal) -> None:
        """Drop the change: the joiner does not become a member."""
        self.joiner = self._change = None
        self._state.outcomes.append(ProposalOutcome(self._token, reason))

    def on_appended(self, index: int) -> None:
        """The Configuration was appended at ``index``."""
        self.joiner = None
        self._index = index

    def on_committed(self, index: int) -> None:
        """All entries up to ``index`` are committed."""
        if self._change is not None and self._index and self._index <= index:
            self._change = None
            position = LogPosition(self._index, self._state.term)
            self._state.outcomes.append(ProposalOutcome(self._token, position))

    def on_step_down(self) -> None:
        """Leadership is lost."""
        if self.joiner is not None:
            self.give_up(Refusal.LEADERSHIP_LOST_MEANWHILE)
        elif self._change is not None:
            self._state.outcomes.append(ProposalOutcome(self._token, None))

    def replication_targets(self) -> tuple[ClusterServer, ...]:
        """The servers that the leader replicates to: the members of the Configuration in force and of the
        newest one, and the joiner."""
        in_force, newest = self._state.membership.in_force, self._state.membership.newest
        servers = {s.id: s for s in in_force.servers} | {s.id: s for s in newest.servers}
        if self.joiner is not None:
            servers[self.joiner.server.id] = self.joiner.server
        return tuple(servers.values())
