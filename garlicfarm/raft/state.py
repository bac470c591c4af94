"""What a member is in any role: its term, vote and log, and what it wants done.

What may leave when is decided by the barrier (`durability`): `respond`, `request_vote` and
`begin_candidate_term` wait for the disk, `send` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from garlicfarm.digests import Contradicted
from garlicfarm.raft.configuration_tracker import ConfigurationTracker
from garlicfarm.raft.durability import DurabilityBarrier, OwnVote
from garlicfarm.raft.log import RaftLog
from garlicfarm.raft.types import (
    Entry,
    LogPosition,
    OutgoingRequest,
    OutgoingResponse,
    ProposalOutcome,
    RaftConfig,
    ReadOutcome,
    Ready,
    ReceivedChunk,
    SnapshotMeta,
    Storage,
)
from garlicfarm.refusals import Refusal
from garlicfarm.wire.messages import NO_LEADER, LogEntry, MessageType, Request, Response

COMMITTED_PAGE_BYTES = 1 << 20
MAX_TERM = 2**63 - 1  # stores and JRaft hold terms as signed integers
TERM_CEILING = 2**32  # what a message may name at any time, …
TERMS_PER_MS = 2**16  # … and so much more for each ms since 1970: far more than there are elections
MAX_INDEX = 2**62  # of a snapshot: leaves indexes for as many entries behind it
NO_ENTRY = LogPosition(0, 0)


class RaftState:
    """The state that all roles share. Only `garlicfarm.raft.core.RawNode` and the roles change it."""

    def __init__(self, config: RaftConfig, storage: Storage, randint: Callable[[int, int], int]) -> None:
        self.config = config
        self.id = config.id
        self.election_timeout_ms = config.election_timeout_min_ms, config.election_timeout_max_ms
        self.randint = randint
        self.log = RaftLog(storage)
        hard_state, configuration = storage.initial_state()
        self.term, self.vote, self.commit_index = hard_state.term, hard_state.vote, hard_state.commit
        self.applied_index = self._handed_out_index = storage.snapshot().index
        self.membership = ConfigurationTracker(configuration, self.log, self.commit_index)
        self.leader_id = 0  # of the current term, 0: unknown
        self.now_ms = 0
        self.term_ceiling = TERM_CEILING
        self.extensions: dict[int, frozenset[str]] = {}  # in force towards each peer (D5)
        self.last_seq = 0  # of the newest request
        self.is_disk_hanging = False  # nothing becomes durable for now
        self.contradicted: Contradicted = ""
        self.snapshot_until_ms = 0  # until when it takes a snapshot and no entries; 0: it does not want one
        self.snapshot_wait_ms = 0  # how long it waits for each piece of that
        self.durable_vote_term = 0  # the newest term in which our vote for ourselves is durable
        self.durability = DurabilityBarrier(self.log)
        self.requests: list[OutgoingRequest] = []
        self.responses: list[OutgoingResponse] = []
        self.chunks: list[ReceivedChunk] = []
        self.outcomes: list[ProposalOutcome] = []
        self.reads: list[ReadOutcome] = []

    @property
    def is_unfit_to_lead(self) -> bool:
        """Whether this member must not lead: its disk hangs, or most others contradict what it holds."""
        return self.is_disk_hanging or bool(self.contradicted)

    @property
    def wants_snapshot(self) -> bool:
        """Whether this member waits for a snapshot of more than it holds, and takes no entries meanwhile."""
        return self.now_ms < self.snapshot_until_ms

    # ------------------------------------------------------------------ term, vote, commit

    def accepts_term(self, term: int) -> bool:
        """Whether a message may name this term: up to the ceiling, or the next one. So no message uses up the
        terms, of which each election takes one. The ceiling is the same for all members and rises faster than
        terms do: wherever a message has brought some of them, the others can follow, and the next candidate
        too. A bound that counts from each member's own term would let messages part the members for good.
        A server that is no member yet takes the term of the farm that brings it in."""
        if term <= self.term + 1 or self.id not in self.membership:
            return term <= MAX_TERM
        return term <= self.term_ceiling

    def advance_term(self, term: int, vote: int = 0) -> None:
        """Enter a later term, whose leader is unknown."""
        self.term, self.vote, self.leader_id = term, vote, 0
        self.durability.mark_hard_state()

    def vote_for(self, candidate: int) -> None:
        """Give the one vote of this term."""
        if self.vote != candidate:
            self.vote = candidate
            self.durability.mark_hard_state()

    def commit_to(self, index: int) -> bool:
        """Commit all entries up to ``index``. Returns whether another Configuration takes force with that.

        Such a commit index is written at once: the majority of the new Configuration counts from now on, so a
        restart must not bring the one before it back (D7)."""
        self.commit_index = index
        is_changed = self.membership.commit(index)
        if is_changed:
            self.durability.mark_hard_state()
        return is_changed

    def install(self, snapshot: SnapshotMeta) -> None:
        """Replace the log by a whole snapshot from beyond the commit index (Raft §7)."""
        if not self.log.restore(snapshot.index, snapshot.term):
            self.membership.truncate(0)
        self.membership.restore(snapshot.configuration, snapshot.index)
        self.commit_index = self._handed_out_index = snapshot.index
        self.durability.install(snapshot)

    def on_persisted(self, token: int) -> None:
        """All writes up to ``token`` are durable."""
        for message in self.durability.on_persisted(token):
            if isinstance(message, OwnVote):
                self.durable_vote_term = message.term
            elif isinstance(message, OutgoingResponse):
                self.responses.append(message)
            elif message.request.term == self.term:  # else the election, or the leadership, is over
                self.requests.append(message)

    # ------------------------------------------------------------------ messages

    def respond(
        self, token: int, kind: MessageType, destination: int, next_index: int, accepted: bool
    ) -> None:
        """Answer a request once everything done so far is durable."""
        response = Response(kind, self.id, destination, self.term, next_index, accepted)
        message = OutgoingResponse(token, response)
        if self.durability.is_clear:
            self.responses.append(message)
        else:
            self.durability.hold(message)

    def refuse(self, token: int, reason: Refusal | None) -> None:
        """Refuse a ClientRequest with its reason (D8); None: redirect it to the leader. A refusal promises
        nothing, so it does not wait for a disk that hangs. It then names no term: the current one may not be
        durable."""
        kind = MessageType.APPEND_ENTRIES_RESPONSE
        destination = self.leader_id or NO_LEADER if reason is None else self.id
        number = 0 if reason is None else reason.number
        if self.is_disk_hanging:
            response = Response(kind, self.id, destination, 0, number, False)
            self.responses.append(OutgoingResponse(token, response))
        else:
            self.respond(token, kind, destination, number, False)

    def send(
        self,
        peer: int,
        kind: MessageType,
        term: int,
        last: LogPosition = NO_ENTRY,
        commit: int = 0,
        entries: Sequence[LogEntry] = (),
        *,
        is_held: bool = False,
    ) -> int:
        """Send a request at once; ``last`` names an entry of a log. ``is_held``: once everything done so far
        is durable, if the term is still the same. Returns the request's seq."""
        self.last_seq = seq = self.last_seq + 1
        request = Request(kind, self.id, peer, term, last.term, last.index, commit, tuple(entries))
        message = OutgoingRequest(peer, seq, request)
        if is_held and not self.durability.is_clear:
            self.durability.hold(message)
        else:
            self.requests.append(message)
        return seq

    def begin_candidate_term(self) -> None:
        """Enter the next term as a candidate. `durable_vote_term` is that term once our vote is durable."""
        self.advance_term(self.term + 1, self.id)
        self.durability.hold(OwnVote(self.term))

    def request_vote(self, peer: int, commit: int) -> int:
        """Request a vote of this term once our own is durable. Returns the request's seq."""
        kind = MessageType.REQUEST_VOTE_REQUEST
        return self.send(peer, kind, self.term, self.log.last, commit, is_held=True)

    # ------------------------------------------------------------------ what is to be done

    @property
    def has_more_committed(self) -> bool:
        """Whether committed entries can be handed out: durable here, and not below a snapshot that is still
        being installed."""
        return (
            self._handed_out_index < self.commit_index
            and self._handed_out_index < self.log.stable
            and not self.durability.is_restoring
        )

    def take_ready(self, *, committed: bool) -> Ready:
        """Everything to be done now, each thing once."""
        persist = self.durability.take_persist(self.term, self.vote, self.commit_index)
        restore = self.durability.take_restore() if self.durability.is_restoring else None
        page: tuple[Entry, ...] = ()
        if committed and self.has_more_committed:
            start, stop = self._handed_out_index + 1, min(self.commit_index, self.log.stable) + 1
            page = tuple(self.log.entries(start, stop, COMMITTED_PAGE_BYTES))
            self._handed_out_index = page[-1].index
        ready = Ready(
            persist,
            tuple(self.requests),
            tuple(self.responses),
            tuple(self.chunks),
            restore,
            page,
            tuple(self.outcomes),
            tuple(self.reads),
        )
        self.requests, self.responses, self.chunks = [], [], []
        self.outcomes, self.reads = [], []
        return ready
