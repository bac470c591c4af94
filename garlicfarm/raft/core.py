"""The state machine of one member: who leads, and what becomes of each input. See the package's page.

Every input (`step`, `step_response`, `tick`, `propose`, …) changes the state at once and collects what
follows from it; `ready` hands the collection out. What all roles share is in `state`, with the rule of
what may be said when; what a role does is in `candidate`, `leader` and `follower`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from garlicfarm.errors import LocalProtocolError, ProposalDropped, RemoteProtocolError
from garlicfarm.raft.append_checks import checked_entries
from garlicfarm.raft.candidate import TRANSFER_CAMPAIGN, Candidate
from garlicfarm.raft.follower import Follower
from garlicfarm.raft.leader import Leader
from garlicfarm.raft.read_index import ReadIndexForwarder, refuse
from garlicfarm.raft.state import MAX_INDEX, MAX_TERM, RaftState
from garlicfarm.raft.types import (
    ConfChange,
    RaftConfig,
    Ready,
    Role,
    SnapshotMeta,
    Status,
    Storage,
)
from garlicfarm.wire import decode_log_pack, decode_snapshot_sync_request
from garlicfarm.wire.messages import (
    NO_LEADER,
    ClusterServer,
    Configuration,
    MessageType,
    Request,
    Response,
)

__all__ = ["RawNode"]


class RawNode:
    """One member of one cluster, driven from outside; it does no I/O and knows no clock.

    ``storage`` is read only; its contents are those of the last run, or a genesis. ``randint(lo, hi)``
    returns a random integer, both ends included. After any call, call `ready` and do what it says;
    call `tick` at `deadline_ms` at the latest. Not to be shared between tasks. Source: Raft §5 to §8.
    """

    def __init__(self, config: RaftConfig, storage: Storage, randint: Callable[[int, int], int]) -> None:
        self._config = config
        self.id = config.id
        self._state = RaftState(config, storage, randint)
        self._follower = Follower(self._state)
        self._forwarder = ReadIndexForwarder(self._state)
        self._candidate: Candidate | None = None
        self._leader: Leader | None = None
        self._election_deadline: int | None = None  # None: the next tick draws a new one
        self._lease_until: int | None = None  # until when the leader counts as alive
        self._is_retry = False  # a timeout has passed in vain since a leader was there
        self._leave_term = 0  # the term whose leader told it to leave, 0: none did

    # ------------------------------------------------------------------ time

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has to be called at the latest; None: nothing is waited for."""
        if self._leader is not None:
            return self._leader.deadline_ms
        if self._election_deadline is None:
            return self._state.now_ms
        if self._lease_until is not None:
            return self._lease_until
        waits = self._state.leader_id or self.id in self._state.membership
        return self._election_deadline if waits else None

    def tick(self, now_ms: int) -> None:
        """Tell the time: ``now_ms`` of a monotonic clock, never less than before. Call it after the
        inputs that arrived by then, so that a process that was paused hears its leader first."""
        state = self._state
        state.now_ms = now_ms
        if self._leader is not None:
            self._leader.tick()
            self._update_role()
        elif self._election_deadline is None:
            self._reset_election_timeout()
        else:
            if self._lease_until is not None and now_ms >= self._lease_until:
                self._lease_until = None
            if now_ms >= self._election_deadline:
                state.leader_id = 0
                self._is_retry = True
                self._reset_election_timeout()
                if self._can_campaign:
                    self._candidate = Candidate(state)
                    self._update_role()

    @property
    def _can_campaign(self) -> bool:
        """Whether it may stand for election: a member that leads by a Configuration which it has not
        applied could lose another one (D7); one that is leaving would depose a leader that has removed it;
        one whose disk hangs would raise its term again and again, and could never ask for a vote."""
        state = self._state
        applied = state.membership.in_force.log_index <= state.applied_index
        able = applied and self.id in state.membership and not self.is_leaving
        return able and state.term < MAX_TERM and not state.is_disk_hanging

    def _reset_election_timeout(self) -> None:
        low, high = self._config.election_timeout_min_ms, self._config.election_timeout_max_ms
        # Priority is for the first attempt: with narrow ranges two could get in each other's way for ever.
        now, span = self._state.now_ms, (high - low) // (1 if self._is_retry else self._config.priority)
        self._election_deadline = now + self._state.randint(low, low + span)
        self._lease_until = now + low if self._state.leader_id else None

    # ------------------------------------------------------------------ inputs

    def step(self, request: Request, token: int) -> None:
        """Take a request of a peer or a client. The answer comes as ``(token, response)`` in
        `Ready.responses`; a response of None means: close the connection without an answer, the
        outcome is unknown (D8). ``token`` is any number of the caller's.

        Raises `RemoteProtocolError` where the sender broke the protocol: close its connection.
        """
        if request.term > MAX_TERM:
            raise RemoteProtocolError(f"term {request.term} is beyond what can be stored", request.type.name)
        serve = _HANDLERS.get(request.type)
        if serve is None:
            raise RemoteProtocolError("a request that this server does not serve", request.type.name)
        serve(self, request, token)

    def step_response(self, seq: int, response: Response) -> None:
        """Take the answer to the request ``seq`` of `Ready.requests`."""
        stranger = self._leader is not None and self._leader.enrols(seq)
        if self._state.term < response.term <= MAX_TERM and not stranger:
            self._become_follower(response.term, 0)
        elif self._forwarder.step_response(seq, response):
            pass
        elif self._candidate is not None:
            self._candidate.step_response(seq, response)
        elif self._leader is not None:
            self._leader.answered(seq, response)
        self._update_role()

    def report_unreachable(self, peer: int, seq: int | None) -> None:
        """The request ``seq`` got no answer (None: ``peer`` cannot be reached at all). What follows
        waits for the next heartbeat."""
        self._forwarder.report_unreachable(peer, seq)
        if self._candidate is not None and seq is not None:
            self._candidate.report_unreachable(seq)
        if self._leader is not None:
            self._leader.unreachable(peer, seq)

    def set_extensions(self, peer: int, names: frozenset[str]) -> None:
        """A connection to ``peer`` is open, on which these extensions are in force (D5): "pre-vote",
        "timeout-now" and "read-index" are the core's. None is, for a peer never named here."""
        self._state.extensions[peer] = names
        if self._leader is not None:
            self._leader.connected(peer)

    def propose(self, entries: Sequence[bytes], token: int) -> None:
        """Append application entries, all or nothing. The outcome comes as ``(token, (index, term))``
        of the last one in `Ready.outcomes`; None instead: it is unknown.

        Raises `ProposalDropped`: certainly not appended, since this is not the leader, it hands over, or
        too much is uncommitted; `LocalProtocolError`: no entries.
        """
        if not entries:
            raise LocalProtocolError("a proposal has at least one entry")
        self._require_leader().propose(entries, token)

    def propose_conf_change(self, change: ConfChange, token: int) -> None:
        """Change the Configuration by one server; one that is added first catches up. The outcome comes
        in `Ready.outcomes`. Whether an id was ever used is the caller's to know (D12).

        Raises `ProposalDropped`: certainly not done, since this is not the leader, it hands over, another
        change is under way, nothing of this term is committed yet, the server is (or is no) member, its
        endpoint is another's, or fewer than a majority of those that are left were heard of late.
        Source: thesis 4.1 to 4.3, D7.
        """
        self._require_leader().propose_conf_change(change, token)

    def transfer_leadership(self, to: int) -> None:
        """Hand over to the member ``to``, 0: to the one best placed. Nothing is appended until that is
        done, or the upper election timeout has passed. A peer that cannot be told to stand (D5) is waited
        for: this member steps down when that peer holds all, and does not stand for a while.

        Raises `ProposalDropped`: not the leader, handing over already, or no such other member.
        Source: thesis 3.10.
        """
        self._require_leader().transfer(to)

    def read_index(self, token: int) -> None:
        """Ask for an index: what is read once that is applied is linearizable. It comes in `Ready.reads`
        when a majority has confirmed that this member led, or the leader that it asked, as a follower does.

        Raises `ProposalDropped`: not the leader, and there is none to ask (D5). Source: Raft §8, thesis 6.4.
        """
        if self._leader is not None:
            self._leader.read_index(token)
        else:
            self._forwarder.add(token)

    def report_chunk_stored(self, token: int, held: int, snapshot: SnapshotMeta | None) -> None:
        """A piece of `Ready.chunks` is stored, or could not be: ``held`` bytes of its snapshot are there
        now, 0 where what came was not sound. ``snapshot``: it is whole, checked and durable."""
        if self._leader is None:
            self._follower.stored(token, held, snapshot)
        else:
            self._follower.stored(token, held, None)

    def report_persisted(self, token: int) -> None:
        """All writes up to ``token`` are durable."""
        self._state.on_persisted(token)
        if self._leader is not None:
            self._leader.maybe_commit()
        elif self._candidate is not None:
            self._candidate.on_persisted()
        self._update_role()

    def report_disk_hang(self, is_hanging: bool) -> None:
        """Whether what `Ready.persist` asked for has not become durable for too long. Until it does, this
        member does not stand for election, nor promise a vote, nor append anything of its own; one that
        leads hands over, and after another upper election timeout leads no more in any case."""
        self._state.is_disk_hanging = is_hanging
        if is_hanging and self._candidate is not None:
            self._become_follower(self._state.term, 0)

    def report_applied(self, index: int) -> None:
        """The application has taken all committed entries up to ``index``."""
        self._state.applied_index = index

    # ------------------------------------------------------------------ what to do

    def ready(self, *, catch_up: bool = True, committed: bool = True) -> Ready:
        """What to do now; see `Ready`. Each thing is handed out once. ``catch_up``: send to followers
        that are far behind too; what is left for them is `has_more_catch_up`. ``committed``: hand out
        committed entries too; without, they stay `has_more_committed`."""
        if self._leader is not None:
            self._leader.flush(catch_up)
            self._update_role()
        self._forwarder.expire()
        return self._state.ready(committed=committed)

    @property
    def has_more_committed(self) -> bool:
        """Whether the next `ready` has committed entries without any further input."""
        return self._state.has_more_committed

    @property
    def has_more_catch_up(self) -> bool:
        """Whether the next `ready` with time to spare has entries, or a snapshot, for followers that are far
        behind, without any further input."""
        return self._leader is not None and self._leader.more

    @property
    def configuration(self) -> Configuration:
        """The Configuration in force."""
        return self._state.membership.in_force

    @property
    def servers(self) -> tuple[ClusterServer, ...]:
        """Whom requests may go to: the members, and on a leader those about to be."""
        return self._leader.servers if self._leader is not None else self.configuration.servers

    @property
    def leader(self) -> int:
        """The leader of the current term, 0 if none is known."""
        return self._state.leader_id

    @property
    def role(self) -> Role:
        """What this member is now; who only asks whether it would be elected is a candidate too."""
        if self._leader is not None:
            return Role.LEADER
        return Role.FOLLOWER if self._candidate is None else Role.CANDIDATE

    @property
    def is_leaving(self) -> bool:
        """Whether its leader told it to leave (LeaveCluster), since the start, and none of a later term has
        sent it an append: so long it does not stand for election."""
        return self._leave_term > 0

    @property
    def term(self) -> int:
        """The current term."""
        return self._state.term

    def status(self) -> Status:
        """A picture of the state, for people and metrics."""
        state, log = self._state, self._state.log
        heard = (state.vote, state.leader_id)
        indexes = (state.commit_index, state.applied_index, log.stable, log.first_index, log.last_index)
        peers = self._leader.peers() if self._leader is not None else {}
        return Status(self.id, self.role, state.term, *heard, *indexes, self.configuration, peers)

    # ------------------------------------------------------------------ roles (Raft §5.2)

    def _require_leader(self) -> Leader:
        if self._leader is None:
            raise ProposalDropped("not-leader")
        return self._leader

    def _update_role(self) -> None:
        """Carry on where an election or a leadership has come to its end."""
        if self._candidate is not None and self._candidate.is_pre_vote and self._candidate.has_won:
            self._candidate.campaign()
        if self._candidate is not None and self._candidate.has_won:
            self._candidate = None
            self._leader = Leader(self._state)
            self._is_retry = False
        if self._candidate is not None and self._candidate.has_lost:
            self._candidate = None  # the next attempt begins when it would have begun
        if self._leader is not None and self._leader.over:
            resting = self._leader.resting
            self._become_follower(self._state.term, 0)
            if resting:
                self._reset_election_timeout()
                assert self._election_deadline is not None
                self._election_deadline += 2 * self._config.election_timeout_max_ms

    def _become_follower(self, term: int, leader: int) -> None:
        state = self._state
        if term > state.term:
            state.advance_term(term)
        if self._leader is not None:
            self._leader.end(leader)
            state.leader_id = 0
        if self._leader is not None or self._candidate is not None or leader:
            self._election_deadline = None
        self._leader = self._candidate = None
        if leader:
            state.leader_id = leader
            self._is_retry = False

    @property
    def _has_live_leader(self) -> bool:
        """Whether a leader is alive, as far as this member can tell (thesis 4.2.3): itself, which a majority
        answers, or one that was heard within the lower election timeout."""
        if self._leader is not None:
            return True
        return bool(self._state.leader_id) and (
            self._lease_until is not None or self._election_deadline is None
        )

    # ------------------------------------------------------------------ requests

    def _step_vote(self, request: Request, token: int) -> None:
        kind, state = MessageType.REQUEST_VOTE_RESPONSE, self._state
        if request.term > state.term:
            if self._has_live_leader and request.commit_index != TRANSFER_CAMPAIGN:
                state.respond(token, kind, request.source, 0, False)
                return
            self._become_follower(request.term, 0)
        free = not state.vote and not state.leader_id
        granted = (
            0 < request.term == state.term
            and (free or state.vote == request.source)
            and self._is_up_to_date(request)
        )
        if granted:
            state.vote_for(request.source)
            self._election_deadline = None
        state.respond(token, kind, request.source, 0, granted)

    def _step_pre_vote(self, request: Request, token: int) -> None:
        state = self._state
        granted = request.term > state.term and not self._has_live_leader and self._is_up_to_date(request)
        granted = granted and not state.is_disk_hanging  # it could not give its vote
        state.respond(token, MessageType.PRE_VOTE_RESPONSE, request.source, 0, granted)

    def _is_up_to_date(self, request: Request) -> bool:
        log = self._state.log
        return (request.last_log_term, request.last_log_index) >= (log.last_term, log.last_index)

    def _step_timeout_now(self, request: Request, token: int) -> None:
        state = self._state
        obey = (request.term, request.source) == (state.term, state.leader_id) and self._can_campaign
        state.respond(token, MessageType.TIMEOUT_NOW_RESPONSE, request.source, 0, obey)
        if obey:
            state.leader_id = 0
            self._reset_election_timeout()
            self._candidate = Candidate(state, is_transfer=True)

    def _step_append(self, request: Request, token: int) -> None:
        checked = checked_entries(request)
        if self._accept_leader(request, token, MessageType.APPEND_ENTRIES_RESPONSE):
            if request.term > self._leave_term:
                self._leave_term = 0
            self._follower.append(request, *checked, token)

    def _step_snapshot(self, request: Request, token: int) -> None:
        piece = decode_snapshot_sync_request(_only_value(request))
        possible = 0 < piece.last_log_term <= request.term and piece.last_log_index <= MAX_INDEX
        if not possible or not piece.configuration.servers:
            raise RemoteProtocolError("a snapshot that no leader of this term has", request.type.name)
        if self._accept_leader(request, token, MessageType.INSTALL_SNAPSHOT_RESPONSE):
            self._follower.install(request.source, piece, token)

    def _step_join(self, request: Request, token: int) -> None:
        """Who is a member is not invited; nor is a term lowered (JRaft's is). What is not committed is not
        named as held: it may be of a leader whose entries were given up."""
        state, kind = self._state, MessageType.JOIN_CLUSTER_RESPONSE
        if self.id in state.membership:
            state.respond(token, kind, request.source, state.log.last_index + 1, False)
        elif self._accept_leader(request, token, kind):
            state.respond(token, kind, request.source, state.commit_index + 1, True)

    def _step_sync(self, request: Request, token: int) -> None:
        kind, config = MessageType.SYNC_LOG_RESPONSE, self._config
        pack = decode_log_pack(_only_value(request), config.max_message_bytes, config.max_entry_bytes)
        # Where the pack begins its sender does not say the term: these entries are committed.
        packed = msgspec.structs.replace(request, entries=pack.entries, last_log_term=0)
        checked = checked_entries(packed)
        if self.id in self._state.membership:
            raise RemoteProtocolError("a member is not brought in", request.type.name)
        if self._accept_leader(request, token, kind):
            self._follower.sync(request, *checked, token)

    def _step_leave(self, request: Request, token: int) -> None:
        kind = MessageType.LEAVE_CLUSTER_RESPONSE
        if self._accept_leader(request, token, kind):
            self._leave_term = request.term
            self._state.respond(token, kind, request.source, self._state.log.last_index + 1, True)

    def _accept_leader(self, request: Request, token: int, kind: MessageType) -> bool:
        """Whether this is a request of the current leader, which is followed from now on."""
        state = self._state
        if request.term < state.term:
            appended = kind is MessageType.APPEND_ENTRIES_RESPONSE
            known = state.leader_id or NO_LEADER if appended else request.source
            snapshot = kind is MessageType.INSTALL_SNAPSHOT_RESPONSE
            state.respond(token, kind, known, 0 if snapshot else state.log.last_index + 1, False)
            return False
        if request.term == state.term and (
            self._leader is not None or state.leader_id not in (0, request.source)
        ):
            raise RemoteProtocolError(
                "a second leader in one term", f"{request.type.name}, term {state.term}"
            )
        self._become_follower(request.term, request.source)
        return True

    def _step_client(self, request: Request, token: int) -> None:
        if self._leader is not None:
            self._leader.client_request(request, token)
        else:
            self._state.refuse(token, self._state.leader_id or NO_LEADER, 0)

    def _step_read_index(self, request: Request, token: int) -> None:
        """A follower's read, confirmed as one of the leader's own."""
        if self._leader is not None:
            self._leader.read_index(token, forwarded=True)
        else:
            refuse(self._state, token, self._state.leader_id)


def _only_value(request: Request) -> bytes:
    if len(request.entries) != 1:
        raise RemoteProtocolError("this carries exactly one entry", request.type.name)
    return request.entries[0].value


_HANDLERS: dict[MessageType, Callable[[RawNode, Request, int], None]] = {
    MessageType.APPEND_ENTRIES_REQUEST: RawNode._step_append,
    MessageType.INSTALL_SNAPSHOT_REQUEST: RawNode._step_snapshot,
    MessageType.JOIN_CLUSTER_REQUEST: RawNode._step_join,
    MessageType.SYNC_LOG_REQUEST: RawNode._step_sync,
    MessageType.LEAVE_CLUSTER_REQUEST: RawNode._step_leave,
    MessageType.REQUEST_VOTE_REQUEST: RawNode._step_vote,
    MessageType.PRE_VOTE_REQUEST: RawNode._step_pre_vote,
    MessageType.TIMEOUT_NOW_REQUEST: RawNode._step_timeout_now,
    MessageType.CLIENT_REQUEST: RawNode._step_client,
    MessageType.READ_INDEX_REQUEST: RawNode._step_read_index,
}
