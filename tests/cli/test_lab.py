"""The lab as a user runs it: own processes, real TLS, real files."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from garlicfarm.lab.cleanup import lock_holder

GARLICFARM = [sys.executable, "-m", "garlicfarm"]
NAMESPACE = ["unshare", "--map-root-user", "--net"]


def run(*arguments: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    return subprocess.run(
        [*GARLICFARM, "lab", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=environment,
    )


@pytest.mark.slow
def test_lab_until_publisher_names_both_and_leaves_nothing(tmp_path: Path) -> None:
    ended = run("--until", "publisher", tmp_path=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
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
    assert ended.stderr == "error: sh -c 'echo no network; exit 3' ended with code 3:\nno network\n"
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


def interval_set(directory: Path) -> bool:
    return any("action=interval" in log.read_text() for log in directory.glob("*/farm/node-1/node.log"))


def preparation_runs(directory: Path) -> bool:
    return any("sleeper" in line and "--prepare" not in line for line in command_lines(directory))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("moment", "options"),
    [
        (directory_made, ["--nodes", "3"]),
        (nodes_listen, ["--nodes", "1"]),
        (preparation_runs, ["--nodes", "1", "--rank"]),
    ],
)
def test_lab_ended_by_a_signal_exits_130_and_leaves_nothing(
    number: signal.Signals, moment: Callable[[Path], bool], options: list[str], tmp_path: Path
) -> None:
    sleeper = f"{sys.executable} -c 'import time; time.sleep(300)' {tmp_path}/sleeper"
    prepare = ["--prepare", sleeper] if "--rank" in options else []
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        # Under nohup(1) the tests ignore SIGHUP, and so would the lab.
        ["env", "--default-signal=HUP", *GARLICFARM, "lab", *options, *prepare],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as lab:
        deadline = time.monotonic() + 60
        while not moment(tmp_path if prepare else temporary):
            assert lab.poll() is None, lab.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        lab.send_signal(number)
        lab.send_signal(number)  # timeout(1) sends it twice, and people press Ctrl-C twice
        _, said = lab.communicate(timeout=60)
    assert (lab.returncode, said) == (130, "interrupted\n")
    assert list(temporary.iterdir()) == []
    assert command_lines(tmp_path) == []


@pytest.mark.parametrize("interval", ["0", "soon", "2h", "500ms", "1s "])
def test_lab_interval_out_of_range_or_form_is_a_usage_error(interval: str, tmp_path: Path) -> None:
    ended = run("--interval", interval, tmp_path=tmp_path)
    assert ended.returncode == 2
    assert "--interval" in ended.stderr


@pytest.mark.i2pd
@pytest.mark.netns
@pytest.mark.slow
def test_lab_on_real_i2pd_names_a_publisher_from_true_figures(tmp_path: Path) -> None:
    checks = Path(__file__).with_name("lab_on_i2pd_checks.py")
    ended = subprocess.run(
        [*NAMESPACE, sys.executable, str(checks), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert '"publisher": ' in ended.stdout


def test_lab_on_a_terminal_says_at_once_what_it_does() -> None:
    ours, terminal = os.openpty()
    with subprocess.Popen(
        [*GARLICFARM, "lab"], stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal
    ) as process:
        os.close(terminal)
        said = os.read(ours, 1000)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # EIO: the last one who had it open is gone
            while os.read(ours, 1000):
                pass
        assert process.wait(30) == 130
    os.close(ours)
    assert said.startswith(b"starting 3 nodes")


@pytest.mark.parametrize(
    ("moment", "options"),
    [(directory_made, []), (nodes_listen, ["--nodes", "1"]), (preparation_runs, ["--nodes", "1", "--rank"])],
)
def test_lab_that_is_killed_leaves_nothing(
    moment: Callable[[Path], bool], options: list[str], tmp_path: Path
) -> None:
    sleeper = f"{sys.executable} -c 'import time; time.sleep(300)' {tmp_path}/sleeper"
    prepare = ["--prepare", sleeper] if "--rank" in options else []
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        [*GARLICFARM, "lab", *options, *prepare],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as lab:
        deadline = time.monotonic() + 60
        while not moment(tmp_path if prepare else temporary):
            assert lab.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        lab.kill()
    while list(temporary.iterdir()) or command_lines(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_lab_ends_a_node_that_was_started_again_by_hand(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        [*GARLICFARM, "lab", "--nodes", "1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as lab:
        deadline = time.monotonic() + 60
        while not interval_set(temporary):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (node,) = temporary.glob("*/farm/node-1")
        first = lock_holder(node / "data")
        assert first is not None
        os.kill(first, signal.SIGKILL)
        (node / "data" / "admin.url").unlink()
        with subprocess.Popen(
            [*GARLICFARM, "node", "start", "--config", str(node / "garlicfarm.toml")],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as again:
            while not nodes_listen(temporary):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert lock_holder(node / "data") == again.pid
            lab.send_signal(signal.SIGTERM)
            assert lab.wait(60) == 130
            assert again.wait(60) == -signal.SIGKILL
    assert list(temporary.iterdir()) == []
