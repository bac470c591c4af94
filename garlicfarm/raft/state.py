"""What a member is in any role: its log, its word, and what it wants done.

Theory of operation
-------------------
What is said depends on what is durable. Each answer, and each request for a vote, is kept back until the
writes that were open when it was made are reported by `report_persisted`. The exception is the leader's
AppendEntries: entries go out while its own disk writes them (thesis 10.2.1), and its own log counts for
a commit only up to what is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from garlicfarm.raft.log import RaftLog
from garlicfarm.raft.membership import Membership
from garlicfarm.raft.types import Entry, HardState, Persist, RaftConfig, Ready, SnapshotMeta, Storage
from garlicfarm.wire.messages import LogEntry, MessageType, Request, Response, SnapshotSyncRequest

__all__ = ["MAX_INDEX", "MAX_TERM", "RaftState"]

COMMITTED_PAGE_BYTES = 1 << 20
MAX_TERM = 2**63 - 1  # stores and JRaft hold terms as signed integers
MAX_INDEX = 2**62  # of a snapshot: there is room for as many entries behind it


class RaftState:
    """The state that all roles share, changed by `garlicfarm.raft.core.RawNode` and the roles only."""

    def __init__(self, config: RaftConfig, storage: Storage, randint: Callable[[int, int], int]) -> None:
        self.config = config
        self.id = config.id
        self.randint = randint
        self.log = RaftLog(storage)
        hard_state, configuration = storage.initial_state()
        self.term, self.vote, self.commit_index = hard_state.term, hard_state.vote, hard_state.commit
        self.applied_index = self._handed_out = storage.snapshot().index
        self.membership = Membership(configuration, self.log, self.commit_index)
        self.leader_id = 0
        self.now_ms = 0
        self.extensions: dict[int, frozenset[str]] = {}  # in force towards each peer (D5)
        self.seq = 0
        self.is_disk_hanging = False  # nothing becomes durable for now
        self.durable_vote_term = 0  # the newest term in which our vote for ourselves is durable
        self._issued = 0  # token of the last Persist handed out
        self._persisted = 0
        self._hard_state_dirty = False
        self._installing: SnapshotMeta | None = None  # to be in the next Persist
        self._restore: tuple[int, SnapshotMeta] | None = None  # once that token is durable
        # Kept back until the token in front is durable, in order; an int is a term we voted for us in.
        self._held: deque[tuple[int, tuple[int, Response] | tuple[int, int, Request] | int]] = deque()
        self.requests: list[tuple[int, int, Request]] = []
        self.responses: list[tuple[int, Response | None]] = []
        self.chunks: list[tuple[int, SnapshotSyncRequest]] = []
        self.outcomes: list[tuple[int, tuple[int, int] | str | None]] = []
        self.reads: list[tuple[int, int | None]] = []

    # ------------------------------------------------------------------ what must be durable

    def advance_term(self, term: int, vote: int = 0) -> None:
        """A later term begins: nobody is known to lead it."""
        self.term, self.vote, self.leader_id = term, vote, 0
        self._hard_state_dirty = True

    def vote_for(self, candidate: int) -> None:
        """The one vote of this term."""
        if self.vote != candidate:
            self.vote = candidate
            self._hard_state_dirty = True

    def commit_to(self, index: int) -> bool:
        """All entries up to ``index`` are committed; whether another Configuration is in force now. That it
        is becomes durable: who is removed by it, and gone, gives no vote by the one before (D7)."""
        self.commit_index = index
        changed = self.membership.commit(index)
        self._hard_state_dirty |= changed
        return changed

    def install(self, snapshot: SnapshotMeta) -> None:
        """A snapshot beyond the commit index, received whole, takes the place of the log (Raft §7)."""
        if not self.log.restore(snapshot.index, snapshot.term):
            self.membership.truncate(0)
        self.membership.restore(snapshot.configuration, snapshot.index)
        self.commit_index = self._handed_out = snapshot.index
        self._installing = snapshot
        self._hard_state_dirty = True

    def barrier(self) -> int:
        """The write that has to be durable before anything said now may leave."""
        return self._issued + (1 if self._hard_state_dirty or self.log.has_unwritten else 0)

    def on_persisted(self, token: int) -> None:
        """All writes up to ``token`` are durable."""
        self._persisted = token
        self.log.on_persisted(token)
        while self._held and self._held[0][0] <= token:
            held = self._held.popleft()[1]
            if isinstance(held, int):
                self.durable_vote_term = held
            elif len(held) == 2:
                self.responses.append(held)
            elif held[2].term == self.term:
                self.requests.append(held)

    # ------------------------------------------------------------------ what is said

    def respond(
        self, token: int, kind: MessageType, destination: int, next_index: int, accepted: bool
    ) -> None:
        """Answer a request once all that was done so far is durable."""
        response = Response(kind, self.id, destination, self.term, next_index, accepted)
        barrier = self.barrier()
        if barrier <= self._persisted:
            self.responses.append((token, response))
        else:
            self._held.append((barrier, (token, response)))

    def refuse(self, token: int, leader: int, reason: int) -> None:
        """Refuse a ClientRequest, or send it on to ``leader``. While the disk hangs that waits for nothing,
        since it promises nothing; it then names no term: the current one may not be durable."""
        kind = MessageType.APPEND_ENTRIES_RESPONSE
        if self.is_disk_hanging:
            self.responses.append((token, Response(kind, self.id, leader, 0, reason, False)))
        else:
            self.respond(token, kind, leader, reason, False)

    def send(
        self,
        peer: int,
        kind: MessageType,
        term: int,
        last: tuple[int, int] = (0, 0),
        commit: int = 0,
        entries: Sequence[LogEntry] = (),
    ) -> int:
        """Ask a peer at once; ``last`` is (term, index) of a log's entry. Returns the request's seq."""
        self.seq += 1
        message = Request(kind, self.id, peer, term, *last, commit, tuple(entries))
        self.requests.append((peer, self.seq, message))
        return self.seq

    def request_vote(self, peer: int, commit: int) -> int:
        """Ask for a vote of this term, once ours is durable."""
        self.seq += 1
        kind, last = MessageType.REQUEST_VOTE_REQUEST, (self.log.last_term, self.log.last_index)
        message = Request(kind, self.id, peer, self.term, *last, commit)
        self._held.append((self.barrier(), (peer, self.seq, message)))
        return self.seq

    def begin_candidate_term(self) -> None:
        """Stand in the next term; `durable_vote_term` is that term once it is durable."""
        self.advance_term(self.term + 1, self.id)
        self._held.append((self.barrier(), self.term))

    # ------------------------------------------------------------------ what is wanted done

    @property
    def has_more_committed(self) -> bool:
        """Whether committed entries can be handed out."""
        return self._restore is None and self._handed_out < min(self.commit_index, self.log.stable)

    def ready(self, *, committed: bool) -> Ready:
        """All that is wanted, each thing once."""
        persist = None
        if self._hard_state_dirty or self.log.has_unwritten:
            self._issued += 1
            truncate_from, entries = self.log.take_unwritten(self._issued)
            hard_state = HardState(self.term, self.vote, self.commit_index)
            persist = Persist(self._issued, hard_state, truncate_from, entries, self._installing)
            if self._installing is not None:
                self._restore, self._installing = (self._issued, self._installing), None
            self._hard_state_dirty = False
        restore = None
        if self._restore is not None and self._restore[0] <= self._persisted:
            restore, self._restore = self._restore[1], None
        page: tuple[Entry, ...] = ()
        if committed and self.has_more_committed:
            up_to = min(self.commit_index, self.log.stable)
            page = tuple(self.log.entries(self._handed_out + 1, up_to + 1, COMMITTED_PAGE_BYTES))
            self._handed_out = page[-1].index
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
