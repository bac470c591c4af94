"""A tour tells a machine that has no engine from a step that failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compose import tour as tour_over_tls

ROOT = Path(__file__).parents[2]
TOUR = "tests.compose.tour"
TOUR_DAFKA = "tests.compose.tour_dafka"
TOUR_I2P = "tests.compose.tour_i2p"
NOT_ROOT = "echo 1000"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory in front of the PATH; who runs the tour is not root."""
    install(tmp_path, "id", NOT_ROOT)
    return tmp_path


def install(directory: Path, name: str, script: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)


def take(programs: Path, tour: str = TOUR) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "CA_BUNDLE": "/dev/null"}
    command = [sys.executable, "-m", tour]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def engine(programs: Path, *failing: str) -> Path:
    """An engine that can do everything but calls that contain one of ``failing``; the file of its calls."""
    calls = programs / "calls"
    refused = "".join(f"*{part}*) echo no such luck >&2; exit 1;; " for part in failing)
    install(programs, "docker", f'echo "$*" >>{calls}\ncase "$*" in {refused}esac')
    return calls


@pytest.mark.parametrize("tour", [TOUR, TOUR_DAFKA, TOUR_I2P], ids=["tls", "dafka", "i2p"])
def test_tour_without_engine_and_not_root_says_so_and_is_no_failure(programs: Path, tour: str) -> None:
    engine(programs, "info")
    ended = take(programs, tour)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith("no tour: not root: install and start a container engine")


@pytest.mark.parametrize("failing", ["probe.yaml build", "probe.yaml up", "network disconnect"])
def test_tour_on_an_engine_that_fails_the_probe_says_so_and_is_no_failure(programs, failing):
    calls = engine(programs, f'"{failing}"')
    ended = take(programs)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith("no tour: the engine cannot do what probe.yaml asks: ")
    assert "no such luck" in ended.stderr
    assert "probe.yaml down" in calls.read_text()
    assert "garlicfarm-tour" not in calls.read_text()


def test_tour_fails_where_a_step_fails(programs: Path) -> None:
    calls = engine(programs, '"--wait node1"')
    ended = take(programs)
    assert ended.returncode == 1
    assert "no such luck" in ended.stderr
    assert "no tour" not in ended.stderr
    assert "garlicfarm-tour down --volumes" in calls.read_text().splitlines()[-1]


def test_tour_fails_where_the_images_cannot_be_built_though_packages_can_be_had(programs: Path) -> None:
    calls = engine(programs, '"garlicfarm-tour build"')
    ended = take(programs)
    assert ended.returncode == 1
    assert calls.read_text().count("probe.yaml build") == 3
    assert calls.read_text().count("garlicfarm-tour build") == 2


@pytest.mark.parametrize("late", [1, 2], ids=["first", "second"])
def test_tour_whose_packages_do_not_come_in_time_is_no_failure(programs, monkeypatch, late):
    engine(programs)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    builds: list[str] = []

    def compose(*arguments: str, timeout_s: float) -> None:
        builds.extend(arguments)
        if len(builds) == 2 * late:
            raise subprocess.TimeoutExpired("docker", timeout_s)
        raise AssertionError("no such luck")

    monkeypatch.setattr(tour_over_tls, "compose", compose)
    with pytest.raises(tour_over_tls.Unavailable, match="the packages have not come in 900 s"):
        tour_over_tls.build(["node1"])
    assert builds == ["build", "node1"] * late
