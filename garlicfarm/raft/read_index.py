"""Linearizable reads without a log entry (ReadIndex, Raft §8, thesis 6.4)."""

from __future__ import annotations

from collections import deque

import msgspec

from garlicfarm.errors import ProposalDropped
from garlicfarm.extensions import READ_INDEX
from garlicfarm.raft.state import RaftState
from garlicfarm.wire.messages import NO_LEADER, MessageType, Response

__all__ = ["READ_INDEX", "ReadIndexForwarder", "ReadIndexQueue", "refuse"]

_RESPONSE = MessageType.READ_INDEX_RESPONSE


class _Read(msgspec.Struct):
    token: int
    index: int
    after_seq: int  # requests up to this one were sent before it was asked
    confirmed_by: set[int]
    forwarded: bool  # a follower asks


class ReadIndexQueue:
    """The reads of a leader, its own and its followers'. Each waits until a majority has answered a request
    that was sent after the read was asked for. This proves that no other member led at that moment, so the
    commit index of that moment is safe to read at."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._waiting: deque[_Read] = deque()

    def add(self, token: int, index: int, *, forwarded: bool) -> None:
        """One more, at the commit index ``index``, or one that is still to be committed in this term."""
        self._waiting.append(_Read(token, index, self._state.seq, {self._state.id}, forwarded))
        self.release()

    def is_waiting_for(self, last_seq: int) -> bool:
        """Whether a peer that was last sent the request ``last_seq`` has to be sent another."""
        return bool(self._waiting) and last_seq <= self._waiting[-1].after_seq

    def on_response(self, peer: int, seq: int) -> None:
        """``peer`` answered the request ``seq`` in this term."""
        for read in self._waiting:
            if seq <= read.after_seq:
                break
            read.confirmed_by.add(peer)
        self.release()

    def fail_all(self, leader: int) -> None:
        """Leadership is lost, to ``leader`` if that is known already."""
        for read in self._waiting:
            if read.forwarded:
                refuse(self._state, read.token, leader)
            else:
                self._state.reads.append((read.token, None))
        self._waiting.clear()

    def release(self) -> None:
        """Hand out those that a majority confirms, at an index that is committed."""
        state = self._state
        while self._waiting and self._waiting[0].index <= state.commit_index:
            read = self._waiting[0]
            if not state.membership.is_quorum(read.confirmed_by):
                break
            self._waiting.popleft()
            if read.forwarded:  # it rests on what is durable at a majority, and on no write of our own
                answer = Response(_RESPONSE, state.id, state.id, state.term, read.index + 1, True)
                state.responses.append((read.token, answer))
            else:
                state.reads.append((read.token, read.index))


def refuse(state: RaftState, token: int, leader: int) -> None:
    """Answer a follower that this member does not lead; ``leader``: who does, 0 if that is unknown."""
    state.respond(token, _RESPONSE, leader or NO_LEADER, 0, False)


class ReadIndexForwarder:
    """Those of a follower, which asks its leader (D5). A change of the leader ends them; they are not
    repeated."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._asked: dict[int, int] = {}  # seq -> token
        self._asked_of = (0, 0)  # the term in which they are asked, and its leader

    def add(self, token: int) -> None:
        """One more. Raises `ProposalDropped`: no leader is known, or it lacks the extension."""
        state = self._state
        if READ_INDEX not in state.extensions.get(state.leader_id, ()):
            raise ProposalDropped("not-leader")
        self.expire()
        self._asked_of = (state.term, state.leader_id)
        # Without a term: what speaks of one has to wait for the disk.
        self._asked[state.send(state.leader_id, MessageType.READ_INDEX_REQUEST, 0)] = token

    def step_response(self, seq: int, response: Response) -> bool:
        """Take the answer to a read; False: ``seq`` is none of theirs."""
        token = self._asked.pop(seq, None)
        if token is None:
            return False
        state = self._state
        led = (response.term, response.source) == self._asked_of == (state.term, state.leader_id)
        index = response.next_index - 1 if response.accepted and led else None
        state.reads.append((token, index))
        return True

    def report_unreachable(self, peer: int, seq: int | None) -> None:
        """There is no answer to the request ``seq`` (None: to any that ``peer`` was sent)."""
        if seq is None and peer == self._asked_of[1]:
            self._fail_all()
        elif seq in self._asked:
            self._state.reads.append((self._asked.pop(seq), None))

    def expire(self) -> None:
        """End them where the leader that they were asked of leads no more, as far as this member knows."""
        if self._asked and self._asked_of != (self._state.term, self._state.leader_id):
            self._fail_all()

    def _fail_all(self) -> None:
        self._state.reads += [(token, None) for token in self._asked.values()]
        self._asked.clear()
