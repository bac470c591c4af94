"""Whether this node's wall clock is right: routers and floodfills refuse what a wrong clock has dated.

A farm's members and their routers are compared. What this node knows of another clock is a *span*: the least
and the most by which that clock is ahead of this node's clock of leases, which nobody sets. So it is seen at
once when this node's wall clock is set, and what has come late makes a span wider, never wrong:

* A status is dated when it is begun. This node applies it later, however much later: the other clock is *at
  least* so far ahead as the date says then. If the status names as applied the entry of a status of this
  node, it was begun after that: the other clock is *at most* so far ahead as the date said then. A node that
  was cut off, asleep, or restarted from an old snapshot applies statuses that are hours old: their spans are
  hours wide, and show nothing. Farm time itself could not be compared: it is an interval old, and older after
  an outage.
* A date that was asked for, of a router or with a login, was read after it was asked for and before it came.

This node's clock is off by that by which it is *certainly* off, so it never withdraws because something came
late. What that misses: a clock that is ahead is found by statuses if it is ahead by the limit and an interval
of the farm; one that is behind, by the limit and the delay of the fastest status.

The last `KEPT` spans of a clock are intersected, the newest first, as far as they agree: if they do not, one
of the clocks was set. The farm's clock is the median of the clocks of the recent members, this node's
included, so a minority cannot make it seem wrong, whatever its clocks show and its statuses say. With two
recent members, this node's router is the third clock; where it tells no date, it is not known whose clock is
wrong, so neither offers itself, unless its router confirms it. This node's clock is also off if its router's
differs: the router decides what the network gets to see. A router that tells an absurd date keeps only this
node from offering itself, a majority of wrong clocks those members whose clocks are right: nothing shows
which is which.

A clock that was off agrees again below half of the limit, so that one at the limit does not come and go.

All times are ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any, Literal

import msgspec

from garlicfarm.publishing.orders import ClockReading

State = Literal["agrees", "off"]
Event = Literal["over the limit", "below half of it"]

STATES: Mapping[State, Mapping[Event, State]] = {
    "agrees": {"over the limit": "off"},
    "off": {"below half of it": "agrees"},
}
"""Each state, and the next one after each event that it knows."""

DEFAULT_LIMIT_MS = 60_000
KEPT = 4
"""Spans of a clock, and statuses of this node that others may name."""
_FOREVER_MS = 1 << 64


class Span(msgspec.Struct, frozen=True):
    """A clock is ahead of another by ``least_ms`` to ``most_ms``; negative: behind."""

    least_ms: int
    most_ms: int


_UNKNOWN = Span(-_FOREVER_MS, _FOREVER_MS)


class OwnClock:
    """``state``: of `STATES`. ``farm_ms``, ``router_ms``: by how much this node's clock is certainly ahead of
    the farm's and its router's, at least; negative: behind; 0: it agrees, or nothing is known."""

    def __init__(self, limit_ms: int = DEFAULT_LIMIT_MS) -> None:
        """``limit_ms``: ≥ 2."""
        self.state: State = "agrees"
        self.farm_ms = 0
        self.router_ms = 0
        self._limit_ms = limit_ms
        self._posted: deque[tuple[int, int]] = deque(maxlen=KEPT)  # own statuses: index, and when begun
        self._seen: dict[int, int] = {}  # the index of each member's newest status
        self._logins: dict[int, ClockReading] = {}
        self._spans: dict[int, deque[Span]] = {}
        self._clocks: dict[int, Span] = {}  # what they have in common
        self._told: dict[int, ClockReading | None] = {}  # by publisher
        self._routers: dict[int, Span] = {}
        self._others: tuple[int, ...] = ()

    @property
    def is_off(self) -> bool:
        """Whether this member is not to offer itself."""
        return self.state == "off"

    # ------------------------------------------------------------------ what is known of other clocks

    def on_own_status(self, index: int, begun_ms: int) -> None:
        """A status of this process is committed at ``index``. ``begun_ms``: clock of leases."""
        if not self._posted or index > self._posted[-1][0]:
            self._posted.append((index, begun_ms))

    def on_status(self, member: int, index: int, date_ms: int, applied: int | None, now_ms: int) -> None:
        """The newest status of another member, at ``index``, is applied here; each counts once. ``applied``:
        what it names as such. ``now_ms``: clock of leases."""
        if index <= self._seen.get(member, 0):
            return
        self._seen[member] = index
        known_ms = [begun_ms for own, begun_ms in self._posted if applied is not None and own <= applied]
        most_ms = date_ms - max(known_ms) if known_ms else _FOREVER_MS
        self._add(member, Span(date_ms - now_ms, most_ms))

    def on_login(self, member: int, told: ClockReading, now_ms: int, wall_ms: int) -> None:
        """What another member told when it let this one log in last. Another answer than before has come just
        now."""
        if told != self._logins.get(member):
            self._logins[member] = told
            if (span := _span(told, wall_ms - now_ms)) is not None:
                self._add(member, span)

    def on_router(self, publisher: int, told: ClockReading | None, now_ms: int, wall_ms: int) -> None:
        """What the router of a publisher has told last; None: nothing, or it is gone. Another answer than
        before has come just now."""
        if told == self._told.get(publisher):
            return
        self._told[publisher] = told
        self._routers.pop(publisher, None)
        if told is not None and (span := _span(told, wall_ms - now_ms)) is not None:
            self._routers[publisher] = span

    def _add(self, clock: int, span: Span) -> None:
        spans = self._spans.setdefault(clock, deque(maxlen=KEPT))
        spans.append(span)
        self._clocks[clock] = _common(spans)

    # ------------------------------------------------------------------ what follows

    def retain(self, members: Set[int]) -> None:
        """Forget the clocks of all but these."""
        known: tuple[dict[int, Any], ...] = self._seen, self._logins, self._spans, self._clocks
        for found in known:
            for member in found.keys() - members:
                del found[member]

    def step(self, now_ms: int, wall_ms: int, others: Sequence[int]) -> bool:
        """Judge this node's clock; whether `is_off` has changed. ``others``: the recent members but this
        one."""
        self._others = tuple(others)
        ahead_ms = wall_ms - now_ms
        routers = [_certain(ahead_ms, span) for span in self._routers.values()]
        self.router_ms = max(routers, key=abs, default=0)
        offs = [_certain(ahead_ms, self._clocks.get(member, _UNKNOWN)) for member in others]
        if len(offs) == 1 and not routers:
            self.farm_ms = offs[0]
        else:
            witness = [self.router_ms] if len(offs) == 1 else []
            self.farm_ms = _middle([0, *offs, *witness])
        most_ms = max(abs(self.farm_ms), abs(self.router_ms))
        if most_ms > self._limit_ms:
            return self._go("over the limit")
        return 2 * most_ms < self._limit_ms and self._go("below half of it")

    @property
    def problem(self) -> str:
        """How far this node's clock is off, and what to do, as the rest of a sentence; "" while it agrees."""
        if not self.is_off:
            return ""
        whose, wrong, off_ms = "the farm's", "it", self.farm_ms
        if abs(self.router_ms) > abs(self.farm_ms):
            whose, wrong, off_ms = "its router's", "the wrong one", self.router_ms
        elif len(self._others) == 1:
            whose, wrong = f"member {self._others[0]}'s", "the wrong one"
        word = "ahead of" if off_ms > 0 else "behind"
        return f"is at least {rough_time(abs(off_ms))} {word} {whose}: correct {wrong}"

    def figures(self) -> dict[str, object]:
        """For administrators: ready for JSON."""
        return {
            "state": self.state,
            "limit_ms": self._limit_ms,
            "ahead_of_farm_ms": self.farm_ms,
            "ahead_of_router_ms": self.router_ms if self._routers else None,
            "problem": self.problem,
        }

    def _go(self, event: Event) -> bool:
        following = STATES[self.state].get(event)
        self.state = following or self.state
        return following is not None


def _span(told: ClockReading, own_ms: int) -> Span | None:
    """None: this node's clock was set between question and answer. ``own_ms``: by how much it is ahead of the
    clock of leases."""
    if told.answered_ms < told.asked_ms:
        return None
    return Span(own_ms + told.date_ms - told.answered_ms, own_ms + told.date_ms - told.asked_ms)


def _common(spans: Collection[Span]) -> Span:
    """What the newest spans of a clock have in common, as far back as they have anything."""
    least_ms, most_ms = _UNKNOWN.least_ms, _UNKNOWN.most_ms
    for span in reversed([*spans]):
        if max(least_ms, span.least_ms) > min(most_ms, span.most_ms):
            break
        least_ms, most_ms = max(least_ms, span.least_ms), min(most_ms, span.most_ms)
    return Span(least_ms, most_ms)


def _certain(own_ms: int, other: Span) -> int:
    """By how much a clock is certainly ahead of another; 0: it may agree."""
    return max(own_ms - other.most_ms, 0) + min(own_ms - other.least_ms, 0)


def _middle(values: list[int]) -> int:
    """The median; of the two middle ones that which is nearer to 0, and 0 if that is between them."""
    ordered, count = sorted(values), len(values)
    low, high = ordered[(count - 1) // 2], ordered[count // 2]
    return max(low, 0) + min(high, 0)


def rough_time(ms: int) -> str:
    """A time ≥ 0 in words, such as ``3 min``."""
    units = (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
    unit, length = next(((unit, length) for unit, length in units if ms >= 2 * length), ("ms", 1))
    return f"{round(ms / length)} {unit}"
