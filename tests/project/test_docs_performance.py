"""The goals in docs/explanation/performance.md are those that `make bench` judges."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.goals import Goal, read_goals

PAGE = Path(__file__).parents[2] / "docs/explanation/performance.md"


def test_page_lists_every_goal_as_it_is_judged() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| ([≤≥]) ([\d.,]+) \|.*\| (judged|shown) \|$", PAGE.read_text(), re.MULTILINE
    )
    listed = {}
    for figure, sign, number, table in rows:
        value = float(number.replace(",", ""))
        listed[figure] = (Goal(at_most=value) if sign == "≤" else Goal(at_least=value), table)
    goals = read_goals()
    assert listed == {
        **{figure: (goal, "judged") for figure, goal in goals.judged.items()},
        **{figure: (goal, "shown") for figure, goal in goals.shown.items()},
    }
