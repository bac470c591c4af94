"""The state machine of one member: elections and replication. See the package's page first.

Theory of operation
-------------------
Every input (`step`, `answered`, `report_unreachable`, `tick`, `propose`, `persisted`) changes the state
at once and collects what follows from it; `ready` hands the collection out. Three rules keep it safe:

* What is said depends on what is durable. Each answer, and each vote request, is kept back until the
  writes that were open when it was made are reported by `persisted`. The exception is the leader's
  AppendEntries: the entries go out while its own disk writes them (thesis 10.2.1), and its own log
  counts for a commit only up to what is durable.
* Only entries of the current term are committed by counting (Raft §5.4.2); a new leader therefore
  starts with an entry of its own: a Configuration that repeats the newest one in the log (D7).
* A Configuration takes force when it is committed, as in JRaft (D7).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from garlicfarm.errors import LocalProtocolError, ProposalDropped, RemoteProtocolError
from garlicfarm.raft.appended import checked_entries, conflict_hint, new_entries
from garlicfarm.raft.log import RaftLog
from garlicfarm.raft.membership import Membership
from garlicfarm.raft.progress import Progress, ProgressState
from garlicfarm.raft.proposals import Proposals
from garlicfarm.raft.types import (
    Entry,
    HardState,
    PeerStatus,
    Persist,
    RaftConfig,
    Ready,
    Refusal,
    Role,
    Status,
    Storage,
)
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import (
    NO_LEADER,
    Configuration,
    LogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)

__all__ = ["RawNode"]

COMMITTED_PAGE_BYTES = 1 << 20
MAX_TERM = 2**63 - 1  # stores and JRaft hold terms as signed integers


class RawNode:
    """One member of one cluster, driven from outside; it does no I/O and knows no clock.

    ``storage`` is read only; its contents are those of the last run, or a genesis. ``randint(lo, hi)``
    returns a random integer, both ends included. After any call, call `ready` and do what it says;
    call `tick` at `deadline_ms` at the latest. Not to be shared between tasks. Source: Raft §5, §8.
    """

    def __init__(self, config: RaftConfig, storage: Storage, randint: Callable[[int, int], int]) -> None:
        self._config = config
        self._randint = randint
        self.id = config.id
        self._log = RaftLog(storage)
        hard_state, configuration = storage.initial_state()
        self._term = hard_state.term
        self._vote = hard_state.vote
        self._commit = hard_state.commit
        self._applied = self._handed_out = storage.snapshot().index
        self._role = Role.FOLLOWER
        self._leader = 0
        self._now = 0
        self._election_deadline: int | None = None  # None: the next tick draws a new one
        self._votes: set[int] = set()
        self._vote_requests: dict[int, int] = {}  # seq -> peer
        self._progress: dict[int, Progress] = {}
        self._proposals = Proposals(config.max_uncommitted_bytes)
        self._membership = Membership(configuration, self._log, self._commit)
        self._seq = 0
        self._issued = 0  # token of the last Persist handed out
        self._persisted = 0
        self._hard_state_dirty = False
        # Kept back until the token in front is durable, in order.
        self._held: deque[tuple[int, tuple[int, Response] | tuple[int, int, Request] | int]] = deque()
        self._requests: list[tuple[int, int, Request]] = []
        self._responses: list[tuple[int, Response | None]] = []
        self._outcomes: list[tuple[int, tuple[int, int] | None]] = []

    # ------------------------------------------------------------------ time

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has to be called at the latest; None: nothing is waited for."""
        if self._role is Role.LEADER:
            sent = [progress.last_sent_ms for progress in self._progress.values()]
            return min(sent) + self._config.heartbeat_ms if sent else None
        if self.id not in self._membership:
            return None
        return self._now if self._election_deadline is None else self._election_deadline

    def tick(self, now_ms: int) -> None:
        """Tell the time: ``now_ms`` of a monotonic clock, never less than before. Call it after the
        inputs that arrived by then, so that a process that was paused hears its leader first."""
        self._now = now_ms
        if self._role is Role.LEADER:
            for peer, progress in self._progress.items():
                if now_ms - progress.last_sent_ms >= self._config.heartbeat_ms:
                    progress.unreachable = False
                    if not self._send_entries(peer, progress):
                        self._send_append(peer, progress, ())
        elif self._election_deadline is None:
            low, high = self._config.election_timeout_min_ms, self._config.election_timeout_max_ms
            span = (high - low) // self._config.priority
            self._election_deadline = now_ms + self._randint(low, low + span)
        elif now_ms >= self._election_deadline and self.id in self._membership:
            self._campaign()
            self.tick(now_ms)

    # ------------------------------------------------------------------ inputs

    def step(self, request: Request, token: int) -> None:
        """Take a request of a peer or a client. The answer comes as ``(token, response)`` in
        `Ready.responses`; a response of None means: close the connection without an answer, the
        outcome is unknown (D8). ``token`` is any number of the caller's.

        Raises `RemoteProtocolError` where the sender broke the protocol: close its connection.
        """
        if request.term > MAX_TERM:
            raise RemoteProtocolError(f"term {request.term} is beyond what can be stored", request.type.name)
        if request.type is MessageType.APPEND_ENTRIES_REQUEST:
            self._step_append(request, token)
        elif request.type is MessageType.REQUEST_VOTE_REQUEST:
            self._step_vote(request, token)
        elif request.type is MessageType.CLIENT_REQUEST:
            self._step_client(request, token)
        else:
            raise RemoteProtocolError("a request that this server does not serve", request.type.name)

    def answered(self, seq: int, response: Response) -> None:
        """Take the answer to the request ``seq`` of `Ready.requests`."""
        peer = self._vote_requests.pop(seq, None)
        if self._term < response.term <= MAX_TERM:
            self._become_follower(response.term, 0)
        elif peer is not None:
            if self._role is Role.CANDIDATE and response.term == self._term and response.accepted:
                self._count_vote(peer)
        elif self._role is Role.LEADER:
            self._append_answered(seq, response)

    def report_unreachable(self, peer: int, seq: int | None) -> None:
        """The request ``seq`` got no answer (None: ``peer`` cannot be reached at all). What follows
        waits for the next heartbeat."""
        if seq is not None:
            self._vote_requests.pop(seq, None)
        progress = self._progress.get(peer)
        if progress is not None and (seq is None or progress.take(seq) is not None):
            progress.probe(progress.match_index + 1)
            progress.unreachable = True

    def propose(self, entries: Sequence[bytes], token: int) -> None:
        """Append application entries, all or nothing. The outcome comes as ``(token, (index, term))``
        of the last one once it is committed, or ``(token, None)`` where it is unknown.

        Raises `ProposalDropped`: ``not-leader``, or ``too-much-uncommitted`` (certainly not appended);
        `LocalProtocolError`: no entries.
        """
        if not entries:
            raise LocalProtocolError("a proposal has at least one entry")
        if self._role is not Role.LEADER:
            raise ProposalDropped("not-leader")
        if not self._append_own(entries, token, from_client=False):
            raise ProposalDropped("too-much-uncommitted")

    def persisted(self, token: int) -> None:
        """All writes up to ``token`` are durable."""
        self._persisted = token
        self._log.persisted(token)
        while self._held and self._held[0][0] <= token:
            held = self._held.popleft()[1]
            if isinstance(held, int):
                if self._role is Role.CANDIDATE and held == self._term:
                    self._count_vote(self.id)
            elif len(held) == 2:
                self._responses.append(held)
            elif held[2].term == self._term:
                self._requests.append(held)
        if self._role is Role.LEADER:
            self._maybe_commit()

    def applied(self, index: int) -> None:
        """The application has taken all committed entries up to ``index``."""
        self._applied = index

    def ready(self) -> Ready:
        """What to do now; see `Ready`. Each thing is handed out once."""
        if self._role is Role.LEADER:
            for peer, progress in self._progress.items():
                while self._send_entries(peer, progress):
                    pass
                if progress.notified < self._commit and not progress.sent and not progress.unreachable:
                    self._send_append(peer, progress, ())
        persist = None
        if self._hard_state_dirty or self._log.dirty:
            self._issued += 1
            truncate_from, entries = self._log.take(self._issued)
            hard_state = HardState(self._term, self._vote, self._commit)
            persist = Persist(self._issued, hard_state, truncate_from, entries)
            self._hard_state_dirty = False
        committed: tuple[Entry, ...] = ()
        up_to = min(self._commit, self._log.stable)
        if self._handed_out < up_to:
            committed = tuple(self._log.entries(self._handed_out + 1, up_to + 1, COMMITTED_PAGE_BYTES))
            self._handed_out = committed[-1].index
        ready = Ready(
            persist, tuple(self._requests), tuple(self._responses), committed, tuple(self._outcomes)
        )
        self._requests, self._responses, self._outcomes = [], [], []
        return ready

    def advance(self, ready: Ready) -> None:
        """All of ``ready`` was done: for drivers that write and apply before they go on."""
        if ready.persist:
            self.persisted(ready.persist.token)
        if ready.committed:
            self.applied(ready.committed[-1].index)

    @property
    def more_committed(self) -> bool:
        """Whether the next `ready` has committed entries without any further input."""
        return self._handed_out < min(self._commit, self._log.stable)

    @property
    def configuration(self) -> Configuration:
        """The Configuration in force."""
        return self._membership.in_force

    @property
    def leader(self) -> int:
        """The leader of the current term, 0 if none is known."""
        return self._leader

    @property
    def role(self) -> Role:
        """What this member is now."""
        return self._role

    @property
    def term(self) -> int:
        """The current term."""
        return self._term

    def status(self) -> Status:
        """A picture of the state, for people and metrics."""
        first = self._log.first_index
        peers = {
            peer: PeerStatus(
                p.match_index,
                p.next_index,
                p.state.value if p.next_index >= first else "snapshot",
                len(p.sent),
            )
            for peer, p in self._progress.items()
        }
        log, role, term = self._log, self._role, self._term
        heard = (self._vote, self._leader)
        indexes = (self._commit, self._applied, log.stable, log.first_index, log.last_index)
        return Status(self.id, role, term, *heard, *indexes, self._membership.in_force, peers)

    # ------------------------------------------------------------------ what depends on durability

    def _barrier(self) -> int:
        """The write that has to be durable before anything said now may leave."""
        return self._issued + (1 if self._hard_state_dirty or self._log.dirty else 0)

    def _respond(
        self, token: int, kind: MessageType, destination: int, next_index: int, accepted: bool
    ) -> None:
        response = Response(kind, self.id, destination, self._term, next_index, accepted)
        barrier = self._barrier()
        if barrier <= self._persisted:
            self._responses.append((token, response))
        else:
            self._held.append((barrier, (token, response)))

    # ------------------------------------------------------------------ roles and elections (Raft §5.2)

    def _become_follower(self, term: int, leader: int) -> None:
        if term > self._term:
            self._term = term
            self._vote = 0
            self._hard_state_dirty = True
            self._leader = 0
        if self._role is Role.LEADER:
            self._drop_proposals()
            self._progress.clear()
        if self._role is not Role.FOLLOWER or leader:
            self._election_deadline = None
        self._role = Role.FOLLOWER
        if leader:
            self._leader = leader

    def _drop_proposals(self) -> None:
        for proposal in self._proposals.drop():
            if proposal.from_client:
                self._responses.append((proposal.token, None))
            else:
                self._outcomes.append((proposal.token, None))

    def _campaign(self) -> None:
        self._role = Role.CANDIDATE
        self._term += 1
        self._vote = self.id
        self._leader = 0
        self._hard_state_dirty = True
        self._votes.clear()
        self._vote_requests.clear()
        self._election_deadline = None
        barrier = self._barrier()
        self._held.append((barrier, self._term))  # our own vote counts once it is durable
        for server in self._membership.in_force.servers:
            if server.id != self.id:
                self._seq += 1
                self._vote_requests[self._seq] = server.id
                kind, last = MessageType.REQUEST_VOTE_REQUEST, (self._log.last_term, self._log.last_index)
                request = Request(kind, self.id, server.id, self._term, *last)
                self._held.append((barrier, (server.id, self._seq, request)))

    def _step_vote(self, request: Request, token: int) -> None:
        if request.term > self._term:
            self._become_follower(request.term, 0)
        up_to_date = (request.last_log_term, request.last_log_index) >= (
            self._log.last_term,
            self._log.last_index,
        )
        granted = request.term == self._term and self._vote in (0, request.source) and up_to_date
        if granted:
            if not self._vote:
                self._vote = request.source
                self._hard_state_dirty = True
            self._election_deadline = None
        self._respond(token, MessageType.REQUEST_VOTE_RESPONSE, request.source, 0, granted)

    def _count_vote(self, peer: int) -> None:
        self._votes.add(peer)
        if sum(voter in self._membership for voter in self._votes) >= self._membership.quorum:
            self._become_leader()

    def _become_leader(self) -> None:
        self._role = Role.LEADER
        self._leader = self.id
        self._vote_requests.clear()
        self._update_progress()
        newest = self._membership.newest
        repeat = Configuration(self._log.last_index + 1, newest.log_index, newest.servers)
        entry = Entry(repeat.log_index, self._term, ValueType.CONFIGURATION, encode_configuration(repeat))
        self._log.append((entry,))
        self._membership.append(repeat.log_index, repeat)

    def _update_progress(self) -> None:
        """Follow exactly the other members of the Configuration in force."""
        members = {server.id for server in self._membership.in_force.servers} - {self.id}
        for peer in self._progress.keys() - members:
            del self._progress[peer]
        for peer in sorted(members - self._progress.keys()):
            self._progress[peer] = Progress(self._log.last_index + 1, self._now)

    # ------------------------------------------------------------------ the leader (Raft §5.3)

    def _step_client(self, request: Request, token: int) -> None:
        kind = MessageType.APPEND_ENTRIES_RESPONSE
        if self._role is not Role.LEADER:
            self._respond(token, kind, self._leader or NO_LEADER, 0, False)
        elif not request.entries:
            self._respond(token, kind, self.id, self._log.last_index + 1, True)
        elif not self._append_own([entry.value for entry in request.entries], token, from_client=True):
            self._respond(token, kind, self.id, Refusal.UNCOMMITTED, False)

    def _append_own(self, values: Sequence[bytes], token: int, from_client: bool) -> bool:
        index = self._log.last_index + 1
        if not self._proposals.admit(values, index + len(values) - 1, token, from_client):
            return False
        self._log.append(
            [Entry(i, self._term, ValueType.APPLICATION, value) for i, value in enumerate(values, index)]
        )
        return True

    def _send_entries(self, peer: int, progress: Progress) -> bool:
        """Send the next entries that the window allows; False if there was nothing to send."""
        if not self._log.first_index <= progress.next_index <= self._log.last_index or progress.paused(
            self._config.max_inflight_messages, self._config.max_inflight_bytes
        ):
            return False
        entries = self._log.entries(progress.next_index, self._log.last_index + 1, self._config.batch_bytes)
        self._send_append(peer, progress, entries)
        return True

    def _send_append(self, peer: int, progress: Progress, entries: Sequence[Entry]) -> None:
        self._seq += 1
        # A peer that needs entries which are gone is asked, at heartbeats, whether it has them after all.
        previous = max(progress.next_index, self._log.first_index) - 1
        request = Request(
            MessageType.APPEND_ENTRIES_REQUEST,
            self.id,
            peer,
            self._term,
            self._log.term(previous),
            previous,
            self._commit,
            tuple([LogEntry(e.term, e.value_type, e.value) for e in entries]),
        )
        last = previous + len(entries)
        progress.record(self._seq, previous, last, sum(len(e.value) for e in entries))
        if progress.state is ProgressState.REPLICATE:
            progress.next_index = last + 1
        progress.notified = self._commit
        progress.last_sent_ms = self._now
        self._requests.append((peer, self._seq, request))

    def _append_answered(self, seq: int, response: Response) -> None:
        for progress in self._progress.values():
            sent = progress.take(seq)
            if sent is not None:
                break
        else:
            return
        previous, last = sent
        progress.unreachable = False
        if not response.accepted or response.term != self._term:
            # The logs do not meet at `previous`; the hint may jump back any distance.
            progress.probe(min(previous, max(response.next_index, 1)))
        elif last > progress.match_index or progress.state is ProgressState.PROBE:
            progress.match_index = max(progress.match_index, last)
            progress.next_index = max(progress.next_index, last + 1)
            progress.state = ProgressState.REPLICATE
            self._maybe_commit()

    def _maybe_commit(self) -> None:
        """Commit what a majority holds durably, if it is of the current term (Raft §5.4.2)."""
        matches = sorted(
            self._log.stable if s.id == self.id else self._progress[s.id].match_index
            for s in self._membership.in_force.servers
        )
        index = matches[len(matches) - self._membership.quorum]
        if index > self._commit and self._log.term(index) == self._term:
            self._commit_to(index)
            for proposal in self._proposals.committed(index):
                last = proposal.last_index
                if proposal.from_client:  # durable at a majority: this waits for none of our own writes
                    kind = MessageType.APPEND_ENTRIES_RESPONSE
                    answer = Response(kind, self.id, self.id, self._term, last + 1, True)
                    self._responses.append((proposal.token, answer))
                else:
                    self._outcomes.append((proposal.token, (last, self._term)))

    def _commit_to(self, index: int) -> None:
        self._commit = index
        if self._membership.commit(index) and self._role is Role.LEADER:
            self._update_progress()

    # ------------------------------------------------------------------ the follower (Raft §5.3)

    def _step_append(self, request: Request, token: int) -> None:
        kind = MessageType.APPEND_ENTRIES_RESPONSE
        if request.term < self._term:
            self._respond(token, kind, self._leader or NO_LEADER, self._log.last_index + 1, False)
            return
        if request.term == self._term and (
            self._role is Role.LEADER or self._leader not in (0, request.source)
        ):
            raise RemoteProtocolError(
                "a second leader in one term", f"AppendEntriesRequest, term {self._term}"
            )
        entries, configurations = checked_entries(request)
        self._become_follower(request.term, request.source)
        previous, last = request.last_log_index, request.last_log_index + len(entries)
        if previous > self._log.last_index:
            self._respond(token, kind, request.source, self._log.last_index + 1, False)
            return
        # What lies at or below our commit index is the same on every leader's log.
        if previous > self._commit and self._log.term(previous) != request.last_log_term:
            self._respond(token, kind, request.source, conflict_hint(self._log, self._commit, request), False)
            return
        new = new_entries(self._log, self._commit, entries)
        if new:
            start = new[0].index
            if start <= self._log.last_index:
                self._log.truncate(start)
                self._membership.truncate(start)
            self._log.append(new)
            for index, configuration in configurations:
                if index >= start:
                    self._membership.append(index, configuration)
        if min(request.commit_index, last) > self._commit:
            self._commit_to(min(request.commit_index, last))
        self._respond(token, kind, request.source, last + 1, True)
