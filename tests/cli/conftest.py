"""The command line in this process or another, and a node in memory that it asks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.cli import run
from tests.cli.served import Cli, Served, serving


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run_here(*arguments: str, exits: int = 0) -> Any:
        assert run([*arguments]) == exits
        return capsys.readouterr()

    return run_here


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that no configuration of this machine is found from."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GARLICFARM_CONFIG", raising=False)
    return directory


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with serving(tmp_path, monkeypatch, "farm") as served:
        yield served


@pytest.fixture
def spawn(served: Served, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start the command as a process of its own; ended with the test."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        command = [sys.executable, "-m", "garlicfarm", *arguments]
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        processes.append(subprocess.Popen(command, cwd=tmp_path, env=environ, **options))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()
