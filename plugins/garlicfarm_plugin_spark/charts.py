"""The geometry of a report's charts: farm time to the right, one lane or one line for each member.

A chart is as many columns wide as it has units, however long the history is, so the page stays small. In a
column, a lane shows what held for the longest part of it, and a line the mean over time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, NamedTuple

WIDTH = 900
_MINUTE_MS = 60_000
_STEPS_MIN = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080, 43_200, 129_600, 525_600)
_MOST_TICKS = 8
_SCORE_STEPS = (10_000, 20_000, 50_000, 100_000, 200_000, 500_000)


@dataclass(frozen=True)
class Axis:
    """Farm time from ``begin_ms`` to ``end_ms``, at least a minute, over `WIDTH`."""

    begin_ms: int
    end_ms: int

    def x(self, time_ms: float) -> float:
        """The place of ``time_ms``."""
        return (time_ms - self.begin_ms) / (self.end_ms - self.begin_ms) * WIDTH

    def ticks(self) -> list[tuple[float, str]]:
        """Places of round dates, UTC, and what to write there."""
        span_ms = self.end_ms - self.begin_ms
        fitting = (step * _MINUTE_MS for step in _STEPS_MIN if span_ms <= step * _MINUTE_MS * _MOST_TICKS)
        step_ms = next(fitting, _STEPS_MIN[-1] * _MINUTE_MS)
        form = "%Y-%m-%d" if step_ms >= 1440 * _MINUTE_MS else "%H:%M"
        first_ms = -(-self.begin_ms // step_ms) * step_ms
        return [
            (round(self.x(time_ms), 1), f"{datetime.fromtimestamp(time_ms / 1000, UTC):{form}}")
            for time_ms in range(first_ms, self.end_ms + 1, step_ms)
        ]

    def columns(self, begin_ms: int, end_ms: int) -> Iterator[tuple[int, float]]:
        """The columns that a time falls in: (number, ms of it)."""
        column_ms = (self.end_ms - self.begin_ms) / WIDTH
        column = int((begin_ms - self.begin_ms) / column_ms)
        time_ms = float(begin_ms)
        while time_ms < end_ms and column < WIDTH:
            bound_ms = min(float(end_ms), self.begin_ms + (column + 1) * column_ms)
            if bound_ms > time_ms:
                yield column, bound_ms - time_ms
            time_ms = max(time_ms, bound_ms)
            column += 1


class Lane:
    """What one member's lane shows: in each column the word that held for the longest part of it."""

    def __init__(self) -> None:
        self._shares: list[dict[str, float]] = [{} for _ in range(WIDTH)]

    def add(self, columns: Iterable[tuple[int, float]], word: str) -> None:
        """``columns``: of `Axis`; ``word``: empty where there is nothing to show."""
        for column, ms in columns:
            share = self._shares[column]
            share[word] = share.get(word, 0.0) + ms

    def stretches(self) -> list[tuple[int, int, str]]:
        """(first column, number of columns, word)"""
        words = [max(share, key=share.__getitem__, default="") for share in self._shares]
        found = []
        for word, columns in groupby(range(WIDTH), key=words.__getitem__):
            if word:
                numbers = list(columns)
                found.append((numbers[0], len(numbers), word))
        return found


def score_ticks(lowest: int, highest: int) -> list[int]:
    """Round scores, three to six of them at equal distances, around these two."""
    step = next(step for step in _SCORE_STEPS if highest - lowest <= 4 * step)
    low = lowest // step * step
    high = max(-(-highest // step) * step, low + 2 * step)
    return [*range(low, high + 1, step)]


class Curve:
    """One member's score: in each column the mean over time."""

    def __init__(self) -> None:
        self._sums = [[0.0, 0.0] for _ in range(WIDTH)]

    def add(self, columns: Iterable[tuple[int, float]], score: int) -> None:
        """``columns``: of `Axis`."""
        for column, ms in columns:
            self._sums[column][0] += score * ms
            self._sums[column][1] += ms

    def lines(self, scale: tuple[int, int], height: int) -> list[str]:
        """Its points, a list for each stretch in which there is a score.

        :param scale: scores at the bottom and at the top.
        """
        low, high = scale
        found = []
        for is_known, columns in groupby(range(WIDTH), key=lambda column: self._sums[column][1] > 0):
            if is_known:
                places = []
                for column in columns:
                    total, ms = self._sums[column]
                    places.append((column, f"{(high - total / ms) / (high - low) * height:.1f}"))
                last, place = places[-1]
                found.append(" ".join(f"{x},{y}" for x, y in [*places, (last + 1, place)]))
        return found


class Bar(NamedTuple):
    """Of one period: place, width, heights out of ``height``, and the words for it."""

    x: float
    width: float
    available: float
    named: float
    title: str


def bars(axis: Axis, figures: Iterable[Mapping[str, Any]], period_ms: int, height: int) -> list[Bar]:
    """Availability and tenure of one member, a bar for each period of `history.figures`."""
    found = []
    for each in figures:
        if each["availability"] is None:
            continue
        begin = max(axis.x(each["period_ms"]), 0.0)
        end = min(axis.x(each["period_ms"] + period_ms), float(WIDTH))
        when = f"{datetime.fromtimestamp(each['period_ms'] / 1000, UTC):%Y-%m-%d %H:%M}"
        title = f"{when}: available {each['availability']:.1%}, publisher {each['tenure']:.1%}"
        width = max(end - begin - 1, 0.5)
        found.append(
            Bar(
                round(begin, 1),
                round(width, 1),
                round(each["availability"] * height, 1),
                round(each["tenure"] * height, 1),
                title,
            )
        )
    return found
