"""What a page says of a farm's rows, however many there are: two passes over them, in bounded memory.

The first pass finds what the second one needs: where the charts begin and end, and in which parts of a
member's scores its percentiles are. All scores of a year would be up to a million numbers for each member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from msgspec.structs import replace

from garlicfarm_plugin_spark.charts import WIDTH, Axis, Bar, Curve, Lane, bars
from garlicfarm_plugin_spark.history import SCORE_SHARES, WHOLE_MS, Course, Figures, State, Step
from garlicfarm_plugin_spark.period import bounds

MOST_BARS = WIDTH
"""More could not be told apart. If there were more, each is of several periods."""

_SCORES_STEP = 1_000

Row = Mapping[str, Any]


class Change(NamedTuple):
    """A row that says what changed, and the one before it; None: there is none."""

    before: Row | None
    row: Row


class Outline:
    """The first pass, of rows with the columns `history.INPUT` and ``changed``, by index."""

    def __init__(self, begin_ms: int, most_changes: int) -> None:
        """``begin_ms``: rows before this farm time only tell the first one what was before it."""
        self.first_index = self.last_index = 0
        self.begin_ms = self.end_ms = 0
        self.scores: list[int] = []
        """the lowest and the highest, or none"""
        self.changes_of_publisher = 0
        self.changes: deque[Change] = deque(maxlen=most_changes)
        """the newest, without those of the order alone"""
        self.least_ms = begin_ms
        self._before: Row | None = None
        self._course = Course()
        self.all_time = Figures(WHOLE_MS)

    def follow(self, row: Row) -> None:
        before, self._before = self._before, row
        if row["farm_time_ms"] < self.least_ms:
            return
        if not self.first_index:
            self.first_index = row["log_index"]
        elif before is not None and before["publisher"] != row["publisher"]:
            self.changes_of_publisher += 1
        self.last_index = row["log_index"]
        if {*row["changed"]} - {"order"}:
            self.changes.append(Change(before, row))
        step = self._course.follow(row)
        if step is None:
            return
        _add(self.all_time, step, {})
        if step.begin_ms < step.end_ms:
            self.begin_ms, self.end_ms = self.begin_ms or step.begin_ms, step.end_ms
            if found := [*self.scores, *step.state.scores.values()]:
                self.scores = [min(found), max(found)]

    @property
    def axis(self) -> Axis | None:
        """None: there are no two rows at different times."""
        return Axis(self.begin_ms, max(self.end_ms, self.begin_ms + 60_000)) if self.begin_ms else None

    @property
    def members(self) -> list[int]:
        return sorted(self.all_time.sums)

    def parts(self) -> dict[int, frozenset[int]]:
        """For each member the parts of its scores, by their lowest one, that its percentiles are in."""
        return {
            member: frozenset(chain(*bounds(sums.scores, SCORE_SHARES)))
            for member, sums in self.all_time.sums.items()
            if sums.scores
        }


class Charts:
    """The second pass, of the rows that the outline counted."""

    def __init__(self, outline: Outline, axis: Axis, period_ms: int, shown: Iterable[int]) -> None:
        """``period_ms``: of a bar, one of `PERIODS_MS`. ``shown``: the members that have charts."""
        periods = axis.end_ms // period_ms - axis.begin_ms // period_ms + 1
        self.periods_a_bar = -(-periods // (MOST_BARS - 1))  # one more where the first begins before the axis
        self._axis = axis
        self.lanes = {member: Lane() for member in shown}
        self.curves = {member: Curve() for member in shown}
        self._bars: dict[int, list[dict[str, Any]]] = {member: [] for member in self.lanes}
        self._figures = Figures(period_ms * self.periods_a_bar)
        self._course = Course()
        self._first_index, self._least_ms = outline.first_index, outline.least_ms
        self._parts = outline.parts()
        self.all_time = Figures(WHOLE_MS)
        """of each member, in one period"""

    def follow(self, row: Row) -> None:
        if row["log_index"] < self._first_index or row["farm_time_ms"] < self._least_ms:
            return
        step = self._course.follow(row)
        if step is None:
            return
        _add(self.all_time, step, self._parts)
        self._keep(self._figures.add(step))
        columns = [*self._axis.columns(step.begin_ms, step.end_ms)]
        for member, lane in self.lanes.items():
            lane.add(columns, _word(member, step.state))
            score = step.state.scores.get(member)
            if score is not None and member in step.state.recent:  # else it is that of long ago
                self.curves[member].add(columns, score)

    def bars(self, member: int, height: int) -> list[Bar]:
        self._keep(self._figures.rest())
        return bars(self._axis, self._bars[member], self._figures.period_ms, height)

    def _keep(self, figures: Iterable[dict[str, Any]]) -> None:
        for each in figures:
            if each["member"] in self._bars:
                self._bars[each["member"]].append(each)


def _add(all_time: Figures, step: Step, parts: Mapping[int, frozenset[int]]) -> None:
    """Add a step to the figures of all the time. Scores outside of ``parts`` count as the lowest one of
    theirs: percentiles within those parts stay exact."""
    scores = {}
    for member, score in step.state.scores.items():
        part = score - score % _SCORES_STEP
        scores[member] = score if part in parts.get(member, ()) else part
    all_time.add(step._replace(state=replace(step.state, scores=scores)))


def _word(member: int, state: State) -> str:
    """What the lane of ``member`` shows for a state."""
    if member == state.publisher:
        return "publisher"
    if member in state.holders:
        return "holder"
    return "recent" if member in state.recent else ""
