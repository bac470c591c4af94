"""What each request does to a member: checked, judged by the rules of its kind, answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.levels import beyond
from garlicfarm.raft.append_checks import CheckedEntries, check_entries
from garlicfarm.raft.follower import Follower
from garlicfarm.raft.read_index import refuse_read
from garlicfarm.raft.roles import Roles
from garlicfarm.raft.state import MAX_INDEX, RaftState
from garlicfarm.raft.votes import (
    can_grant_pre_vote,
    can_grant_vote,
    can_obey_timeout_now,
    is_refused_by_lease,
)
from garlicfarm.wire import decode_log_pack, decode_snapshot_sync_request
from garlicfarm.wire.messages import NO_LEADER, MessageType, Request


class RequestHandler:
    """Takes the requests of peers and clients. See `RawNode.step`."""

    def __init__(self, state: RaftState, roles: Roles, follower: Follower) -> None:
        self._state = state
        self._roles = roles
        self._follower = follower

    def step(self, request: Request, token: int) -> None:
        """Take a request. Raises `RemoteProtocolError`: its sender broke the protocol."""
        if not self._state.accepts_term(request.term):
            raise RemoteProtocolError(f"no election made term {request.term}", request.type.name)
        handle = _HANDLERS.get(request.type)
        if handle is None:
            raise RemoteProtocolError("a request that this server does not serve", request.type.name)
        handle(self, request, token)

    # ------------------------------------------------------------------ elections

    def _request_vote(self, request: Request, token: int) -> None:
        kind, state = MessageType.REQUEST_VOTE_RESPONSE, self._state
        if request.term > state.term:
            if is_refused_by_lease(request, self._roles.has_live_leader):
                state.respond(token, kind, request.source, 0, False)
                return
            self._roles.become_follower(request.term, 0)
        is_granted = can_grant_vote(state, request)
        if is_granted:
            state.vote_for(request.source)
            self._roles.on_vote_granted()
        state.respond(token, kind, request.source, 0, is_granted)

    def _pre_vote(self, request: Request, token: int) -> None:
        is_granted = can_grant_pre_vote(self._state, request, self._roles.has_live_leader)
        self._state.respond(token, MessageType.PRE_VOTE_RESPONSE, request.source, 0, is_granted)

    def _timeout_now(self, request: Request, token: int) -> None:
        is_obeyed = can_obey_timeout_now(self._state, request, self._roles.is_leaving)
        self._state.respond(token, MessageType.TIMEOUT_NOW_RESPONSE, request.source, 0, is_obeyed)
        if is_obeyed:
            self._roles.campaign_at_once()

    # ------------------------------------------------------------------ from the leader

    def _append_entries(self, request: Request, token: int) -> None:
        checked = self._checked(request)
        if self._is_of_leader(request, token, MessageType.APPEND_ENTRIES_RESPONSE):
            self._roles.on_append(request.term)
            self._follower.append(request, checked, token)

    def _checked(self, request: Request) -> CheckedEntries:
        state = self._state
        return check_entries(request, state.commit_index, state.membership.in_force.level)

    def _install_snapshot(self, request: Request, token: int) -> None:
        chunk = decode_snapshot_sync_request(_only_value(request))
        is_possible = 0 < chunk.last_log_term <= request.term and chunk.last_log_index <= MAX_INDEX
        is_possible &= chunk.configuration.log_index <= chunk.last_log_index + 1  # JRaft's may be a newer one
        if not is_possible or not chunk.configuration.servers:
            raise RemoteProtocolError("a snapshot that no leader of this term has", request.type.name)
        if text := beyond(chunk.configuration.level):
            raise RemoteProtocolError(text, request.type.name)
        if self._is_of_leader(request, token, MessageType.INSTALL_SNAPSHOT_RESPONSE):
            self._follower.install(request.source, chunk, token)

    def _join_cluster(self, request: Request, token: int) -> None:
        """A member refuses the invitation. No term is lowered (JRaft's is). The answer names committed
        entries only: others may come from a leader whose entries were given up."""
        state, kind = self._state, MessageType.JOIN_CLUSTER_RESPONSE
        if state.id in state.membership:
            state.respond(token, kind, request.source, state.log.last_index + 1, False)
        elif self._is_of_leader(request, token, kind):
            state.respond(token, kind, request.source, state.commit_index + 1, True)

    def _sync_log(self, request: Request, token: int) -> None:
        kind, config = MessageType.SYNC_LOG_RESPONSE, self._state.config
        pack = decode_log_pack(_only_value(request), config.max_message_bytes, config.max_entry_bytes)
        # The sender names no term where the pack begins: these entries are committed.
        unpacked = msgspec.structs.replace(request, entries=pack.entries, last_log_term=0)
        checked = self._checked(unpacked)
        if self._state.id in self._state.membership:
            raise RemoteProtocolError("a member is not brought in", request.type.name)
        if self._is_of_leader(request, token, kind):
            self._follower.sync(request, checked, token)

    def _leave_cluster(self, request: Request, token: int) -> None:
        """Only a member may order this: a stranger with the farm's secret could silence every member, and no
        order of a leader that is not known here yet is worth that."""
        kind, state = MessageType.LEAVE_CLUSTER_RESPONSE, self._state
        if request.source not in state.membership:
            raise RemoteProtocolError("an order to leave from a server that is no member", request.type.name)
        if self._is_of_leader(request, token, kind):
            self._roles.on_order_to_leave(request.term)
            state.respond(token, kind, request.source, state.log.last_index + 1, True)

    def _is_of_leader(self, request: Request, token: int, kind: MessageType) -> bool:
        """Whether the sender leads the current term, or a later one: it is followed from now on. A request
        of an earlier term is refused here."""
        state = self._state
        if request.term < state.term:
            is_append = kind is MessageType.APPEND_ENTRIES_RESPONSE
            destination = state.leader_id or NO_LEADER if is_append else request.source
            is_snapshot = kind is MessageType.INSTALL_SNAPSHOT_RESPONSE
            next_index = 0 if is_snapshot else state.log.last_index + 1
            state.respond(token, kind, destination, next_index, False)
            return False
        if request.term == state.term and (
            self._roles.leader is not None or state.leader_id not in (0, request.source)
        ):
            raise RemoteProtocolError(
                "a second leader in one term", f"{request.type.name}, term {state.term}"
            )
        self._roles.become_follower(request.term, request.source)
        return True

    # ------------------------------------------------------------------ to the leader

    def step_posts(self, posts: Sequence[tuple[Request, int]]) -> None:
        """See `RawNode.step_posts`."""
        if self._roles.leader is not None:
            self._roles.leader.step_posts(posts)
        else:
            for _, token in posts:
                self._state.refuse(token, None)

    def _client_request(self, request: Request, token: int) -> None:
        if request.entries:
            self.step_posts(((request, token),))
        elif self._roles.leader is not None:
            self._roles.leader.answer_that_it_leads(token)
        else:
            self._state.refuse(token, None)

    def _read_index(self, request: Request, token: int) -> None:
        if self._roles.leader is not None:
            self._roles.leader.read_index(token, request.source)
        else:
            refuse_read(self._state, token, self._state.leader_id)


def _only_value(request: Request) -> bytes:
    if len(request.entries) != 1:
        raise RemoteProtocolError("this carries exactly one entry", request.type.name)
    return request.entries[0].value


_HANDLERS: dict[MessageType, Callable[[RequestHandler, Request, int], None]] = {
    MessageType.APPEND_ENTRIES_REQUEST: RequestHandler._append_entries,
    MessageType.INSTALL_SNAPSHOT_REQUEST: RequestHandler._install_snapshot,
    MessageType.JOIN_CLUSTER_REQUEST: RequestHandler._join_cluster,
    MessageType.SYNC_LOG_REQUEST: RequestHandler._sync_log,
    MessageType.LEAVE_CLUSTER_REQUEST: RequestHandler._leave_cluster,
    MessageType.REQUEST_VOTE_REQUEST: RequestHandler._request_vote,
    MessageType.PRE_VOTE_REQUEST: RequestHandler._pre_vote,
    MessageType.TIMEOUT_NOW_REQUEST: RequestHandler._timeout_now,
    MessageType.CLIENT_REQUEST: RequestHandler._client_request,
    MessageType.READ_INDEX_REQUEST: RequestHandler._read_index,
}
