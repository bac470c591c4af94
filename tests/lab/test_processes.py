"""What is said of a node's process that does not start, and how long it is waited for."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
import trio

from garlicfarm.errors import UnreachableError
from garlicfarm.lab import processes
from garlicfarm.lab.processes import process_farm
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
    assert text.startswith("node 1 ended with exit code 1 before it listened; ")
    assert f"127.0.0.1:{port}" in text
    assert "in use" in text
    assert str(farm.nodes[1].log_file) in text
    assert "of an earlier run" not in text


async def test_node_that_does_not_listen_is_given_up_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "START_TIMEOUT_S", 1.0)
    async with process_farm(tmp_path / "farm", 1, command=(sys.executable, "-c", WAITS), start=False) as farm:
        with pytest.raises(UnreachableError, match="does not listen after 1 s") as given_up:
            await farm.start(1)
    assert str(given_up.value).rstrip().endswith(("it waits", "it wrote nothing"))


async def test_node_that_the_machine_keeps_from_running_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = trio.current_time()
    monkeypatch.setattr(processes, "START_TIMEOUT_S", 0.1)
    monkeypatch.setattr(processes, "_kept_waiting_s", lambda pid: trio.current_time() - begun)
    async with process_farm(tmp_path / "farm", 1, command=(sys.executable, "-c", LATE), start=False) as farm:
        await farm.start(1)
        assert farm.nodes[1].url == "https://127.0.0.1:1"


def test_waiting_for_a_processor_is_what_the_kernel_counts() -> None:
    assert 0 <= processes._kept_waiting_s(1) < 1e9
    assert processes._kept_waiting_s(2**22 + 1) == 0  # there is no such process
