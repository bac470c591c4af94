"""What the lab shows: how far the installation is, who can be killed, who can be started again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from rich.console import Console

from garlicfarm.cli.lab_rank import MIB, Preparation, tree_bytes
from garlicfarm.cli.lab_screen import LabScreen
from garlicfarm.lab.processes import NodeProcess
from tests.cli.test_cli_tables import ranking, status


class Node(NodeProcess):
    def __init__(self, node_id: int, pid: int | None, code: int | None = None) -> None:
        super().__init__(node_id, Path(f"/tmp/garlicfarm-lab-abcd1234/farm/node-{node_id}"))
        self.process = SimpleNamespace(returncode=code)  # type: ignore[assignment]
        self.found = pid

    @property
    def pid(self) -> int | None:
        return self.found

    def log_lines(self) -> list[str]:
        return ["starting", "error: the disk is full"]


def shown(screen: LabScreen, body: dict[str, Any] | None, width: int = 60, height: int = 60) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(screen.drawn(body, body and ranking(), width, height))
    return captured.get().splitlines()


@pytest.fixture
def nodes() -> dict[int, NodeProcess]:
    return {1: Node(1, 101), 2: Node(2, None, -9), 3: Node(3, None, 1)}


@pytest.fixture
def screen(nodes: dict[int, NodeProcess]) -> LabScreen:
    return LabScreen(SimpleNamespace(nodes=nodes), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [60, 80, 150])
def test_screen_is_whole_and_says_how_to_kill_and_to_start_each_node(screen: LabScreen, width: int) -> None:
    lines = shown(screen, status(), width)
    assert all(len(line) <= width for line in lines)
    assert "node 1, leader: kill -9 101" in lines
    assert "node 2 is down (killed); start it again:" in lines
    assert "node 3 is down (exit code 1): error: the disk is full; start it again:" in " ".join(lines)
    start = lines.index("  .venv/bin/garlicfarm node start --config \\")
    assert lines[start + 1] == "  /tmp/garlicfarm-lab-abcd1234/farm/node-2/garlicfarm.toml"


def test_screen_follows_a_node_that_was_started_again(screen, nodes):
    nodes[2].found = 202  # type: ignore[attr-defined]
    assert "node 2: kill -9 202" in shown(screen, status())


def test_screen_without_an_answer_says_so(screen: LabScreen) -> None:
    assert shown(screen, None)[0] == "no node answers"


@pytest.mark.parametrize(("height", "events"), [(60, 6), (37, 4), (24, 1)])
def test_screen_shows_as_many_events_as_have_a_line(screen: LabScreen, height: int, events: int) -> None:
    told = [{"date_ms": 1000 * n, "index": n, "text": f"event {n}", "previous": None} for n in range(9)]
    lines = shown(screen, status(events=told), 80, height)
    assert sum("  event " in line for line in lines) == events
    assert lines[-1] == "Ctrl-C ends the lab and leaves nothing behind."
    assert ("Kill the leader or the publisher in another terminal." in lines) == (height > 30)


@pytest.mark.parametrize("members", [3, 5, 9])
@pytest.mark.parametrize(("width", "height"), [(40, 24), (80, 24), (100, 40)])
@pytest.mark.parametrize("dead", [0, 2])
def test_screen_of_any_size_says_whom_to_kill_what_happened_and_how_to_end(width, height, members, dead):
    ids = range(1, members + 1)
    farm = {each: Node(each, 100 + each) if each > dead else Node(each, None, -9) for each in ids}
    leader, publisher = members, members - 1 if members - 1 > dead else members
    row = status()["members"][0]
    roles = {
        each: "unreachable" if each <= dead else "leader" if each == leader else "follower" for each in ids
    }
    rows = [row | {"id": each, "role": roles[each], "publisher": each == publisher} for each in ids]
    told = [{"date_ms": 1000 * n, "index": n, "text": f"event {n}", "previous": None} for n in range(9)]
    quorum = members - dead > members // 2
    body = status(leader=leader, publisher=publisher, members=rows, events=told, quorum=quorum)
    placed = ranking()
    placed["members"] = [placed["members"][0] | {"id": each, "publisher": each == publisher} for each in ids]
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(LabScreen(SimpleNamespace(nodes=farm), None).drawn(body, placed, width, height))  # type: ignore[arg-type]
    lines = captured.get().splitlines()
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert any(line.endswith(f"kill -9 {100 + leader}") and "leader" in line for line in lines)
    if quorum:
        assert any(line.endswith(f"kill -9 {100 + publisher}") and "publisher" in line for line in lines)
    assert "00:00:08  event 8" in lines
    assert "".join(lines[-2:]).endswith("Ctrl-C ends the lab and leaves nothing behind.")
    header = next(number for number, line in enumerate(lines) if line.startswith("ID"))
    assert [line.split()[0] for line in lines[header + 1 :][: min(members, 5)]] == [
        str(each) for each in ids[: min(members, 5)]
    ]


async def test_preparation_tells_what_came_and_how_long_it_took(tmp_path, autojump_clock):
    prefix, scratch = tmp_path / "venv", tmp_path / "tmp"
    (scratch / "pip-unpack-1").mkdir(parents=True)
    prefix.mkdir()
    (prefix / "there before").write_bytes(bytes(MIB))
    preparation = Preparation(prefix, scratch)
    assert preparation.text().endswith(": 0 of about 560 MiB downloaded, 0 s")
    preparation.measure()
    (scratch / "pip-unpack-1" / "spark.whl").write_bytes(bytes(3 * MIB))
    (scratch / "unrelated").write_bytes(bytes(3 * MIB))
    await trio.sleep(95)
    preparation.measure()
    assert preparation.text().endswith(": 3 of about 560 MiB downloaded, 95 s")
    (prefix / "unpacked").write_bytes(bytes(5 * MIB))
    (scratch / "pip-unpack-1" / "spark.whl").unlink()
    preparation.measure()
    assert preparation.text().endswith("3 of about 560 MiB downloaded, 5 of about 920 MiB unpacked, 95 s")


def test_size_of_a_folder_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert tree_bytes(tmp_path / "none") == 0
