"""A partition, read in order: which records are next, which have to be fetched, and when to fetch again.

Consumers and stores read alike. Records arrive live or as answers to a FETCH, from several sources, late,
twice or not at all; a head says which ones exist. Sequences count from 0 and have no gaps::

    … taken | next … missing … | island: arrived early, kept | …  head
            ^ fetched up to here, a window at a time

* A window of records is fetched at once. When half of it has arrived, more is fetched, so that the source
  always has something to send. The window is small at first and doubles, up to 4096 records or 4 MiB: what a
  queue on the way should hold. It is halved each time something has to be fetched again, and grows slowly
  then.
* What makes no progress is fetched again after a second, then after two, and so on to eight. If an answer
  shows a gap, the first time is sooner: sources answer in order, so what is before it is lost. A head that
  lies costs one small message at such times, and holds up nothing.
* A source that has deleted the beginning (retention) tells its *tail*: the oldest record that it has. Another
  source may still have what is before it. Only after several FETCHes that were answered by tails and nothing
  else, `missing` says that the records before the lowest one are gone; the reader's owner decides what to do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Partition = tuple[str, str]
"""A topic, and the address of one of its partitions."""

LAST_SEQUENCE = 2**63 - 2
"""Of what any partition can hold here: a higher sequence is a lie."""
WINDOW = 4096
"""Records that are fetched at once, at most."""
_WINDOW_BYTES = 4 << 20
_FIRST_WINDOW = 256
_SMALLEST_WINDOW = 16
_EARLY_WINDOW = 2 * WINDOW
_RETRY_S = 1.0
_GAP_RETRY_S = 0.1
_MAX_RETRY_S = 8.0
_STALLED_RETRY_S = 4.0
_TAIL_RETRY_S = 0.5
_TAILS = 3
_OVERHEAD_BYTES = 64


class EarlyRecords:
    """How much may be kept of what arrives early, in bytes; several readers share it."""

    __slots__ = ("left_bytes",)

    def __init__(self, limit_bytes: int = 32 << 20) -> None:
        self.left_bytes = limit_bytes


class PartitionReader:
    """Reads one partition from ``next`` on.

    ``head`` is the last record that is known to exist, ``next - 1`` if none is. ``has_begun``: a record was
    taken. ``contradicted``: one that was kept came again with other contents; the first was taken.
    ``heard_at`` is the owner's: when the partition was told of. Times are seconds of any clock that does not
    go back.
    """

    __slots__ = (
        "_asked_to",
        "_bytes",
        "_early",
        "_island",
        "_kept",
        "_measured",
        "_retry_at",
        "_retry_s",
        "_steady_window",
        "_tail",
        "_tail_is_new",
        "_tails",
        "_window",
        "contradicted",
        "has_begun",
        "head",
        "heard_at",
        "key",
        "next",
        "partition",
        "topic",
    )

    def __init__(self, topic: str, partition: str, first: int, early: EarlyRecords) -> None:
        self.key = topic, partition
        self.topic = topic
        self.partition = partition
        self.next = first
        self.heard_at = -math.inf
        self.contradicted = False
        self.head = first - 1
        self.has_begun = False
        self._early = early
        self._kept: dict[int, bytes] = {}
        self._island = 0  # the first of what is kept
        self._asked_to = first  # what was fetched ends before it
        self._window = _FIRST_WINDOW
        self._steady_window = WINDOW  # to which it doubles
        self._bytes = 0  # taken since `_measured`
        self._measured = first
        self._retry_s = _RETRY_S
        self._retry_at = 0.0
        self._tail = 0  # the lowest that was told since the last progress
        self._tails = 0  # FETCHes that were answered by one
        self._tail_is_new = True  # since the last FETCH

    def take(self, sequence: int, content: bytes, now: float) -> Sequence[bytes]:
        """The records that a record makes available, in order: all from `next` as it was before the call. The
        caller has dropped sequences below `next`, and those above `LAST_SEQUENCE`."""
        if sequence > self.head:
            self.head = sequence
        if sequence != self.next:
            self._keep(sequence, content)
            return ()
        self.next = sequence + 1
        self._bytes += len(content)
        self._on_progress(now)
        return (content, *self._take_kept()) if self._kept and self.next == self._island else (content,)

    def on_gap(self, now: float) -> None:
        """An answer has begun beyond `next`, or has left it out."""
        if self._retry_s == _RETRY_S:
            self._retry_at = min(self._retry_at, now + _GAP_RETRY_S)

    def on_tail(self, sequence: int, now: float) -> None:
        """A source has nothing before ``sequence``, at most `LAST_SEQUENCE`."""
        if self.next < sequence and self.next < self._asked_to:
            self._tail = min(self._tail, sequence) if self._tails else sequence
            if self._tail_is_new:
                self._tail_is_new = False
                self._tails += 1
                self._retry_at = min(self._retry_at, now + _TAIL_RETRY_S)

    def on_head(self, sequence: int) -> None:
        """Records up to ``sequence`` exist, at most `LAST_SEQUENCE`."""
        if sequence > self.head:
            self.head = sequence

    def fetch(self, now: float) -> tuple[int, int] | None:
        """What to fetch now: the first sequence and a count; None: nothing. Each call that returns something
        counts as sent."""
        end = self._island if self._kept else self.head + 1
        first = self.next
        if first >= end:
            return None
        if self._asked_to > first:
            if now >= self._retry_at:
                self._retry_s = min(2 * self._retry_s, _MAX_RETRY_S)
                self._steady_window = self._window = max(_SMALLEST_WINDOW, self._window // 2)
            elif self._asked_to < end and self._asked_to - first <= self._window // 2:
                first = self._asked_to
                self._widen()
            else:
                return None
        else:
            self._widen()
        self._asked_to = min(self.next + self._window, end)
        self._retry_at = now + self._retry_s
        self._tail_is_new = True
        return first, self._asked_to - first

    @property
    def is_stalled(self) -> bool:
        """Whether records are missing that several FETCHes have not brought."""
        return self.next <= self.head and self._retry_s >= _STALLED_RETRY_S

    @property
    def missing(self) -> tuple[int, int] | None:
        """The records from the first number up to the second, excluding it, are gone."""
        return (self.next, self._tail) if self._tails >= _TAILS else None

    def skip(self, now: float) -> Sequence[bytes]:
        """Go on behind what is `missing`. Returns the records that this makes available, from the new `next`
        as it is before them."""
        assert self.missing is not None
        self.next = self._asked_to = self._measured = self._tail
        self._bytes = 0
        self.head = max(self.head, self.next - 1)
        self._on_progress(now)
        for sequence in [sequence for sequence in self._kept if sequence < self.next]:
            self._early.left_bytes += len(self._kept.pop(sequence)) + _OVERHEAD_BYTES
        return self._take_kept()

    def _widen(self) -> None:
        taken = self.next - self._measured
        if taken > 0:
            most = min(WINDOW, _WINDOW_BYTES // (self._bytes // taken + _OVERHEAD_BYTES))
            is_doubled = self._window < self._steady_window
            wider = self._window + (self._window if is_doubled else _SMALLEST_WINDOW)
            self._window = max(_SMALLEST_WINDOW, min(wider, most))
            self._bytes, self._measured = 0, self.next

    def _on_progress(self, now: float) -> None:
        self.has_begun = True
        self._tails = 0
        self._retry_s = _RETRY_S
        self._retry_at = now + _RETRY_S

    def _keep(self, sequence: int, content: bytes) -> None:
        size = len(content) + _OVERHEAD_BYTES
        if self._kept.get(sequence, content) != content:
            self.contradicted = True
        elif (
            sequence - self.next < _EARLY_WINDOW
            and sequence not in self._kept
            and size <= self._early.left_bytes
        ):
            self._early.left_bytes -= size
            self._island = min(self._island, sequence) if self._kept else sequence
            self._kept[sequence] = content

    def _take_kept(self) -> list[bytes]:
        found: list[bytes] = []
        freed = 0
        while (content := self._kept.pop(self.next, None)) is not None:
            found.append(content)
            freed += len(content) + _OVERHEAD_BYTES
            self._bytes += len(content)
            self.next += 1
        if self._kept:
            self._island = min(self._kept)
        self._early.left_bytes += freed
        return found
