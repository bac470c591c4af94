"""What a leader knows of one follower, or of a server that catches up to become one."""

from __future__ import annotations

from collections import deque
from enum import Enum

import msgspec

from garlicfarm.raft.types import SnapshotMeta


class ProgressState(Enum):
    """``probe``: one request at a time until the logs are known to meet; ``replicate``: a window of
    requests, with ``next_index`` ahead of the answers."""

    PROBE = "probe"
    REPLICATE = "replicate"


class SnapshotSend(msgspec.Struct):
    """A snapshot that is being sent. The receiver holds ``offset`` bytes. ``seq`` is the unanswered request
    with the piece of ``size`` bytes that follows, 0 if there is none; ``is_last_piece`` is of that piece."""

    meta: SnapshotMeta
    offset: int = 0
    seq: int = 0
    size: int = 0
    is_last_piece: bool = False


class SentAppend(msgspec.Struct, frozen=True, gc=False):
    """An unanswered AppendEntries: its entries lie behind ``previous`` up to ``last``, ``size`` in bytes."""

    seq: int
    previous: int
    last: int
    size: int


class Progress:
    """Invariant: 0 ≤ match_index < next_index. ``inflight`` holds the unanswered AppendEntries, oldest
    first; answers come in that order."""

    __slots__ = (
        "has_answered",
        "inflight",
        "inflight_bytes",
        "is_backing_off",
        "last_heard_ms",
        "last_sent_ms",
        "last_seq",
        "match_index",
        "next_index",
        "notice_at_ms",
        "refused_snapshots",
        "sent_commit_index",
        "snapshot",
        "state",
        "wants_snapshot",
    )

    def __init__(self, next_index: int, now_ms: int) -> None:
        self.match_index = 0
        self.next_index = next_index
        self.state = ProgressState.PROBE
        self.snapshot: SnapshotSend | None = None  # while it needs entries that are compacted
        self.refused_snapshots = 0
        self.wants_snapshot = False  # of more than it holds, and takes no entries until it has that
        self.inflight: deque[SentAppend] = deque()
        self.inflight_bytes = 0
        self.sent_commit_index = 0  # the newest one sent, as far as its log could follow
        self.notice_at_ms: int | None = None  # when it is told a newer commit index, if nothing else is sent
        self.last_seq = 0  # of the newest AppendEntries
        self.last_sent_ms = now_ms
        self.last_heard_ms = now_ms  # of its newest answer; of the start, before the first one
        self.has_answered = False
        self.is_backing_off = False  # until the next heartbeat

    def record_answer(self, now_ms: int) -> None:
        """It answered a request."""
        self.last_heard_ms = now_ms
        self.has_answered = True

    def is_active_since(self, time_ms: int) -> bool:
        """Whether it answered at or after ``time_ms``."""
        return self.has_answered and self.last_heard_ms >= time_ms

    def is_window_full(self, max_messages: int, max_bytes: int) -> bool:
        """Whether entries have to wait for answers."""
        if self.state is ProgressState.PROBE:
            return self.is_backing_off or bool(self.inflight)
        return len(self.inflight) >= max_messages or self.inflight_bytes >= max_bytes

    def record_sent(self, sent: SentAppend) -> None:
        """An AppendEntries was sent."""
        self.inflight.append(sent)
        self.inflight_bytes += sent.size
        self.last_seq = sent.seq

    def pop_sent(self, seq: int) -> SentAppend | None:
        """Forget the AppendEntries ``seq`` and return it, None if it was forgotten before."""
        for position, sent in enumerate(self.inflight):
            if sent.seq == seq:
                del self.inflight[position]
                self.inflight_bytes -= sent.size
                return sent
        return None

    def match_up_to(self, last: int) -> None:
        """The logs are the same up to ``last``."""
        self.refused_snapshots = 0
        self.wants_snapshot = False
        self.match_index = max(self.match_index, last)
        self.next_index = max(self.next_index, last + 1)
        self.state = ProgressState.REPLICATE

    def back_off(self) -> None:
        """A request got no answer, or one that brings no progress: retry with the next heartbeat. That says
        nothing about the log: only a refusal leads back behind ``next_index`` of a probe."""
        self.become_probe(self.match_index + 1 if self.state is ProgressState.REPLICATE else self.next_index)
        self.is_backing_off = True

    def become_probe(self, next_index: int) -> None:
        """Probe where the logs meet; answers to earlier requests no longer count."""
        self.state = ProgressState.PROBE
        self.next_index = max(next_index, self.match_index + 1)
        self.inflight.clear()
        self.inflight_bytes = 0
