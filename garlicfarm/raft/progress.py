"""What a leader knows of one follower."""

from __future__ import annotations

from collections import deque
from enum import Enum

__all__ = ["Progress", "ProgressState"]


class ProgressState(Enum):
    """``probe``: one request at a time until the logs are known to meet; ``replicate``: a window of
    requests, ``next_index`` runs ahead of the answers."""

    PROBE = "probe"
    REPLICATE = "replicate"


class Progress:
    """Invariant: 0 ≤ match_index < next_index. ``sent`` holds (seq, previous index, last index, size in
    bytes) of the unanswered AppendEntries, oldest first; answers come in that order."""

    __slots__ = (
        "last_sent_ms",
        "match_index",
        "next_index",
        "notified",
        "sent",
        "size",
        "state",
        "unreachable",
    )

    def __init__(self, next_index: int, now_ms: int) -> None:
        self.match_index = 0
        self.next_index = next_index
        self.state = ProgressState.PROBE
        self.sent: deque[tuple[int, int, int, int]] = deque()
        self.size = 0
        self.notified = 0  # the commit index last told
        self.last_sent_ms = now_ms
        self.unreachable = False  # pause until the next heartbeat

    def paused(self, max_messages: int, max_bytes: int) -> bool:
        """Whether entries have to wait for answers."""
        if self.state is ProgressState.PROBE:
            return self.unreachable or bool(self.sent)
        return len(self.sent) >= max_messages or self.size >= max_bytes

    def record(self, seq: int, previous: int, last: int, size: int) -> None:
        self.sent.append((seq, previous, last, size))
        self.size += size

    def take(self, seq: int) -> tuple[int, int] | None:
        """Forget a sent request: its (previous, last) index, None if it was forgotten before."""
        for position, (sent_seq, previous, last, size) in enumerate(self.sent):
            if sent_seq == seq:
                del self.sent[position]
                self.size -= size
                return previous, last
        return None

    def probe(self, next_index: int) -> None:
        """Look again for where the logs meet; answers to what was sent before no longer count."""
        self.state = ProgressState.PROBE
        self.next_index = max(next_index, self.match_index + 1)
        self.sent.clear()
        self.size = 0
