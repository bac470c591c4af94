"""The goals of the benchmarks: which figures have one, when one is missed."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from benchmarks.compare import FIGURES
from benchmarks.goals import Goal, Goals, read_goals, report_goal

OTHER_FIGURES = [
    "failover_admin_p50_s",
    "failover_connected_p50_s",
    "failover_max_s",
    "failover_p50_s",
    "failover_silent_p50_s",
    "idle_cpu_s_per_hour",
    "memory_mb",
    "retention_cpu_ratio",
    "watchers_leader_cores",
    "watchers_rate_ratio",
]


def goals(**judged: Goal) -> Goals:
    return Goals(slack=0.2, yardstick_us=4.0, judged=judged, shown={"shown": Goal(at_least=2)})


def test_goals_are_of_figures_that_a_benchmark_measures() -> None:
    read = read_goals()
    assert {*read.judged, *read.shown} <= {*FIGURES, *OTHER_FIGURES}
    sources = "".join(path.read_text() for path in Path(__file__).parents[2].glob("benchmarks/*.py"))
    assert [figure for figure in OTHER_FIGURES if f'"{figure}"' not in sources] == []


def test_goals_commits_per_second_are_shown_and_not_judged() -> None:
    assert [figure for figure in read_goals().judged if figure.startswith("rate_")] == []


@pytest.mark.parametrize(
    ("goal", "value", "ok"),
    [
        (Goal(at_most=100), 120.0, True),
        (Goal(at_most=100), 120.1, False),
        (Goal(at_least=1.5), 1.21, True),
        (Goal(at_least=1.5), 1.19, False),
    ],
)
def test_goal_judged_is_missed_by_more_than_the_slack(
    capsys: pytest.CaptureFixture[str], goal: Goal, value: float, ok: bool
) -> None:
    assert report_goal(goals(figure=goal), "figure", [0.0, value, 1000.0]) == ok
    line = json.loads(capsys.readouterr().out)
    assert (line["ok"], line["met"], line["judged"]) == (ok, False, True)
    assert line["rounds"] == [0.0, value, 1000.0]


@pytest.mark.parametrize("figure", ["shown", "without a goal"])
def test_goal_shown_or_absent_fails_no_run(capsys: pytest.CaptureFixture[str], figure: str) -> None:
    assert report_goal(goals(), figure, [0.1])
    line = json.loads(capsys.readouterr().out)
    assert (line["ok"], line.get("met"), line.get("judged")) == (
        (True, False, False) if figure == "shown" else (True, None, None)
    )


def test_goal_that_cannot_be_judged_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_goal(goals(figure=Goal(at_most=1)), "figure", [9.0], unjudged="no Go")
    assert json.loads(capsys.readouterr().out)["judged"] == "no Go"


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ("[judged]\na = { at_mots = 1 }\n[shown]\n", "unknown field `at_mots`"),
        ("[judged]\na = {}\n[shown]\n", "either `at_most` or `at_least` is needed"),
        ("[judged]\na = { at_most = 1 }\n[shown]\na = { at_most = 2 }\n", "judged and shown: a"),
    ],
)
def test_goals_file_that_is_wrong_is_refused(tmp_path: Path, tables: str, problem: str) -> None:
    path = tmp_path / "goals.toml"
    path.write_text(f"slack = 0.2\nyardstick_us = 4.0\n{tables}")
    with pytest.raises(msgspec.ValidationError, match=problem):
        read_goals(path)
