"""Requests that come in over sessions, on their way into the core and back.

Posted entries are checked on the way, for `SLICE_S` in each turn of the core's task (at least one); the rest
waits for the next turn. Time decides only when a turn ends, never the outcome of an entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import trio

from garlicfarm.application import Application, Origin
from garlicfarm.config.model import HEADERS_BYTES
from garlicfarm.errors import RemoteProtocolError
from garlicfarm.metrics import FarmMetrics
from garlicfarm.node.core import SLICE_S, Core
from garlicfarm.node.membership import Membership
from garlicfarm.node.peers import Peers
from garlicfarm.node.session import PendingResponse, Session
from garlicfarm.raft import Role
from garlicfarm.refusals import Refusal
from garlicfarm.wire import Limits
from garlicfarm.wire.messages import ClusterServer, Configuration, MessageType, Request, Response

__all__ = ["IncomingRequests"]

_FROM_LEADERS = {
    MessageType.APPEND_ENTRIES_REQUEST,
    MessageType.SYNC_LOG_REQUEST,
    MessageType.JOIN_CLUSTER_REQUEST,
    MessageType.INSTALL_SNAPSHOT_REQUEST,
}
"""Requests that carry the leader's commit index."""


class IncomingRequests:
    """The requests of all sessions of one replica. A `garlicfarm.node.session.RequestReceiver`."""

    def __init__(
        self,
        core: Core,
        membership: Membership,
        peers: Peers,
        application: Application,
        metrics: FarmMetrics,
    ) -> None:
        raft = core.raft
        largest_post = max(raft.max_client_message_bytes, raft.max_entry_bytes + HEADERS_BYTES)
        self.node_id = core.node_id
        self.limits = Limits(raft.max_message_bytes, raft.max_entry_bytes)
        self.client_limits = Limits(min(raft.max_message_bytes, largest_post), raft.max_entry_bytes)
        self.metrics = metrics
        self._core = core
        self._membership = membership
        self._peers = peers
        self._application = application
        self._pending: dict[int, PendingResponse] = {}
        # Posts being checked, by connection: each connection in order, one request of each in turn.
        self._unchecked: dict[Session, deque[tuple[Request, int, Iterator[Refusal | None]]]] = {}
        # Delayed responses, and until when.
        self._delayed: deque[tuple[float, PendingResponse, Response | None]] = deque()
        # A leader that waits for one sends nothing else: this member must not campaign meanwhile.
        self._refusal_delay_s = min(raft.election_timeout_min_s, raft.rpc_timeout_s) / 2
        self._leader_commit = (0, 0)  # the last leader heard from, and its commit index

    # ------------------------------------------------------------------ for sessions

    @property
    def configuration(self) -> Configuration:
        """The Configuration in force."""
        return self._core.configuration

    def on_request(self, request: Request) -> None:
        """A permitted request came in."""
        self.metrics.received[request.type] += 1
        if request.type in _FROM_LEADERS:
            self._leader_commit = (request.source, request.commit_index)
        if request.source:
            self._peers.on_contact(request.source)

    def check(self, entry: bytes, origin: Origin) -> None:
        """Check a posted entry. Raises `EntryRefused`."""
        self._application.check(entry, origin)

    def step(self, request: Request, pending: PendingResponse) -> None:
        """Pass a request to the core; ``pending`` gets the answer."""
        pending.token = token = self._core.next_token()
        self._pending[token] = pending
        self._core.put(self._step, request, token)

    def is_member(self, server: int) -> bool:
        """Whether the applied Configuration names this server."""
        return self._membership.is_member(server)

    def change_member(self, request: Request, server: ClusterServer, pending: PendingResponse) -> None:
        """Answer an AddServerRequest or RemoveServerRequest about ``server``."""
        self._membership.serve(request, server, pending)

    def forget(self, pending: Iterable[PendingResponse]) -> None:
        """Forget answers whose connection is gone. While a disk hangs, they may never come."""
        self._core.put(self._forget, [each.token for each in pending])

    def _forget(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._pending.pop(token, None)

    # ------------------------------------------------------------------ for the core's task

    @property
    def leader_commit(self) -> int | None:
        """The commit index that the leader last sent; None: no leader, or nothing heard from it."""
        if self._core.is_leader:
            return self._core.raw.status().commit
        source, commit = self._leader_commit
        return commit if source and source == self._core.leader_id else None

    @property
    def has_unchecked(self) -> bool:
        """Whether `check_posts` has work to do."""
        return bool(self._unchecked)

    @property
    def next_delayed_at(self) -> float:
        """When `send_delayed` has work to do, on Trio's clock."""
        return self._delayed[0][0] if self._delayed else float("inf")

    def check_posts(self) -> None:
        """Check posted entries. Not when they arrive: this member may not have been the leader then."""
        if not self._unchecked:
            return
        now, raw = trio.current_time(), self._core.raw
        until = now + SLICE_S
        while self._unchecked:
            session = next(iter(self._unchecked))
            posts = self._unchecked.pop(session)
            request, token, refusals = posts[0]
            is_forgotten = token not in self._pending  # its connection is closed
            refusal, is_checked = None, True  # if this member does not lead, the core redirects the client
            if not is_forgotten and raw.role is Role.LEADER:
                for refusal in refusals:
                    now = trio.current_time()
                    if refusal is not None or now >= until:
                        is_checked = refusal is not None
                        break
            else:
                now = trio.current_time()
            if is_checked:
                posts.popleft()
            if refusal is not None:
                self._pending.pop(token).resolve(self._refuse(refusal))
            elif is_checked and not is_forgotten:
                self._pass_on(request, token)
            if posts:
                self._unchecked[session] = posts  # behind the others
            if now >= until:
                return

    def answer(self, token: int, response: Response | None) -> None:
        """The core answers a request. After a refused or unneeded snapshot, a JRaft leader sends it again as
        soon as it is answered. So that answer is delayed."""
        pending = self._pending.pop(token, None)
        if pending is None:
            return
        is_refused_snapshot = (
            response is not None
            and response.type is MessageType.INSTALL_SNAPSHOT_RESPONSE
            and not response.next_index
        )
        if is_refused_snapshot and pending.session.is_jraft:
            self._delayed.append((trio.current_time() + self._refusal_delay_s, pending, response))
        else:
            pending.resolve(response)

    def send_delayed(self, now: float) -> None:
        """Give the answers that were delayed until ``now``."""
        while self._delayed and self._delayed[0][0] <= now:
            _, pending, response = self._delayed.popleft()
            pending.resolve(response)

    def _step(self, request: Request, token: int) -> None:
        refusal = self._membership.refusal(request)
        if refusal is not None:
            self._pending.pop(token).resolve(refusal)
            return
        if request.type is MessageType.CLIENT_REQUEST and request.entries:
            session = self._pending[token].session
            post = (request, token, session.refusals(request))
            self._unchecked.setdefault(session, deque()).append(post)
        else:
            self._pass_on(request, token)

    def _pass_on(self, request: Request, token: int) -> None:
        raw = self._core.raw
        try:
            raw.step(request, token)
        except RemoteProtocolError as fault:
            self.metrics.count_refused("protocol")
            self._pending.pop(token).session.fail(fault)
        if request.type is MessageType.LEAVE_CLUSTER_REQUEST and raw.leader == request.source:
            self._membership.on_order_to_leave()

    def _refuse(self, reason: Refusal) -> Response:
        """The answer to a ClientRequest that is not appended for ``reason`` (D8: refusals carry one)."""
        self.metrics.count_proposals("refused")
        kind, node_id = MessageType.APPEND_ENTRIES_RESPONSE, self.node_id
        return Response(kind, node_id, node_id, self._core.raw.term, reason.number, False)
