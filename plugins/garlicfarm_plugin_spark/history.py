"""Availability, tenure, flaps, hand-over times and scores of each member, by hour or day of farm time.

A row of `rankings` says what holds from its farm time to that of the next row. `Course` follows a farm's rows
by index, and `Figures` adds up what lies between them. A `History` does both, wherever the rows come from:
stored files, the log, a table or a stream of Spark.

A state counts for two hours at most. `rankings` has a row at least every hour in which entries are committed;
where there is none for longer, nothing is known of the members, and the time is in no figure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from garlicfarm_plugin_spark.period import PERIODS_MS, Roles, percentiles, pieces

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


class State(msgspec.Struct):
    """What a row says of the members."""

    publisher: int | None
    holders: Collection[int]
    recent: Collection[int]
    order: Collection[int]
    scores: Mapping[int, int]


class Step(NamedTuple):
    """What a row ends, and what comes with it."""

    begin_ms: int
    end_ms: int
    """``state`` held from ``begin_ms`` until then, farm time; not at all where they are equal"""
    state: State
    time_ms: int
    """of the row"""
    publisher: int | None
    """of the row"""
    is_flap: bool
    handover_ms: int | None
    """see `Roles.follow`"""


class Course(msgspec.Struct):
    """What has to be known of the rows of one farm so far, to go on with the next one."""

    index: int = 0
    roles: Roles = msgspec.field(default_factory=Roles)
    state: State | None = None

    def follow(self, row: Mapping[str, Any]) -> Step | None:
        """Go on to ``row``, which has the columns `INPUT`. None: it is the first one, or at or before the
        newest index."""
        if row["log_index"] <= self.index:
            return None
        begin_ms, before = self.roles.time_ms, self.state
        turn: tuple[bool, int | None] = False, None
        if row["farm_time_ms"] > 0:  # there was a status
            turn = self.roles.follow(
                row["farm_time_ms"], row["publisher"], row["holders"], row["interval_ms"]
            )
        self.index = row["log_index"]
        self.state = State(*(row[name] for name in State.__struct_fields__))
        if before is None or begin_ms < 0:
            return None
        time_ms = self.roles.time_ms
        return Step(begin_ms, min(time_ms, begin_ms + LONGEST_MS), before, time_ms, row["publisher"], *turn)


class _Sums(msgspec.Struct):
    """The figures of one period and member."""

    known_ms: int = 0
    recent_ms: int = 0
    publisher_ms: int = 0
    flaps: int = 0
    scores: dict[int, int] = {}
    """score → for how long, ms"""
    handovers: dict[int, int] = {}
    """ms → how many"""

    def hold(self, member: int, state: State, ms: int) -> None:
        self.known_ms += ms
        if member in state.recent:
            self.recent_ms += ms
        if member == state.publisher:
            self.publisher_ms += ms
        if (score := state.scores.get(member)) is not None:
            self.scores[score] = self.scores.get(score, 0) + ms

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


class Figures(msgspec.Struct):
    """The figures of one farm: steps go in, and periods come out once they are over."""

    period_ms: int
    """one of `PERIODS_MS`, a multiple of one, or `WHOLE_MS`"""
    start_ms: int = 0
    """of the period that the newest step ends in"""
    sums: dict[int, _Sums] = {}
    """by member"""

    def add(self, step: Step) -> list[dict[str, Any]]:
        """Go on by ``step``.

        :returns: of the periods that are over the columns `OUTPUT` from ``period`` on, which is
            ``period_ms``, since 1970; by period and member.
        """
        found = []
        for begin_ms, ms in pieces(step.begin_ms, step.end_ms, self.period_ms):
            found += self._go_on(begin_ms)
            for member in step.state.order:
                self._of(member).hold(member, step.state, ms)
        if step.publisher is not None and (step.is_flap or step.handover_ms is not None):
            found += self._go_on(step.time_ms)
            sums = self._of(step.publisher)
            sums.flaps += step.is_flap
            if step.handover_ms is not None:
                sums.handovers[step.handover_ms] = sums.handovers.get(step.handover_ms, 0) + 1
        return found

    def rest(self) -> list[dict[str, Any]]:
        """Of the period that the newest step ends in."""
        found = [
            {"period_ms": self.start_ms, "member": member, **sums.figures()}
            for member, sums in sorted(self.sums.items())
        ]
        self.sums = {}
        return found

    def _go_on(self, time_ms: int) -> list[dict[str, Any]]:
        start_ms = time_ms - time_ms % self.period_ms
        if start_ms == self.start_ms:  # a course does not go back
            return []
        found, self.start_ms = self.rest(), start_ms
        return found

    def _of(self, member: int) -> _Sums:
        return self.sums.setdefault(member, _Sums())


class History(msgspec.Struct):
    """The history of one farm so far. It goes on from its JSON."""

    figures: Figures
    course: Course = msgspec.field(default_factory=Course)

    @classmethod
    def by(cls, by: By) -> History:
        return cls(Figures(PERIODS_MS[by]))

    def follow(self, rows: Iterable[Mapping[str, Any]], *, is_all: bool) -> Iterator[dict[str, Any]]:
        """Go on to rows by index, which have the columns `INPUT`: the periods that are over, as of
        `Figures.add`. ``is_all``: no more rows will follow, so the last period is over, too."""
        for row in rows:
            if step := self.course.follow(row):
                yield from self.figures.add(step)
        if is_all:
            yield from self.figures.rest()


def stored(directory: Path, by: By, farm: str | None = None) -> Iterator[dict[str, Any]]:
    """The history of the rankings that ``directory`` holds, of the farm of this name or all: the columns
    `OUTPUT`, but ``period_ms`` (since 1970) for ``period``; by farm, its id, period and member.

    Raises `ConfigError`: there are none, or no two at different times.
    """
    from garlicfarm_plugin_spark.stored_rows import no_time, stored_farms

    is_empty = True
    for each in stored_farms(directory, farm):
        for farm_id in sorted({file.farm_id for file in each.files()}):
            for line in History.by(by).follow(each.rows(farm_id, INPUT[2:]), is_all=True):
                is_empty = False
                yield {"farm": each.name, "farm_id": farm_id, **line}
    if is_empty:
        raise no_time(directory, farm)
