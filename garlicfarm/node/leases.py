"""The leases that the leader grants to the member that its application names (D24): both sides, as
`garlicfarm.leases` decides, over the connections for Raft requests. And the time-outs of elections and
requests, which follow the leader's round trips (D27), as `garlicfarm.round_trips` decides.

A grant travels with what is sent to that member anyway, at most one in a heartbeat; the first two at once.
The clock is read where a request is handed to its connection, and again after an answer has come. All but
`run` is called in turns of the core, or between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio

from garlicfarm.application import LeaseUser
from garlicfarm.leases import LeaseGranter
from garlicfarm.logs import EventLogger
from garlicfarm.node.boot_clock import boot_ms
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.peers import Peers
from garlicfarm.raft import Role
from garlicfarm.round_trips import RoundTrips
from garlicfarm.wire import decode_grant, encode_grant
from garlicfarm.wire.messages import LogEntry, MessageType, Request, Response, ValueType

LOOK_S = 1.0
"""How often a leader looks that has nothing to expect."""


class Leases:
    """``append(entry)``: in a turn of the core, append an entry of the leader's own; whether it did."""

    def __init__(
        self,
        core: CoreInbox,
        peers: Peers,
        user: LeaseUser | None,
        append: Callable[[bytes], bool],
        log: EventLogger,
    ) -> None:
        self._core = core
        self._peers = peers
        self._user = user
        self._append = append
        self._log = log
        self._told_ms = 0  # the upper election time-out that the application tells
        self._granter: LeaseGranter | None = None
        self._trips = RoundTrips(0, 0, 0)  # of the same term
        self._next_s = 0.0  # of the next grant, on Trio's clock

    async def run(self) -> None:
        """Look after them until cancelled; returns at once if the application has no use for them."""
        if self._user is not None:
            await self._watch()

    async def _watch(self) -> NoReturn:
        core = self._core
        while True:
            if not core.is_leader:
                await core.wait_leader_change()
                continue
            core.put(self._look)
            with trio.move_on_after(self._pause_s()):
                await core.wait_applied(core.applied_index)

    def _pause_s(self) -> float:
        """Until the next look, if nothing is applied before: the leader's own lease is renewed with each
        heartbeat, and a member is found lost when its time is over."""
        granter, heartbeat_s = self._granter, self._core.raft.heartbeat_s
        wake_ms = None if granter is None or not granter.named else granter.wake_ms()
        if wake_ms is None:
            return heartbeat_s
        left_s = (wake_ms - boot_ms()) / 1000
        return min(left_s, max(heartbeat_s, LOOK_S)) if left_s > 0 else heartbeat_s

    # ------------------------------------------------------------------ the leader's side

    def _leading(self) -> LeaseGranter | None:
        raw = self._core.raw
        if self._user is None or raw.role is not Role.LEADER:
            self._granter = None
        elif self._granter is None or self._granter.term != raw.term:
            raft, now_ms = self._core.raft, boot_ms()
            self._granter, self._next_s = LeaseGranter(self._core.node_id, raw.term, now_ms), 0.0
            longest_ms = raft.timeouts.election_max_ms
            self._trips = RoundTrips(raft.least_election_timeout_ms, longest_ms, now_ms)
        return self._granter

    def _look(self) -> None:
        """The state, or the time, is another one."""
        granter, user, core = self._leading(), self._user, self._core
        if granter is None or user is None or core.applied.term != granter.term:
            return
        now_ms = boot_ms()
        user.tell_leases(granter, now_ms)
        for entry, done in user.findings(granter, self._trips, core.node_id, now_ms):
            if self._append(entry):
                done()
        own = granter.own(self._members, boot_ms())
        if own is not None:
            user.on_own_lease(*own)
        if granter.is_urgent:
            self._next_s = 0.0
            self._send()
            self._peers.flush()

    @property
    def _members(self) -> list[int]:
        return [server.id for server in self._core.raw.servers]

    def on_sending(self, peer: int, seq: int) -> None:
        """A request of the core is about to be sent."""
        if self._granter is not None and not self._granter.is_waiting_for(peer):
            now_ms = boot_ms()
            self._granter.on_sent(peer, seq, now_ms)
            self._trips.on_sent(peer, seq, now_ms)

    def on_sent(self) -> None:
        """Requests of the core are about to be flushed."""
        if self._granter is not None:
            self._send()

    def _send(self) -> None:
        granter, now = self._leading(), trio.current_time()
        if granter is None or now < self._next_s or not granter.named:
            return
        member = granter.named
        grant = granter.grant(self._members, boot_ms())
        if grant is not None:
            self._next_s = now + self._core.raft.heartbeat_s
            entry = LogEntry(0, ValueType.GRANT, encode_grant(grant))
            kind, source = MessageType.LEASE_REQUEST, self._core.node_id
            self._peers.send(
                member, -grant.number, Request(kind, source, member, grant.term, entries=(entry,))
            )

    def on_response(self, seq: int, response: Response) -> None:
        """A request of the core, or a grant (−number), is answered."""
        granter = self._granter
        if granter is None:
            return
        if seq > 0:
            if granter.is_waiting_for(response.source):
                self._trips.on_answered(response.source, seq, boot_ms())
            granter.on_answered(response.source, seq, response.term)
        elif response.accepted and response.term == granter.term:
            granter.on_grant_answered(response.source, -seq, boot_ms())
            if granter.is_urgent:
                self._core.put(self._look)
        else:
            granter.on_grant_unanswered(response.source, -seq)

    def on_unreachable(self, peer: int, seq: int) -> None:
        """A request of the core, or a grant, will not be answered."""
        if self._granter is None:
            return
        if seq > 0:
            self._granter.on_unreachable(peer, seq)
        else:
            self._granter.on_grant_unanswered(peer, -seq)

    # ------------------------------------------------------------------ the member's side

    def follow(self) -> None:
        """The application may have taken more: use the time-outs that it tells."""
        if self._user is None or (told_ms := self._user.election_timeout_ms()) == self._told_ms:
            return
        self._told_ms, raft = told_ms, self._core.raft
        timeouts = raft.timeouts.shortened(told_ms, raft.least_election_timeout_ms)
        self._core.raw.set_election_timeout(timeouts.election_min_ms, timeouts.election_max_ms)
        self._peers.set_answer_timeout(timeouts.rpc_ms / 1000)
        self._log.info("timeouts", **timeouts._asdict())

    def take(self, request: Request) -> Response:
        """Answer a LeaseRequest. Raises `RemoteProtocolError`: its sender broke the protocol."""
        grant, raw = decode_grant(request.entries[0].value, request.term), self._core.raw
        is_taken = self._user is not None and request.term == raw.term and raw.leader == request.source
        if is_taken and self._user is not None:
            self._user.on_grant(grant)
        kind, node_id = MessageType.LEASE_RESPONSE, self._core.node_id
        return Response(kind, node_id, request.source, raw.term, grant.number, is_taken)
