"""Linearizable reads without a log entry (ReadIndex, Raft §8, thesis 6.4)."""

from __future__ import annotations

from collections import deque

import msgspec

from garlicfarm.errors import ProposalDropped
from garlicfarm.extensions import READ_INDEX
from garlicfarm.raft.state import RaftState
from garlicfarm.raft.types import OutgoingResponse, ReadOutcome
from garlicfarm.refusals import Refusal
from garlicfarm.wire.messages import NO_LEADER, MessageType, Response

_RESPONSE = MessageType.READ_INDEX_RESPONSE


class _WaitingRead(msgspec.Struct):
    token: int
    index: int
    after_seq: int  # requests up to this one were sent before the read began
    confirmed_by: set[int]
    follower: int | None  # that asks; None: this leader does


class ReadIndexQueue:
    """The reads of a leader and its followers, each waiting for a majority to answer a request that was
    sent after the read began. Such a majority proves that no other member led at that moment, so the commit
    index of that moment is safe to read at."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._waiting: deque[_WaitingRead] = deque()
        self.answered_followers: set[int] = set()
        """They wait until they have applied what they were answered."""

    def add(self, token: int, index: int, follower: int | None) -> None:
        """Begin a read at ``index``: the commit index, or a later one that this term still has to commit."""
        state = self._state
        self._waiting.append(_WaitingRead(token, index, state.last_seq, {state.id}, follower))
        self.release()

    def is_waiting_for(self, last_seq: int) -> bool:
        """Whether a read waits for a newer request than ``last_seq``, a peer's last one."""
        return bool(self._waiting) and last_seq <= self._waiting[-1].after_seq

    def on_response(self, peer: int, seq: int) -> None:
        """``peer`` answered the request ``seq`` in this term."""
        for read in self._waiting:
            if seq <= read.after_seq:
                break
            read.confirmed_by.add(peer)
        self.release()

    def fail_all(self, leader: int) -> None:
        """Leadership is lost, to ``leader`` (0: not known yet)."""
        for read in self._waiting:
            if read.follower is not None:
                refuse_read(self._state, read.token, leader)
            else:
                self._state.reads.append(ReadOutcome(read.token, None))
        self._waiting.clear()

    def release(self) -> None:
        """Answer the reads that a majority confirms and whose index is committed."""
        state = self._state
        while self._waiting and self._waiting[0].index <= state.commit_index:
            read = self._waiting[0]
            if not state.membership.is_quorum(read.confirmed_by):
                break
            self._waiting.popleft()
            if (
                read.follower is not None
            ):  # it rests on what is durable at a majority, and on no write of our own
                response = Response(_RESPONSE, state.id, state.id, state.term, read.index + 1, True)
                state.responses.append(OutgoingResponse(read.token, response))
                self.answered_followers.add(read.follower)
            else:
                state.reads.append(ReadOutcome(read.token, read.index))


def refuse_read(state: RaftState, token: int, leader: int) -> None:
    """Answer a follower that this member does not lead, and name ``leader`` (0: unknown)."""
    state.respond(token, _RESPONSE, leader or NO_LEADER, 0, False)


class ReadIndexForwarder:
    """The reads of a follower, which asks its leader where both have the extension (D5). They fail when the
    leader changes; they are not repeated."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._asked: dict[int, int] = {}  # seq -> token
        self._asked_term_and_leader = (0, 0)  # of all reads in `_asked`

    def add(self, token: int) -> None:
        """Ask the leader. Raises `ProposalDropped`: no leader is known, or it lacks the extension."""
        state = self._state
        if READ_INDEX not in state.extensions.get(state.leader_id, ()):
            raise ProposalDropped(Refusal.NOT_LEADER)
        self.expire()
        self._asked_term_and_leader = (state.term, state.leader_id)
        # It names no term: a message that names one has to wait for the disk.
        self._asked[state.send(state.leader_id, MessageType.READ_INDEX_REQUEST, 0)] = token

    def step_response(self, seq: int, response: Response) -> bool:
        """Take the answer to a read. Returns whether ``seq`` is one of these reads."""
        token = self._asked.pop(seq, None)
        if token is None:
            return False
        state, asked = self._state, self._asked_term_and_leader
        is_of_leader = (response.term, response.source) == asked == (state.term, state.leader_id)
        index = response.next_index - 1 if response.accepted and is_of_leader else None
        state.reads.append(ReadOutcome(token, index))
        return True

    def report_unreachable(self, peer: int, seq: int | None) -> None:
        """The request ``seq`` got no answer (None: no request to ``peer`` did)."""
        if seq is None and peer == self._asked_term_and_leader[1]:
            self._fail_all()
        elif seq in self._asked:
            self._state.reads.append(ReadOutcome(self._asked.pop(seq), None))

    def expire(self) -> None:
        """Fail the reads if the leader that was asked does not lead any more, as far as this member knows."""
        if self._asked and self._asked_term_and_leader != (self._state.term, self._state.leader_id):
            self._fail_all()

    def _fail_all(self) -> None:
        self._state.reads += [ReadOutcome(token, None) for token in self._asked.values()]
        self._asked.clear()
