"""Changes of the Configuration, one server at a time (thesis 4.1 to 4.3; D7)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from garlicfarm.errors import ProposalDropped
from garlicfarm.raft.joiner import Joiner
from garlicfarm.raft.state import RaftState
from garlicfarm.raft.types import Change, ConfChange
from garlicfarm.wire.messages import ClusterServer, Configuration

__all__ = ["PendingConfChange"]

MAX_ROUNDS = 10


class _Joining(msgspec.Struct):
    """A server that catches up in rounds (thesis 4.2.1): each is over when it holds what the leader held
    when the round began."""

    server: ClusterServer
    joiner: Joiner
    until: int
    since_ms: int
    rounds: int = 1


class PendingConfChange:
    """The leader's part. A change is appended when all Configurations before it are committed and
    applied; it takes force when it is committed itself."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self.joining: _Joining | None = None
        self._change: ConfChange | None = None
        self._token = 0
        self._index = 0  # where it was appended

    def begin(self, change: ConfChange, token: int, last_index: int, heard: set[int]) -> None:
        """Check a change; it is to be appended at once unless a server is `joining` by it now.
        ``heard``: whom the leader heard of late, itself among them. Raises `ProposalDropped`."""
        membership, server = self._state.membership, change.server
        if (
            self._change is not None
            or membership.changing
            or membership.in_force.log_index > self._state.applied_index
        ):
            raise ProposalDropped("another-change-in-flight")
        known = server.id in membership
        if known is (change.change is Change.ADD):
            raise ProposalDropped("a-member-already" if known else "no-such-member")
        others = [s for s in membership.in_force.servers if s.id != server.id]
        if change.change is not Change.REMOVE and server.endpoint in [s.endpoint for s in others]:
            raise ProposalDropped("endpoint-of-another-member")
        if change.change is Change.REMOVE and not others:
            raise ProposalDropped("the-last-member")
        left = sum(s.id in heard for s in others)
        lost = change.change is Change.REMOVE and left < len(others) // 2 + 1
        if not change.force and (lost or not membership.is_quorum(heard)):
            raise ProposalDropped("too-few-members-heard")
        self._change, self._token, self._index = change, token, 0
        if change.change is Change.ADD:
            joiner = Joiner(self._state, server.id)
            self.joining = _Joining(server, joiner, last_index, self._state.now_ms)

    def target(self) -> Configuration:
        """What the change makes of the Configuration in force."""
        assert self._change is not None
        server, in_force = self._change.server, self._state.membership.in_force
        if self._change.change is Change.SET:
            return _with(in_force, [server if s.id == server.id else s for s in in_force.servers])
        others = [s for s in in_force.servers if s.id != server.id]
        return _with(in_force, [*others, server] if self._change.change is Change.ADD else others)

    def joiner(self, peer: int) -> Joiner | None:
        """How ``peer`` is brought in, None: it is a member."""
        joining = self.joining
        return joining.joiner if joining is not None and joining.server.id == peer else None

    def caught_up(self, match_index: int, last_index: int) -> bool:
        """The joining server holds all up to ``match_index``; whether it is near enough to be a member."""
        joining, state = self.joining, self._state
        if joining is None or match_index < joining.until:
            return False
        if match_index == last_index or (
            state.now_ms - joining.since_ms <= state.config.election_timeout_min_ms
        ):
            return True
        if joining.rounds == MAX_ROUNDS:
            self.give_up("the new server does not catch up")
            return False
        joining.until, joining.since_ms, joining.rounds = last_index, state.now_ms, joining.rounds + 1
        return False

    def give_up(self, why: str) -> None:
        """The server that joins becomes no member."""
        self.joining = self._change = None
        self._state.outcomes.append((self._token, why))

    def appended(self, index: int) -> None:
        """The change is in the log."""
        self.joining = None
        self._index = index

    def committed(self, index: int) -> None:
        """All up to ``index`` is."""
        if self._change is not None and self._index and self._index <= index:
            self._change = None
            self._state.outcomes.append((self._token, (self._index, self._state.term)))

    def end(self) -> None:
        """Leadership is lost."""
        if self.joining is not None:
            self.give_up("leadership was lost before the new server had caught up")
        elif self._change is not None:
            self._state.outcomes.append((self._token, None))

    def addressed(self) -> tuple[ClusterServer, ...]:
        """Whom the leader sends requests: the members, by the newest Configuration too, and who joins."""
        in_force, newest = self._state.membership.in_force, self._state.membership.newest
        servers = {s.id: s for s in in_force.servers} | {s.id: s for s in newest.servers}
        if self.joining is not None:
            servers[self.joining.server.id] = self.joining.server
        return tuple(servers.values())


def _with(configuration: Configuration, servers: Sequence[ClusterServer]) -> Configuration:
    return Configuration(configuration.log_index, configuration.last_log_index, tuple(servers))
