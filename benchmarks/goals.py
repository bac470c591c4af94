"""The goals of figures (``goals.toml``): read, and held against what was measured."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import msgspec.toml

GOALS_FILE = Path(__file__).with_name("goals.toml")


class Goal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of both."""

    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("either `at_most` or `at_least` is needed")

    def is_met(self, value: float, slack: float = 0.0) -> bool:
        """``slack``: the share by which ``value`` may miss the goal."""
        if self.at_most is not None:
            return value <= self.at_most * (1 + slack)
        assert self.at_least is not None
        return value >= self.at_least * (1 - slack)


class Goals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``slack``: a judged figure fails where it misses its goal by more than this share. ``yardstick_us``: of
    the machine to which CPU times refer. ``judged``: goals that were reached once; ``shown``: others, by
    figure."""

    slack: float
    yardstick_us: float
    judged: Mapping[str, Goal]
    shown: Mapping[str, Goal]

    def __post_init__(self) -> None:
        if both := self.judged.keys() & self.shown.keys():
            raise ValueError(f"judged and shown: {', '.join(both)}")

    def of(self, figure: str) -> Goal | None:
        return self.judged.get(figure) or self.shown.get(figure)

    def accepts(self, figure: str, value: float) -> bool:
        """False if a judged figure misses its goal by more than the slack."""
        goal = self.judged.get(figure)
        return goal is None or goal.is_met(value, self.slack)

    def scaled(self, value: float, yardstick_us: float) -> float:
        """A CPU time on the reference machine, from that on a machine with this yardstick."""
        return value * self.yardstick_us / yardstick_us


def read_goals(path: Path = GOALS_FILE) -> Goals:
    """Raises `msgspec.ValidationError`: the file is wrong."""
    return msgspec.toml.decode(path.read_bytes(), type=Goals)


def report_goal(
    goals: Goals, figure: str, measured: Sequence[float], *, unjudged: str = "", **values: object
) -> bool:
    """Print a figure as a line of JSON: the median of all rounds and its goal. False if the goal was reached
    once, and is missed by more than the slack. ``unjudged``: the reason why it counts for nothing."""
    value, goal = statistics.median(measured), goals.of(figure)
    ok = bool(unjudged) or goals.accepts(figure, value)
    line: dict[str, object] = {"figure": figure, "ok": ok, "value": _rounded(value)}
    if len(measured) > 1:
        line["rounds"] = [_rounded(each) for each in measured]
    if goal is not None:
        limit = ("at_least", goal.at_least) if goal.at_most is None else ("at_most", goal.at_most)
        line |= dict([limit], met=goal.is_met(value), judged=unjudged or figure in goals.judged)
    print(json.dumps({**line, **values, "load": round(os.getloadavg()[0], 2)}), flush=True)
    return ok


def _rounded(value: float) -> float:
    """Four significant digits are more than a busy machine gives."""
    return float(f"{value:.4g}")
