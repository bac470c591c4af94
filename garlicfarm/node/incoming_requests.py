"""Requests that come in over sessions, on their way into the core and back.

Posted entries are checked on the way, for `SLICE_S` in each turn (at least one); the rest waits for the next
turn. Posts that take less do not wait for larger ones: these are finished one after the other in every second
turn. If they all went on at once, all would end at about the same time, and in a flood that is too late for
each of them. A post whose check cannot begin in time is refused. Time decides nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import trio

from garlicfarm.application import Application, Origin
from garlicfarm.config.model import HEADERS_BYTES
from garlicfarm.errors import EntryRefused, RemoteProtocolError
from garlicfarm.metrics import FarmMetrics
from garlicfarm.node.core_inbox import SLICE_S, CoreInbox
from garlicfarm.node.hindrances import Hindrances
from garlicfarm.node.leases import Leases
from garlicfarm.node.membership import Membership
from garlicfarm.node.peers import Peers
from garlicfarm.node.proposals import origin_now
from garlicfarm.node.session import PendingResponse, Session
from garlicfarm.node.space_watch import SpaceWatch
from garlicfarm.raft import OutgoingResponse, Role
from garlicfarm.refusals import Refusal
from garlicfarm.wire import Limits
from garlicfarm.wire.messages import ClusterServer, Configuration, MessageType, Request, Response

POSTS_AT_ONCE = 64
"""How many posts of one connection are checked before another one has its turn."""

_FROM_LEADERS = {
    MessageType.APPEND_ENTRIES_REQUEST,
    MessageType.SYNC_LOG_REQUEST,
    MessageType.JOIN_CLUSTER_REQUEST,
    MessageType.INSTALL_SNAPSHOT_REQUEST,
}
"""Requests that carry the leader's commit index."""


@dataclass(slots=True)
class _Post:
    """A ClientRequest with entries. ``next_entry``: of these, the first one that is not checked yet."""

    request: Request
    token: int
    next_entry: int = 0


class IncomingRequests:
    """The requests of all sessions of one replica. A `garlicfarm.node.session.RequestReceiver`.

    ``run_turn(has_posts)``: input was added to ``core``, posts among it."""

    def __init__(
        self,
        core: CoreInbox,
        membership: Membership,
        leases: Leases,
        peers: Peers,
        application: Application,
        metrics: FarmMetrics,
        hindrances: Hindrances,
        space: SpaceWatch,
        run_turn: Callable[[bool], None],
    ) -> None:
        raft = core.raft
        largest_post = max(raft.max_client_message_bytes, raft.max_entry_bytes + HEADERS_BYTES)
        self.node_id = core.node_id
        self.limits = Limits(raft.max_message_bytes, raft.max_entry_bytes)
        self.client_limits = Limits(min(raft.max_message_bytes, largest_post), raft.max_entry_bytes)
        self.metrics = metrics
        self._core = core
        self._membership = membership
        self._leases = leases
        self._peers = peers
        self._application = application
        self._hindrances = hindrances
        self._space = space
        self._run_turn = run_turn
        self._pending: dict[int, PendingResponse] = {}
        # Posts to be checked, by connection: each connection in order, `POSTS_AT_ONCE` of each in turn. Once
        # a connection's first post has used up a turn, it is among those begun, and waits for those before.
        self._unchecked: dict[Session, deque[_Post]] = {}
        self._begun: dict[Session, deque[_Post]] = {}
        self._continues = False  # in this turn, or the last one, the first of those begun is checked
        self._continued: _Post | None = None  # the last one of which that was more than a beginning
        # The other half of the time to answer is for the commit (`RaftConfig.max_commit_wait_ms`).
        self._check_within_s = core.answer_timeout_s / 2
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

    def step(self, requests: Sequence[tuple[Request, PendingResponse]]) -> None:
        """Pass requests to the core, in order, and have it run a turn; each gets its answer."""
        has_posts = False
        for request, pending in requests:
            if request.source:
                self.on_request(request)
            else:
                self.metrics.received[request.type] += 1
            if request.type is MessageType.CLIENT_REQUEST:
                has_posts = True
            pending.token = token = self._core.next_token()
            self._pending[token] = pending
        self._core.add(self._step, requests)
        self._run_turn(has_posts)

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
    def waiting(self) -> int:
        """How many requests wait for their answers."""
        return len(self._pending)

    @property
    def has_unchecked(self) -> bool:
        """Whether `check_posts` has work to do."""
        return bool(self._unchecked or self._begun)

    @property
    def next_delayed_at(self) -> float:
        """When `send_delayed` has work to do, on Trio's clock."""
        return self._delayed[0][0] if self._delayed else float("inf")

    def check_posts(self) -> None:
        """Check posted entries, and pass them on. Not when they arrive: this member may not have been the
        leader then."""
        if not self.has_unchecked:
            return
        until = trio.current_time() + SLICE_S
        self._continues = bool(self._begun) and not (self._continues and self._unchecked)
        while queue := self._begun if self._continues else self._unchecked:
            session, posts = next(iter(queue.items()))
            first = posts[0]
            self._check_posts(session, posts, until)
            if self._continues and posts and posts[0] is first:
                self._continued = first
            else:
                del queue[session]
                if posts:  # behind the others
                    (self._begun if posts[0].next_entry else self._unchecked)[session] = posts
            if trio.current_time() >= until:
                return

    def _check_posts(self, session: Session, posts: deque[_Post], until: float) -> None:
        """Check the next posts of a connection, `POSTS_AT_ONCE` or until that time, and pass them on
        together."""
        is_leader = self._core.raw.role is Role.LEADER  # if not, the core redirects the client
        origin = origin_now(posts[0].request.source, session.principal.user)
        checked: list[tuple[Request, int]] = []
        for _ in range(1 if self._continues else min(len(posts), POSTS_AT_ONCE)):
            post = posts[0]
            if post.request.source != origin.member:  # without a handshake each request names its own
                origin = origin_now(post.request.source, session.principal.user)
            pending = self._pending.get(post.token)
            if pending is not None:  # its connection is open
                refusal = self._refusal(post, pending, origin, until) if is_leader else None
                if refusal is not None:
                    del self._pending[post.token]
                    pending.resolve(self._refuse(refusal))
                elif is_leader and post.next_entry < len(post.request.entries):
                    break
                elif post.request.term:  # a client names none
                    self._core.raw.step_posts(checked)
                    checked.clear()
                    self._pass_on(post.request, post.token)
                else:
                    checked.append((post.request, post.token))
            posts.popleft()
            if trio.current_time() >= until:
                break
        if checked:
            self._core.raw.step_posts(checked)

    def _refusal(self, post: _Post, pending: PendingResponse, origin: Origin, until: float) -> Refusal | None:
        """The reason to refuse a post (D8). Sets how far its entries are checked, at least one of them."""
        if not pending.session.principal.may_post:
            return Refusal.ROLE_MISSING
        if post is not self._continued and until > pending.since + self._check_within_s:
            return Refusal.TOO_MUCH_UNCOMMITTED
        entries = post.request.entries
        while True:
            value = entries[post.next_entry].value
            if len(value) > self.limits.max_entry_bytes:
                return Refusal.ENTRY_TOO_LARGE
            try:
                self._application.check(value, origin)
            except EntryRefused:
                return Refusal.ENTRY_REFUSED
            if not (self._space.has_room or self._application.is_needed(value)):
                return Refusal.DISK_FULL
            post.next_entry += 1
            if post.next_entry == len(entries) or trio.current_time() >= until:
                return None

    def answer(self, answers: Sequence[OutgoingResponse]) -> None:
        """The core answers requests. After a refused or unneeded snapshot, a JRaft leader sends it again as
        soon as it is answered. So that answer is delayed."""
        answered: set[Session] = set()
        for answer in answers:
            pending, response = self._pending.pop(answer.token, None), answer.response
            if pending is None:
                continue
            session = pending.session
            if (
                response is not None
                and response.type is MessageType.INSTALL_SNAPSHOT_RESPONSE
                and not response.next_index
                and session.principal.is_jraft
            ):
                self._delayed.append((trio.current_time() + self._refusal_delay_s, pending, response))
            else:
                pending.response = response
                pending.is_done = True
                answered.add(session)
        for session in answered:
            session.flush()

    def send_delayed(self, now: float) -> None:
        """Give the answers that were delayed until ``now``."""
        while self._delayed and self._delayed[0][0] <= now:
            _, pending, response = self._delayed.popleft()
            pending.resolve(response)

    def _step(self, requests: Sequence[tuple[Request, PendingResponse]]) -> None:
        for request, pending in requests:
            refusal = self._membership.refusal(request) if request.source else None
            if refusal is not None:
                del self._pending[pending.token]
                pending.resolve(refusal)
            elif request.type is MessageType.CLIENT_REQUEST and request.entries:
                session = pending.session
                posts = self._begun.get(session) or self._unchecked.setdefault(session, deque())
                posts.append(_Post(request, pending.token))
            else:
                self._pass_on(request, pending.token)

    def _pass_on(self, request: Request, token: int) -> None:
        raw = self._core.raw
        try:
            if request.type is MessageType.LEASE_REQUEST:
                response = self._leases.take(request)
                self._pending.pop(token).resolve(response)
                return
            raw.step(request, token)
        except RemoteProtocolError as fault:
            if raw.accepts_term(request.term):
                self.metrics.count_refused("protocol")
            else:
                self._hindrances.on_request_refused(request.source, request.term)
            self._pending.pop(token).session.fail(fault)
        if request.type is MessageType.LEAVE_CLUSTER_REQUEST and raw.is_leaving:
            self._membership.on_order_to_leave()

    def _refuse(self, reason: Refusal) -> Response:
        """The answer to a ClientRequest that is not appended for ``reason`` (D8: refusals carry one)."""
        self.metrics.count_proposals("refused")
        kind, node_id = MessageType.APPEND_ENTRIES_RESPONSE, self.node_id
        return Response(kind, node_id, node_id, self._core.raw.term, reason.number, False)
