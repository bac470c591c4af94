"""The goals of the benchmarks: which figures have one, when one is missed, and what a wrong file is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.compare import FIGURES
from benchmarks.goals import Goal, Goals, GoalsError, read_goals, report_goal

OTHER_FIGURES = [
    "failover_max_s",
    "failover_p50_s",
    "failover_silent_p50_s",
    "idle_cpu_s_per_hour",
    "memory_mb",
    "retention_cpu_ratio",
    "watchers_leader_cores",
    "watchers_rate_ratio",
]
HEAD = "slack = 0.2\nyardstick_us = 4.0\n"


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


def test_cpu_time_is_scaled_to_the_reference_machine() -> None:
    assert goals().scaled(100.0, 8.0) == 50.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("slack = \n", "goals.toml: Invalid value (at line 1, column 9)"),
        (
            HEAD + "[judged]\na = { at_most = 1 }\nb = { at_mots = 1 }\n[shown]\n",
            "line 5: b: Object contains",
        ),
        (
            HEAD + "[judged]\na = { at_most = '1' }\n[shown]\n",
            "line 4: a: Expected `float | null`, got `str`",
        ),
        (HEAD + "[judged]\n[shown]\n\na = {}\n", "line 6: a: either `at_most` or `at_least` is needed"),
        (HEAD + "[judged]\na = 1\n[shown]\n", "line 4: a: Expected `object`, got `int`"),
        (
            HEAD + "[judged]\na = { at_most = 1 }\n[shown]\na = { at_most = 2 }\n",
            "line 6: a: it is judged as well",
        ),
        ("slack = 0.2\n[judged]\n[shown]\n", "goals.toml: Object missing required field `yardstick_us`"),
        (HEAD + "[judged]\n[shown]\n[other]\n", "goals.toml: Object contains unknown field `other`"),
    ],
)
def test_goals_file_that_is_wrong_names_the_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "goals.toml"
    path.write_text(text)
    with pytest.raises(GoalsError) as caught:
        read_goals(path)
    assert problem in str(caught.value)
