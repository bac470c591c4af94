"""What is said of a node's process that does not start, and how long it is waited for."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from garlicfarm.errors import UnreachableError
from garlicfarm.lab import cleanup, processes
from garlicfarm.lab.processes import LOOK_S, Patience, activity, free_ports, process_farm
from garlicfarm.setup.provision import MemberPlan

WAITS = "print('it waits', flush=True); import time; time.sleep(600)"
LATE = """
import sys, time
from pathlib import Path
time.sleep(1)
(Path(sys.argv[-1]).parent / "data" / "admin.url").write_text("https://127.0.0.1:1")
time.sleep(600)
"""


async def test_node_whose_port_is_taken_says_so_with_its_exit_code(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        member = MemberPlan(endpoint=f"ssl://127.0.0.1:{port}", admin_url="https://127.0.0.1:0")
        async with process_farm(tmp_path / "farm", {1: member}, start=False) as farm:
            farm.nodes[1].log_file.write_text("of an earlier run\n")
            with pytest.raises(UnreachableError) as refused:
                await farm.start(1)
    text = str(refused.value)
    first, *rest = text.splitlines()
    assert first.startswith("node 1 ended with exit code 1 before it listened: ")
    assert f"127.0.0.1:{port}" in first
    assert "in use" in first
    assert any("in use" in line for line in rest), "the end of its log follows"
    assert str(farm.nodes[1].log_file) in text
    assert "of an earlier run" not in text


async def test_node_that_does_not_listen_is_given_up_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "START_TIMEOUT_S", 1.0)
    async with process_farm(tmp_path / "farm", 1, command=(sys.executable, "-c", WAITS), start=False) as farm:
        with pytest.raises(UnreachableError, match="does not listen after 1 s") as given_up:
            await farm.start(1)
    assert str(given_up.value).endswith(("it waits", f"it wrote nothing to {farm.nodes[1].log_file}"))


async def test_node_that_the_machine_keeps_from_running_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "START_TIMEOUT_S", 0.0)
    monkeypatch.setattr(processes, "activity", lambda pid: (0.0, False))
    async with process_farm(tmp_path / "farm", 1, command=(sys.executable, "-c", LATE), start=False) as farm:
        await farm.start(1)
        assert farm.nodes[1].url == "https://127.0.0.1:1"


@pytest.mark.parametrize(("uses_s", "is_idle"), [(0.1, False), (0.0, True)], ids=["busy", "idle"])
def test_patience_ends_after_processor_time_or_idle_looks(
    monkeypatch: pytest.MonkeyPatch, uses_s: float, is_idle: bool
) -> None:
    used = itertools.count()
    monkeypatch.setattr(processes, "activity", lambda pid: (5 + uses_s * next(used), is_idle))
    patience = Patience(1, 1.01)
    looks = next(number for number in itertools.count(1) if patience.is_over())
    assert looks == 1 + round(1 / (uses_s or LOOK_S))


def test_activity_is_that_of_all_threads_as_the_kernel_counts_it() -> None:
    before, is_idle = activity(os.getpid())
    assert not is_idle, "we are just running"
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert activity(os.getpid())[0] > before
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        process.stdout.read(1)  # it has started; now it waits for more
        while not activity(process.pid)[1]:
            pass
        process.stdin.close()
    assert activity(2**22 + 1) == (0, True)  # there is no such process


@pytest.fixture
def few_ports(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Ports are drawn from so few that one is drawn twice unless something prevents it."""
    first = random.randint(*processes.PORTS) - 60
    monkeypatch.setattr(processes, "PORTS", (first, first + 59))
    return processes.PORTS


def test_free_port_is_given_once_on_the_machine_until_many_others_are(
    few_ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "HELD", 25)
    ours = [free_ports(1)[0] for _ in range(25)]
    script = f"from garlicfarm.lab import processes as p; p.PORTS = {few_ports}; print(p.free_ports(25))"
    theirs = json.loads(subprocess.check_output([sys.executable, "-c", script]))
    assert len({*ours, *theirs}) == 50
    free_ports(25)
    for port in ours:
        with socket.socket() as others:
            others.bind(("127.0.0.1", port))


def test_free_port_refuses_connections_until_a_server_listens_again_and_again(
    few_ports: tuple[int, int],
) -> None:
    (port,) = free_ports(1)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)):
            socket.create_connection(("127.0.0.1", port)).close()


async def test_node_that_was_started_by_hand_is_found(tmp_path: Path) -> None:
    async with process_farm(tmp_path / "farm", 1) as farm:
        node = farm.nodes[1]
        assert node.process is not None
        assert node.pid == node.process.pid
        await farm.kill(1)
        assert node.pid is None
        config = node.directory / "garlicfarm.toml"
        command = [sys.executable, "-m", "garlicfarm", "node", "start", "--config", str(config)]
        (node.directory / "data" / "admin.url").unlink()
        async with trio.open_nursery() as nursery:
            process = await nursery.start(partial(trio.run_process, command, check=False))
            while True:
                if node.url is not None:
                    break
                await trio.sleep(LOOK_S)
            assert node.pid == process.pid
            process.terminate()
        assert node.pid is None


def test_directory_of_a_lab_that_a_late_process_fills_again_is_removed(tmp_path, monkeypatch):
    rmtree, late = shutil.rmtree, iter([True, False])

    def filled_again(path: Path, ignore_errors: bool) -> None:
        rmtree(path, ignore_errors)
        if next(late):
            path.mkdir()

    monkeypatch.setattr(shutil, "rmtree", filled_again)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))  # the lab has ended
    (tmp_path / "lab").mkdir()
    cleanup.main(tmp_path / "lab")
    assert list(tmp_path.iterdir()) == []
