"""Every test runs in exactly one target of the Makefile, and CI requires its markers there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.project.pages import ROOT

NEEDS = frozenset(
    re.findall(r'^    "(\w+): needs ', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
)
NOT_EVERYWHERE = {"history", "forky", "trixie"}
"""What even continuous integration may lack: its clone may be shallow, and a mirror out of reach."""


class Target(NamedTuple):
    chosen: str
    """The expression of markers."""
    folder: Path
    required: frozenset[str]
    """The markers of which continuous integration accepts no skipped test."""

    def runs(self, path: Path, markers: frozenset[str]) -> bool:
        return path.is_relative_to(self.folder) and _are_chosen(self.chosen, markers)


@cache
def _are_chosen(expression: str, markers: frozenset[str]) -> bool:
    names = dict.fromkeys(re.findall(r"\w+", expression), False) | dict.fromkeys(markers, True)
    return bool(eval(expression, {}, names))


@cache
def targets() -> dict[str, Target]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (quick,) = re.findall(r"^QUICK = (.*)$", makefile, re.MULTILINE)
    makefile = makefile.replace("$(QUICK)", quick)
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    found = {}
    for name, recipe in re.findall(r"^([a-z0-9-]+):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE):
        for chosen, always, folder in re.findall(
            r'-m "?([a-z0-9 ]+)"? --must-run "?([^"\n]*?)"?(?: (tests/\w+))?\'?$', recipe, re.MULTILINE
        ):
            step = re.search(rf"^ *step make {name}(?: |$)(.*)", ci, re.MULTILINE)
            asked = re.search(r'MUST_RUN=(?:"(.*)"|(\S+))', step[1]) if step else None
            required = always.replace("$(MUST_RUN)", (asked[1] or asked[2]) if asked else "")
            found[name] = Target(chosen, ROOT / (folder or "tests"), frozenset(required.split()))
    return found


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> list[tuple[str, Path, frozenset[str]]]:
    """All tests that this run collected, those of other targets included: name, file and markers of each."""
    (conftest,) = {
        module
        for module in request.config.pluginmanager.get_plugins()
        if getattr(module, "__file__", None) == str(ROOT / "tests/conftest.py")
    }
    return [
        (item.nodeid, item.path, frozenset({marker.name for marker in item.iter_markers()}))
        for item in request.config.stash[conftest.COLLECTED]
    ]


def test_makefile_names_its_targets_of_tests() -> None:
    assert set(targets()) == {
        "test",
        "test-slow",
        "test-spark",
        "test-spark-cluster",
        "test-browser",
        "test-i2p",
        "test-java",
        "test-dafka",
        "test-upgrade",
    }


def test_every_test_runs_in_exactly_one_target(collected: list[tuple[str, Path, frozenset[str]]]) -> None:
    whole = {name: target for name, target in targets().items() if name != "test-browser"}
    places = {
        name: [target for target in whole if whole[target].runs(path, markers)]
        for name, path, markers in collected
    }
    assert {name: place for name, place in places.items() if len(place) != 1} == {}


def test_browser_tests_run_with_the_slow_ones_too(collected: list[tuple[str, Path, frozenset[str]]]) -> None:
    both = targets()
    alone = [test for test in collected if both["test-browser"].runs(*test[1:])]
    assert [test for test in alone if not both["test-slow"].runs(*test[1:])] == []


def test_slow_tests_are_in_files_that_name_their_marker(
    collected: list[tuple[str, Path, frozenset[str]]],
) -> None:
    """`make test-slow` looks nowhere else."""
    slow = {path for _, path, markers in collected if targets()["test-slow"].runs(path, markers)}
    assert [path for path in slow if "mark.slow" not in path.read_text(encoding="utf-8")] == []


def test_ci_requires_each_marker_in_the_target_that_runs_it(
    collected: list[tuple[str, Path, frozenset[str]]],
) -> None:
    # A marker that is required where no test has it fails that run: the other direction needs no test.
    missing = {
        (name, marker)
        for name, target in targets().items()
        if name != "test-browser"
        for _, path, markers in collected
        if target.runs(path, markers)
        for marker in (markers & NEEDS) - target.required - NOT_EVERYWHERE
    }
    assert missing == set()
