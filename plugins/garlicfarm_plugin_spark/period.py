"""The arithmetic of a farm's history: periods of farm time, flaps, hand-overs, percentiles by time.

A history is a sequence of states at indexes, each with the farm time of its entry. A state holds from its own
time to that of the next one. Farm time may go back, where a member with a later date is no longer recent; a
history's time stays where it was until farm time has caught up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from math import ceil, floor

import msgspec

FLAP_INTERVALS = 10
"""A change of publisher from A to B and back to A is a flap if B was named for less than this many of the
farm's intervals."""

PERIODS_MS: Mapping[str, int] = {"hour": 3_600_000, "day": 86_400_000}
"""The periods of a history, UTC, by name."""


class Roles(msgspec.Struct):
    """Follows who is named and who holds, from one state to the next. The first state only begins it."""

    time_ms: int = -1
    """of the newest state; −1: there was none"""
    publisher: int | None = None
    since_ms: int = 0
    """when ``publisher`` was named"""
    before: int | None = None
    """the publisher before this one, None also if no member was named"""
    is_handover: bool = False
    """whether the publisher was named, and others still hold"""

    def follow(
        self, time_ms: int, publisher: int | None, holders: Collection[int], interval_ms: int
    ) -> tuple[bool, int | None]:
        """Go on to the next state.

        :param time_ms: its farm time.
        :param holders: members named and not yet released.
        :param interval_ms: the farm's interval there.
        :returns: whether this state ends a flap, and how long the hand-over took that it ends: farm time from
            the naming of the publisher until it is the only holder, in ms; None if it ends none.
        """
        begins = self.time_ms < 0
        self.time_ms = max(self.time_ms, time_ms)
        if begins:
            self.publisher, self.since_ms = publisher, self.time_ms
            return False, None
        is_flap = False
        if publisher != self.publisher:
            is_flap = (
                None not in (publisher, self.publisher)
                and publisher == self.before
                and self.time_ms - self.since_ms < FLAP_INTERVALS * interval_ms
            )
            self.before, self.publisher, self.since_ms = self.publisher, publisher, self.time_ms
            self.is_handover = publisher is not None
        if self.is_handover and {*holders} == {publisher}:
            self.is_handover = False
            return is_flap, self.time_ms - self.since_ms
        return is_flap, None


def pieces(begin_ms: int, end_ms: int, period_ms: int) -> Iterator[tuple[int, int]]:
    """The time from ``begin_ms`` to ``end_ms`` cut where periods begin: (begin of the piece, ms in it), none
    of 0 ms."""
    while begin_ms < end_ms:
        cut = min(end_ms, begin_ms - begin_ms % period_ms + period_ms)
        yield begin_ms, cut - begin_ms
        begin_ms = cut


def date_of(time_ms: int) -> str:
    """The date in UTC, as 2026-11-23. ``time_ms``: since 1970, up to the year 9999."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%d")


def percentiles(weights: Mapping[int, int], shares: Sequence[float]) -> list[float]:
    """The percentiles of values that count ``weights`` times each, interpolated as Spark's ``percentile``.

    :param weights: value → how often, 1 or more; not empty.
    :param shares: 0 … 1.
    """
    last = sum(weights.values()) - 1
    return [
        lower + (upper - lower) * (last * share % 1)
        for share, (lower, upper) in zip(shares, bounds(weights, shares), strict=True)
    ]


def bounds(weights: Mapping[int, int], shares: Sequence[float]) -> list[tuple[int, int]]:
    """The values that each of the `percentiles` is between."""
    values = sorted(weights)
    ends = [*accumulate(weights[value] for value in values)]
    positions = [(ends[-1] - 1) * share for share in shares]
    return [
        (values[bisect_right(ends, floor(position))], values[bisect_right(ends, ceil(position))])
        for position in positions
    ]
