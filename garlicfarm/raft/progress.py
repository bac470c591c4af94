"""What a leader knows of one follower, or of a server that catches up to become one."""

from __future__ import annotations

from collections import deque
from enum import Enum

import msgspec

from garlicfarm.raft.types import SnapshotMeta

__all__ = ["Progress", "ProgressState", "SnapshotSend"]


class ProgressState(Enum):
    """``become_probe``: one request at a time until the logs are known to meet; ``replicate``: a window of
    requests, ``next_index`` runs ahead of the answers."""

    PROBE = "probe"
    REPLICATE = "replicate"


class SnapshotSend(msgspec.Struct):
    """A snapshot on its way: the receiver holds ``offset`` bytes; ``seq`` is the request with the piece
    of ``size`` bytes that follows, 0 if there is none; ``last``: whether that is the last one."""

    meta: SnapshotMeta
    offset: int = 0
    seq: int = 0
    size: int = 0
    last: bool = False


class Progress:
    """Invariant: 0 ≤ match_index < next_index. ``sent`` holds (seq, previous index, last index, size in
    bytes) of the unanswered AppendEntries, oldest first; answers come in that order."""

    __slots__ = (
        "has_answered",
        "is_backing_off",
        "last_heard_ms",
        "last_sent_ms",
        "last_seq",
        "match_index",
        "next_index",
        "sent",
        "sent_commit_index",
        "size",
        "snapshot",
        "state",
    )

    def __init__(self, next_index: int, now_ms: int) -> None:
        self.match_index = 0
        self.next_index = next_index
        self.state = ProgressState.PROBE
        self.snapshot: SnapshotSend | None = None  # while it needs entries that are gone
        self.sent: deque[tuple[int, int, int, int]] = deque()
        self.size = 0
        self.sent_commit_index = 0  # the commit index last told, as far as it could follow
        self.last_seq = 0  # of the last AppendEntries
        self.last_sent_ms = now_ms
        self.last_heard_ms = now_ms  # or since when it had time to answer
        self.has_answered = False  # it did once
        self.is_backing_off = False  # pause until the next heartbeat

    def record_answer(self, now_ms: int) -> None:
        """It answered."""
        self.last_heard_ms = now_ms
        self.has_answered = True

    def is_active_since(self, time_ms: int) -> bool:
        """Whether it answered at or after ``time_ms``."""
        return self.has_answered and self.last_heard_ms >= time_ms

    def is_window_full(self, max_messages: int, max_bytes: int) -> bool:
        """Whether entries have to wait for answers."""
        if self.state is ProgressState.PROBE:
            return self.is_backing_off or bool(self.sent)
        return len(self.sent) >= max_messages or self.size >= max_bytes

    def record_sent(self, seq: int, previous: int, last: int, size: int) -> None:
        """An AppendEntries was sent."""
        self.sent.append((seq, previous, last, size))
        self.size += size
        self.last_seq = seq

    def pop_sent(self, seq: int) -> tuple[int, int] | None:
        """Forget a sent AppendEntries: its (previous, last) index, None if it was forgotten before."""
        for position, (sent_seq, previous, last, size) in enumerate(self.sent):
            if sent_seq == seq:
                del self.sent[position]
                self.size -= size
                return previous, last
        return None

    def match_up_to(self, last: int) -> None:
        """The logs are the same up to ``last``."""
        self.match_index = max(self.match_index, last)
        self.next_index = max(self.next_index, last + 1)
        self.state = ProgressState.REPLICATE

    def back_off(self) -> None:
        """A request got no answer, or one that gets nothing on: go on with the next heartbeat. Of the log it
        says nothing: only a refusal leads further back than to what matches."""
        self.become_probe(self.match_index + 1 if self.state is ProgressState.REPLICATE else self.next_index)
        self.is_backing_off = True

    def become_probe(self, next_index: int) -> None:
        """Look again for where the logs meet; answers to what was sent before no longer count."""
        self.state = ProgressState.PROBE
        self.next_index = max(next_index, self.match_index + 1)
        self.sent.clear()
        self.size = 0
