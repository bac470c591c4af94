"""The lab as a user runs it: own processes, real TLS, real files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.served import Cli
from tests.running import Terminal, running, until, without_signs_of_life

NAMESPACE = ["unshare", "--map-root-user", "--net"]
HANG_GUARD_S = 280.0
"""Ends what hangs before pytest does, so that the test shows what was said."""


COMMAND = [
    # The tests may run where signals are ignored, as below nohup(1), and so would the lab.
    *["env", "--default-signal=HUP,INT,TERM"],
    *[sys.executable, "-m", "garlicfarm", "lab"],
]


def run(*arguments: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_GUARD_S,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )


@contextmanager
def running_lab(directory: Path, *options: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A lab that ends with the block. Its files are in ``temporary`` of the directory, what it says in
    ``stderr``."""
    temporary, said = directory / "temporary", directory / "stderr"
    temporary.mkdir()

    def logs() -> list[Path]:
        return [said, *temporary.glob("*/farm/*/node.log")]

    environment = {**os.environ, "TMPDIR": str(temporary), **how.pop("env", {})}
    with said.open("wb") as stderr:
        how = {"stdout": subprocess.DEVNULL, "stderr": stderr, "env": environment, **how}
        with running([*COMMAND, *options], logs=logs, **how) as lab:
            yield lab


@pytest.mark.slow
def test_lab_until_publisher_names_both_and_leaves_nothing(tmp_path: Path) -> None:
    ended = run("--until", "publisher", "--timeout", "240", tmp_path=tmp_path)
    assert (ended.returncode, without_signs_of_life(ended.stderr)) == (0, "")
    assert re.fullmatch(r"leader [123], publisher [123]\n", ended.stdout)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_lab_of_one_node_until_leader_ends(tmp_path: Path) -> None:
    ended = run("--nodes", "1", "--until", "leader", tmp_path=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("leader 1, ")


@pytest.mark.slow
def test_lab_too_slow_for_its_timeout_exits_124_and_leaves_nothing(tmp_path: Path) -> None:
    ended = run("--until", "publisher", "--timeout", "0.5", tmp_path=tmp_path)
    assert ended.returncode == 124
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_lab_whose_preparation_fails_says_what_it_said_and_leaves_nothing(tmp_path: Path) -> None:
    ended = run("--until", "ranked", "--prepare", "sh -c 'echo no network; exit 3'", tmp_path=tmp_path)
    assert ended.returncode == 1
    told = without_signs_of_life(ended.stderr)
    assert told == "error: sh -c 'echo no network; exit 3' ended with code 3:\n  no network\n"
    assert list(tmp_path.iterdir()) == []


def command_lines(directory: Path) -> list[str]:
    """Of the processes that were told of a file below ``directory``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if str(directory) in line:
            found.append(line)
    return found


def directory_made(directory: Path) -> bool:
    return any(directory.iterdir())


def nodes_listen(directory: Path) -> bool:
    return any(directory.glob("*/farm/node-1/data/admin.url"))


def preparation_runs(directory: Path) -> bool:
    return any("sleeper" in line and "--prepare" not in line for line in command_lines(directory))


@pytest.fixture(params=[directory_made, nodes_listen, preparation_runs])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A lab at some moment of its start."""
    options = ["--nodes", "3" if request.param is directory_made else "1"]
    looked_at = tmp_path / "temporary"
    if request.param is preparation_runs:
        looked_at = tmp_path
        sleeper = f"{sys.executable} -c 'import time; time.sleep(300)' {tmp_path}/sleeper"
        options += ["--rank", "--prepare", sleeper]
    with running_lab(tmp_path, *options) as lab:
        until(lambda: request.param(looked_at), lab)
        yield lab


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_lab_ended_by_a_signal_exits_130_and_leaves_nothing(lab, number, tmp_path):
    lab.send_signal(number)
    lab.send_signal(number)  # timeout(1) sends it twice, and people press Ctrl-C twice
    assert lab.wait() == 130
    assert without_signs_of_life((tmp_path / "stderr").read_text()) == "interrupted\n"
    assert list((tmp_path / "temporary").iterdir()) == []
    assert command_lines(tmp_path) == []


def test_lab_that_is_killed_leaves_nothing(lab, tmp_path):
    lab.kill()
    until(lambda: not list((tmp_path / "temporary").iterdir()) and not command_lines(tmp_path))


@pytest.mark.parametrize("interval", ["0", "soon", "2h", "500ms", "1s "])
def test_lab_interval_out_of_range_or_form_is_a_usage_error(interval: str, cli: Cli) -> None:
    assert "--interval" in cli("lab", "--interval", interval, exits=2).err


@pytest.mark.i2pd
@pytest.mark.netns
@pytest.mark.slow
def test_lab_on_real_i2pd_names_a_publisher_from_true_figures(tmp_path: Path) -> None:
    checks = Path(__file__).with_name("lab_on_i2pd_checks.py")
    ended = subprocess.run(
        [*NAMESPACE, sys.executable, str(checks), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=HANG_GUARD_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert '"publisher": ' in ended.stdout


def test_lab_on_a_terminal_says_at_once_what_it_does(tmp_path: Path) -> None:
    with Terminal() as terminal, running_lab(tmp_path, stdout=terminal.theirs, stderr=terminal.theirs) as lab:
        terminal.close_theirs()
        said = terminal.read()
        lab.send_signal(signal.SIGINT)
        while terminal.read():
            pass
        assert lab.wait() == 130
    assert said.startswith(b"starting 3 nodes")


@pytest.mark.slow
def test_lab_starts_without_a_warning_and_its_leases_outlast_an_election(tmp_path: Path) -> None:
    def log() -> str:
        return "".join(file.read_text() for file in tmp_path.glob("temporary/*/farm/node-1/node.log"))

    with running_lab(tmp_path, "--nodes", "1") as lab:
        until(lambda: "event=publishing" in log(), lab)
        assert [line for line in log().splitlines() if " INFO " not in line] == []


@pytest.mark.slow
def test_lab_ends_a_node_that_was_started_again_by_hand(tmp_path: Path) -> None:
    """By hand, as the lab's screen says. Before that a node that ends is a lab that does not start."""
    size = {"COLUMNS": "500", "LINES": "60", "TERM": "xterm"}
    with (
        Terminal() as terminal,
        running_lab(tmp_path, "--nodes", "1", stdout=terminal.theirs, env=size) as lab,
    ):
        terminal.close_theirs()
        os.kill(int(terminal.read_until(rb"node 1[^:]*: kill -9 (\d+)\s")), signal.SIGKILL)
        config = terminal.read_until(rb"(?s)node 1 is down \(killed\).*?--config.*?(/\S+\.toml)")
        again = [sys.executable, "-m", "garlicfarm", "node", "start", "--config", config.decode()]
        with running(again, stderr=subprocess.DEVNULL) as node:
            terminal.read_until(rb"node 1[^:]*: kill -9 %d\s" % node.pid)
            lab.send_signal(signal.SIGTERM)
            while terminal.read():
                pass
            assert lab.wait() == 130
            assert node.wait() == -signal.SIGKILL
    assert list((tmp_path / "temporary").iterdir()) == []
