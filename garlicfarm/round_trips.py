"""How long elections have to wait where round trips are slow, as through I2P, without I/O (D27).

A member that does not hear its leader for an *election time-out* has another one elected. The shorter it is,
the sooner a dead leader is replaced; shorter than what a message may take, it replaces one that is well. So
the configured time-outs are those for slow paths, and the leader tells the members, through the log, to use
shorter ones while its round trips are quick.

**Measuring.** A sample is the time from a request to the next answer of that member, whichever request that
one belongs to: so a request that is lost, and the connection with it, counts as all the time until the member
is heard again. While it is not, there is no sample: a dead member is not a slow one, and a leader that nobody
answers could not tell anything. Of each `SLOT_MS` the slowest sample is kept. The 99th percentile of the last
`WINDOW_MS` is the slowest of these but one: one connection that breaks is not yet a slow path. The slowest
member decides.

**Telling.** The upper election time-out should be 6⅔ times that. It is told in steps of about √2, between the
least and the longest of the leader's own configuration: longer at once, shorter by a step at a time, when the
shorter one would have done for all of the last `WINDOW_MS`.

Nothing depends on these values but how soon, and how often for nothing, a leader is replaced: members may
have different ones, each within the bounds of its own configuration.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WINDOW_MS = 600_000
SLOT_MS = 5_000
STEPS = (1000, 707, 500, 354, 250, 177, 125)
"""Of the longest time-out, in thousandths."""


class Timeouts(NamedTuple):
    """How long a member waits, in ms: for a leader that it does not hear, from the lower to the upper
    election time-out; and for the answer to a request."""

    election_min_ms: int
    election_max_ms: int
    rpc_ms: int

    def shortened(self, told_ms: int, least_ms: int) -> Timeouts:
        """All by the same ratio, so that the upper election time-out is ``told_ms``, but not less than
        ``least_ms`` and not more than now. 0: nothing was told."""
        longest_ms = self.election_max_ms
        upper_ms = min(max(told_ms or longest_ms, least_ms), longest_ms)
        return Timeouts(*(each * upper_ms // longest_ms for each in self))


class RoundTrips:
    """What the leader of one term measures, and what it makes of it. Times are those of a clock that counts
    while the machine is suspended, as of `garlicfarm.leases`."""

    def __init__(self, least_ms: int, longest_ms: int, now_ms: int) -> None:
        """The bounds of the upper election time-out; where ``least_ms`` is not less, nothing is measured."""
        self.longest_ms = longest_ms
        self._least_ms = min(least_ms, longest_ms)
        self._told_ms = 0  # in this term
        self._since_ms = now_ms  # since when this leader measures, or has told what is in force
        self._open: dict[int, tuple[int, int]] = {}  # member → the first request without an answer, when sent
        self._slots: dict[int, deque[tuple[int, int]]] = {}  # member → slots, and the slowest of each

    # ------------------------------------------------------------------ measuring

    def on_sent(self, member: int, seq: int, now_ms: int) -> None:
        """A Raft request is about to be sent."""
        if self._least_ms < self.longest_ms and member not in self._open:
            self._open[member] = seq, now_ms

    def on_answered(self, member: int, seq: int, now_ms: int) -> None:
        """The member has answered a Raft request. One that is not answered is not reported."""
        first = self._open.get(member)
        if first is None or seq < first[0]:
            return
        del self._open[member]
        slots = self._slots.setdefault(member, deque(maxlen=WINDOW_MS // SLOT_MS + 1))
        slot, took_ms = now_ms // SLOT_MS, now_ms - first[1]
        if slots and slots[-1][0] == slot:
            took_ms = max(took_ms, slots.pop()[1])
        slots.append((slot, took_ms))

    def p99_ms(self, now_ms: int) -> int | None:
        """The 99th percentile of the slowest member; None: too little is known."""
        return max(
            (
                took_ms
                for member in self._slots
                if (took_ms := self._member_p99_ms(member, now_ms)) is not None
            ),
            default=None,
        )

    def _member_p99_ms(self, member: int, now_ms: int) -> int | None:
        first = (now_ms - WINDOW_MS) // SLOT_MS
        took_ms = [took_ms for slot, took_ms in self._slots[member] if slot > first]
        return sorted(took_ms)[-2] if len(took_ms) > 1 else None

    # ------------------------------------------------------------------ telling

    def wanted_ms(self, in_force_ms: int, now_ms: int) -> int:
        """The upper election time-out that is to be told: an entry says so, which this leader appends now, if
        at all, and `on_told` follows. 0: none. ``in_force_ms``: as the log says; 0: nothing."""
        present_ms = min(self._told_ms or in_force_ms or self.longest_ms, self.longest_ms)
        p99_ms = self.p99_ms(now_ms)
        needed_ms = self._least_ms if p99_ms is None else self._needed_ms(p99_ms)
        if needed_ms > present_ms:
            return needed_ms
        shorter_ms = max((each for each in self._steps() if each < present_ms), default=0)
        is_proven = p99_ms is not None and now_ms >= self._since_ms + WINDOW_MS
        return shorter_ms if is_proven and needed_ms <= shorter_ms else 0

    def on_told(self, election_ms: int, now_ms: int) -> None:
        """The entry is about to be appended in this term."""
        self._told_ms, self._since_ms = election_ms, now_ms

    def _needed_ms(self, p99_ms: int) -> int:
        enough = (each for each in self._steps() if 3 * each >= 20 * p99_ms)
        return min(enough, default=self.longest_ms)

    def _steps(self) -> list[int]:
        steps = {max(self.longest_ms * step // 1000, self._least_ms) for step in STEPS}
        return sorted(steps)
