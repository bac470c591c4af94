"""Linearizable reads without a log entry (ReadIndex, Raft §8, thesis 6.4)."""

from __future__ import annotations

from collections import deque

import msgspec

from garlicfarm.raft.member import Member

__all__ = ["Reads"]


class _Read(msgspec.Struct):
    token: int
    index: int
    after_seq: int  # requests up to this one were sent before it was asked
    heard: set[int]


class Reads:
    """Those that wait until a majority has answered a request sent after they were asked: then nobody
    else led when they were, and the commit index of that moment is good."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._waiting: deque[_Read] = deque()

    def begin(self, token: int, index: int) -> None:
        """One more, at the commit index ``index``."""
        self._waiting.append(_Read(token, index, self._member.seq, {self._member.id}))
        self.release()

    def wait_for(self, last_seq: int) -> bool:
        """Whether a peer that was last sent the request ``last_seq`` has to be sent another."""
        return bool(self._waiting) and last_seq <= self._waiting[-1].after_seq

    def heard(self, peer: int, seq: int) -> None:
        """``peer`` answered the request ``seq`` in this term."""
        for read in self._waiting:
            if seq <= read.after_seq:
                break
            read.heard.add(peer)
        self.release()

    def end(self) -> None:
        """Leadership is lost."""
        self._member.reads += [(read.token, None) for read in self._waiting]
        self._waiting.clear()

    def release(self) -> None:
        """Hand out those that a majority confirms."""
        while self._waiting and self._member.membership.is_quorum(self._waiting[0].heard):
            read = self._waiting.popleft()
            self._member.reads.append((read.token, read.index))
