"""Availability, tenure, flaps, hand-over times and scores of each member, by hour or day of farm time.

A row of `rankings` says what holds from its farm time to that of the next row. `Course` follows a farm's rows
by index and returns what each adds to the figures of a period and member, as `Share`. `Figures` in this
process and `garlicfarm_plugin_spark.history_query` in Spark do the same with them: add up, take percentiles.

A state counts for two hours at most. `rankings` has a row at least every hour in which entries are committed;
where there is none for longer, nothing is known of the members, and the time is in no figure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from garlicfarm_plugin_spark.period import PERIODS_MS, Roles, percentiles, pieces

__all__ = [
    "INPUT",
    "LONGEST_MS",
    "OUTPUT",
    "SCORE_SHARES",
    "WHOLE_MS",
    "By",
    "Course",
    "Figures",
    "Share",
    "Sums",
    "figures",
    "stored",
]

By = Literal["hour", "day"]

LONGEST_MS = 2 * PERIODS_MS["hour"]

WHOLE_MS = 2**62
"""A period that is longer than any history."""

INPUT = (
    *("farm", "farm_id", "log_index", "farm_time_ms", "interval_ms", "publisher"),
    *("holders", "recent", "order", "scores"),
)
"""The columns of `rankings` that a history needs."""

OUTPUT = (
    "farm string, farm_id string, period timestamp, member bigint, known_ms bigint, availability double,"
    " tenure double, flaps bigint, handovers bigint, handover_p50_ms double, handover_most_ms bigint,"
    " score_p05 double, score_p50 double, score_p95 double"
)
"""The columns of a history. ``period``: when it begins; ``known_ms``: for how much of it the state of this
member is known, the whole of which ``availability`` (recent) and ``tenure`` (publisher) are shares;
``flaps``: how often it took the role back within `FLAP_INTERVALS`; ``handovers``: how often it became the
only holder, with the median and the longest time from its naming; the score's percentiles count each by the
time that it lasted. Null: there is no such value."""

SCORE_SHARES = (0.05, 0.5, 0.95)


class Share(NamedTuple):
    """What a row adds to the figures of one period and member."""

    time_ms: int
    """a farm time in the period"""
    member: int
    known_ms: int = 0
    recent_ms: int = 0
    publisher_ms: int = 0
    score: int | None = None
    """held for ``known_ms``"""
    flaps: int = 0
    handover_ms: int | None = None


class Course(msgspec.Struct):
    """What has to be known of the rows of one farm so far, to go on with the next one."""

    index: int = 0
    roles: Roles = msgspec.field(default_factory=Roles)
    members: tuple[int, ...] = ()
    recent: tuple[int, ...] = ()
    scores: dict[int, int] = {}

    def follow(self, row: Mapping[str, Any], period_ms: int) -> Iterator[Share]:
        """Go on to ``row``, which has the columns `INPUT`. One at or before the newest index adds nothing."""
        if row["log_index"] <= self.index:
            return
        roles, publisher = self.roles, self.roles.publisher
        begin_ms = roles.time_ms
        is_flap, handover_ms = False, None
        if row["farm_time_ms"] > 0:  # there was a status
            found = roles.follow(row["farm_time_ms"], row["publisher"], row["holders"], row["interval_ms"])
            is_flap, handover_ms = found
        if begin_ms >= 0:
            for time_ms, ms in pieces(begin_ms, min(roles.time_ms, begin_ms + LONGEST_MS), period_ms):
                for member in self.members:
                    recent_ms = ms if member in self.recent else 0
                    publisher_ms = ms if member == publisher else 0
                    yield Share(time_ms, member, ms, recent_ms, publisher_ms, self.scores.get(member))
        if is_flap or handover_ms is not None:
            yield Share(roles.time_ms, row["publisher"], flaps=int(is_flap), handover_ms=handover_ms)
        self.index = row["log_index"]
        self.members, self.recent = tuple(row["order"]), tuple(row["recent"])
        self.scores = dict(row["scores"])


class Sums:
    """The figures of one period and member."""

    def __init__(self) -> None:
        self.known_ms = self.recent_ms = self.publisher_ms = self.flaps = 0
        self.scores: defaultdict[int, int] = defaultdict(int)
        self.handovers: defaultdict[int, int] = defaultdict(int)

    def add(self, share: Share) -> None:
        self.known_ms += share.known_ms
        self.recent_ms += share.recent_ms
        self.publisher_ms += share.publisher_ms
        self.flaps += share.flaps
        if share.score is not None:
            self.scores[share.score] += share.known_ms
        if share.handover_ms is not None:
            self.handovers[share.handover_ms] += 1

    def figures(self) -> dict[str, Any]:
        scores = percentiles(self.scores, SCORE_SHARES) if self.scores else [None] * len(SCORE_SHARES)
        return {
            "known_ms": self.known_ms,
            "availability": self.recent_ms / self.known_ms if self.known_ms else None,
            "tenure": self.publisher_ms / self.known_ms if self.known_ms else None,
            "flaps": self.flaps,
            "handovers": sum(self.handovers.values()),
            "handover_p50_ms": percentiles(self.handovers, (0.5,))[0] if self.handovers else None,
            "handover_most_ms": max(self.handovers, default=None),
            **{f"score_p{share * 100:02.0f}": at for share, at in zip(SCORE_SHARES, scores, strict=True)},
        }


class Figures:
    """The figures of one farm: rows go in by index, and periods come out once they are over."""

    def __init__(self, period_ms: int) -> None:
        """``period_ms``: one of `PERIODS_MS`, a multiple of one, or `WHOLE_MS`."""
        self._period_ms = period_ms
        self._course = Course()
        self._start_ms = 0
        self._of: tuple[str, str] = ("", "")
        self._sums: defaultdict[int, Sums] = defaultdict(Sums)

    def follow(self, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Go on to ``row``, which has the columns `INPUT`.

        :returns: the columns `OUTPUT` of the periods that are over, but ``period_ms`` (since 1970) for
            ``period``; by period and member.
        """
        self._of = row["farm"], row["farm_id"]
        for share in self._course.follow(row, self._period_ms):
            start_ms = share.time_ms - share.time_ms % self._period_ms
            if start_ms != self._start_ms:  # a course does not go back
                yield from self.rest()
                self._start_ms = start_ms
            self._sums[share.member].add(share)

    def rest(self) -> Iterator[dict[str, Any]]:
        """Of the period that the newest row is in."""
        names = ("farm", "farm_id", "period_ms", "member")
        for member in sorted(self._sums):
            of = (*self._of, self._start_ms, member)
            yield {**dict(zip(names, of, strict=True)), **self._sums[member].figures()}
        self._sums.clear()


def figures(rows: Iterable[Mapping[str, Any]], period_ms: int) -> Iterator[dict[str, Any]]:
    """The history of rows with the columns `INPUT`, which come by farm, its id and index; as `Figures`."""
    for _, of_farm in groupby(rows, itemgetter("farm", "farm_id")):
        found = Figures(period_ms)
        for row in of_farm:
            yield from found.follow(row)
        yield from found.rest()


def stored(directory: Path, by: By, farm: str | None = None) -> Iterator[dict[str, Any]]:
    """The history of the rankings that ``directory`` holds, of the farm of this name or all; as `figures`.

    Raises `ConfigError`: there are none, or no two at different times.
    """
    from garlicfarm_plugin_spark.stored_rows import no_time, stored_farms

    is_empty = True
    for each in stored_farms(directory, farm):
        for farm_id in sorted({file.farm_id for file in each.files()}):
            for line in figures(each.rows(farm_id, INPUT[3:]), PERIODS_MS[by]):
                is_empty = False
                yield line
    if is_empty:
        raise no_time(directory, farm)
