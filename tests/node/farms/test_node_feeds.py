"""Feeds of whole nodes: found by their entry points, and of no harm to the farm."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
import trio

from garlicfarm.cli import run as run_command
from garlicfarm.cli.exits import Exit
from garlicfarm.feed.contract import Feed, FeedSource
from garlicfarm.setup.provision import FarmPlan, create_farm
from tests.node.support.cluster import Cluster, cluster, member
from tests.project.test_docs_examples import example
from tests.running import wait_until

PATIENCE_S = 240.0


class Config(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class Broken(Feed):
    """Fails at once."""

    Config = Config

    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        raise ZeroDivisionError("a defect")


class Idle(Feed):
    """Reads one entry, and then never asks for another one."""

    Config = Config

    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        task_status.started()
        await anext(aiter(source.entries(source.first_index - 1, 1)))
        await trio.sleep_forever()
        raise AssertionError


class Slow(Feed):
    """Reads entry by entry, each once ``may_read`` is set; ``ends``: what ended its runs."""

    Config = Config
    may_read: trio.Event
    ends: list[str]

    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        task_status.started()
        try:
            async for entries in source.entries(source.first_index - 1, 1):
                source.report_read(entries[-1].index)
                await self.may_read.wait()
        except Exception as error:
            self.ends.append(type(error).__name__)
            raise
        raise AssertionError


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugins file, broken, idle and slow, as a distribution would bring them."""
    module: Any = sys.modules[__name__]
    module.FileFeed = example("file_feed").FileFeed
    Slow.may_read, Slow.ends = trio.Event(), []
    info = tmp_path / "site" / "feeds_of_a_test-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: feeds-of-a-test\nVersion: 1.0\n")
    plugins = {"file": "FileFeed", "broken": "Broken", "idle": "Idle", "slow": "Slow"}
    lines = [f"{name} = {__name__}:{value}" for name, value in plugins.items()]
    (info / "entry_points.txt").write_text("\n".join(["[garlicfarm.feeds]", *lines, ""]))
    monkeypatch.syspath_prepend(tmp_path / "site")


def configure(node: Path, *tables: dict[str, Any]) -> None:
    with (node / "garlicfarm.toml").open("a") as file:
        for table in tables:
            lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
            file.write(f"\n[[farm.feed]]\n{lines}")


def lines_of(nodes: Cluster, node_id: int = 1) -> list[dict[str, Any]]:
    path = nodes.directories[node_id] / "entries.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def has_line(nodes: Cluster, node_id: int, index: int) -> bool:
    return any(line["index"] == index for line in lines_of(nodes, node_id))


def feeds(nodes: Cluster, node_id: int = 1) -> dict[str, dict[str, Any]]:
    rows = nodes.node(node_id).farms["farm"].status()["feeds"]
    return {row["name"]: row for row in rows}


async def post(nodes: Cluster, count: int, text: str) -> int:
    index = 0
    for number in range(count):
        index, _ = await nodes.node().farms["farm"].post(f"{text} {number}".encode(), "alice")
    return index


async def test_every_member_feeds_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, start=False) as nodes:
        for directory in nodes.directories.values():
            configure(directory, {"plugin": "file", "path": "entries.jsonl"})
        await nodes.start()
        leader = await nodes.leader()
        await nodes.node(leader).farms["farm"].post(b"one", "alice")
        await nodes.stop(1)
        with trio.fail_after(PATIENCE_S):
            other = await nodes.leader()
        index, _ = await nodes.node(other).farms["farm"].post(b"two", "alice")
        await nodes.start(1)
        for node_id in nodes.directories:
            await wait_until(partial(has_line, nodes, node_id, index))
        for node_id in nodes.directories:
            lines = [line for line in lines_of(nodes, node_id) if line["index"] <= index]
            assert [line["index"] for line in lines] == list(range(1, index + 1))
            values = [line["value"] for line in lines if line["type"] == "application"]
            assert values == ["one", "two"]


async def test_feed_that_fails_and_one_that_reads_nothing_hurt_neither_farm_nor_feed(tmp_path: Path) -> None:
    async with cluster(tmp_path, start=False) as nodes:
        configure(
            nodes.directories[1],
            {"plugin": "broken"},
            {"plugin": "idle"},
            {"plugin": "file", "name": "lines", "path": "entries.jsonl"},
        )
        await nodes.start()
        await nodes.leader()
        index = await post(nodes, 100, "entry")
        await wait_until(lambda: feeds(nodes)["lines"]["lag"] == 0)
        rows = feeds(nodes)
        assert [*rows] == ["broken", "idle", "lines"]
        assert rows["lines"] == {
            "name": "lines",
            "plugin": "file",
            "state": "running",
            "index": index,
            "lag": 0,
            "problem": None,
        }
        assert rows["broken"]["problem"] == "ZeroDivisionError: a defect"
        assert rows["idle"] | {"lag": 0} == {
            "name": "idle",
            "plugin": "idle",
            "state": "running",
            "index": None,
            "lag": 0,
            "problem": None,
        }
        assert rows["idle"]["lag"] == index
        nodes.node().collect()
        sample = nodes.node().metrics.registry.get_sample_value
        for reader, lag in (("broken", index), ("idle", index), ("lines", 0)):
            assert sample("garlicfarm_feed_lag_entries", {"farm": "farm", "reader": reader}) == lag
        assert sample("garlicfarm_feed_failures_total", {"farm": "farm", "reader": "broken"}) >= 1
        assert len(lines_of(nodes)) == index


async def test_feed_slower_than_the_retention_fell_behind_and_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = {"snapshot_every_entries": 20, "keep_entries": 10}
    async with cluster(tmp_path, start=False, retention=keep) as nodes:
        configure(nodes.directories[1], {"plugin": "slow"})
        await nodes.start()
        await nodes.leader()
        await wait_until(lambda: feeds(nodes)["slow"]["index"] is not None)
        await post(nodes, 100, "entry")
        await wait_until(lambda: nodes.node().farms["farm"].first_index > 50)
        Slow.may_read.set()
        await wait_until(lambda: Slow.ends == ["FellBehind"])
        index = await post(nodes, 1, "last")
        await wait_until(lambda: feeds(nodes)["slow"]["index"] == index)


REFUSED = {
    "no such feed": ({"plugin": "fiel", "path": "x"}, "did you mean 'file'?"),
    "no such key": ({"plugin": "file", "path": "x", "pth": "y"}, "feed file: unknown key 'pth'"),
    "not usable": ({"plugin": "file", "path": "nowhere/x"}, "nowhere is not a directory"),
    "no name": ({"plugin": "idle", "name": "No Name"}, 'it must be a name of a-z 0-9 _ -, or ""'),
}


def made(directory: Path, *tables: dict[str, Any]) -> str:
    """The configuration of a new node with these feeds."""
    node = create_farm(directory / "farm", {1: member()}, FarmPlan(application="log")).directories[1]
    configure(node, *tables)
    return str(node / "garlicfarm.toml")


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.usefixtures("logging_restored")
def test_feed_that_cannot_work_is_refused_by_check_and_start(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table, words = REFUSED[case]
    config = made(tmp_path, table)
    for command in (["config", "check"], ["node", "start"]):
        assert run_command([*command, "--config", config]) == Exit.USAGE
        (line,) = capfd.readouterr().err.splitlines()
        assert words in line


@pytest.mark.usefixtures("logging_restored")
def test_two_feeds_of_one_name_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = made(tmp_path, {"plugin": "idle"}, {"plugin": "idle"})
    assert run_command(["config", "check", "--config", config]) == Exit.USAGE
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("farm[0].feed: two feeds are called idle; give each a name of its own")
