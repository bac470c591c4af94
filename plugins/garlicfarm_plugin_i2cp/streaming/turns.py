"""Whose turn it is to send: what all streams of a destination share when packets go out.

A stream has a turn when it was touched, or when its time has come. It sends a few packets, and if it has
more to send, it waits behind the others. What answers peers of streams that have ended, or never began, goes
first, as long as it takes a quarter of the room.
"""

from __future__ import annotations

import heapq
from itertools import count, islice

from garlicfarm_plugin_i2cp.streaming.incoming import Incoming

MAX_ANSWERS = 2048
"""That wait, beside the packets of streams."""
ANSWERS_PART = 4
PACKETS_IN_TURN = 16
"""What one stream may send before the next may."""
_FEW_TIMERS = 64


class Turns:
    """Sans-I/O; times in s of one monotonic clock."""

    def __init__(self) -> None:
        self._touched: dict[Incoming, None] = {}
        self._answers: dict[object, tuple[bytes, bytes]] = {}
        self._timers: list[tuple[float, int, Incoming]] = []
        self._most_timers = _FEW_TIMERS
        self._numbers = count()

    @property
    def has_work(self) -> bool:
        """Whether `take` may have something to send, whatever the time."""
        return bool(self._touched or self._answers)

    def touch(self, incoming: Incoming) -> None:
        """The stream may have something to send, or another time to wake."""
        self._touched[incoming] = None

    def end(self, incoming: Incoming) -> None:
        """The stream has ended: it has no turn any more."""
        self._touched.pop(incoming, None)
        incoming.wake_s = None

    def answer(self, key: object, peer: bytes, payload: bytes) -> None:
        """Send ``payload``, apart from what streams send, in place of what waits with the same key. Where too
        many wait, the oldest is dropped."""
        self._answers[key] = (peer, payload)
        if len(self._answers) > MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]

    def wake(self, now_s: float) -> None:
        """Touch the streams whose time has come."""
        while self._timers and self._timers[0][0] <= now_s:
            at_s, _, incoming = heapq.heappop(self._timers)
            if incoming.wake_s == at_s:
                incoming.wake_s = None
                self._touched[incoming] = None

    def take(self, now_s: float, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` payloads, each with the destination that it is for."""
        taken = self._take_answers(-(-limit // ANSWERS_PART))
        while self._touched and len(taken) < limit:
            incoming = next(iter(self._touched))
            del self._touched[incoming]
            stream = incoming.stream
            in_turn = min(PACKETS_IN_TURN, limit - len(taken))
            payloads = stream.take_packets(now_s, in_turn)
            taken += [(stream.peer, payload) for payload in payloads]
            if stream.ended is None:
                if len(payloads) == in_turn:
                    self._touched[incoming] = None
                else:
                    self._set_timer(incoming)
        return taken + self._take_answers(limit - len(taken))

    @property
    def wake_s(self) -> float | None:
        """When the next stream's time comes; None: there is none."""
        while self._timers and self._timers[0][2].wake_s != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _take_answers(self, limit: int) -> list[tuple[bytes, bytes]]:
        return [self._answers.pop(key) for key in list(islice(self._answers, limit))]

    def _set_timer(self, incoming: Incoming) -> None:
        at_s = incoming.stream.wake_s
        if incoming.wake_s is None or at_s < incoming.wake_s:
            incoming.wake_s = at_s
            heapq.heappush(self._timers, (at_s, next(self._numbers), incoming))
        if len(self._timers) > self._most_timers:  # many were replaced by earlier ones
            self._timers = [timer for timer in self._timers if timer[2].wake_s == timer[0]]
            heapq.heapify(self._timers)
            self._most_timers = 2 * len(self._timers) + _FEW_TIMERS
