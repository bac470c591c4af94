"""The examples keep the contracts that they show, and the pages show them as they are."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

from garlicfarm.feed.contract import Feed, FeedSite
from garlicfarm.feed.lines import encode_lines
from garlicfarm.raft import Entry
from garlicfarm.testing import FAST, FarmPlan, process_farm
from garlicfarm.testing.feed_suite import FeedSuite
from garlicfarm.wire import ValueType
from garlicfarm_plugin_dafka import MeshConfig, open_producer
from tests.dafka.meshes import plain_tower
from tests.project.pages import ROOT


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


counter = example("test_counter")
farm = counter.farm
test_counter_survives_its_leader = counter.test_counter_survives_its_leader
test_counter_refuses_what_is_no_number = counter.test_counter_refuses_what_is_no_number


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("howto/transport-plugin.md", "plain_transport"),
        ("howto/router-plugin.md", "file_router"),
        ("howto/publisher-plugin.md", "file_publisher"),
        ("howto/feed-plugin.md", "file_feed"),
    ],
)
def test_test_of_a_guide_passes_as_it_stands(page: str, name: str, tmp_path: Path) -> None:
    section = (ROOT / "docs" / page).read_text(encoding="utf-8").partition("## Test it")[2]
    shutil.copy(ROOT / "examples" / f"{name}.py", tmp_path / "my_package.py")
    (tmp_path / "test_it.py").write_text(section.partition("```python\n")[2].partition("```")[0])
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp=scratch"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
async def test_follower_posts_and_says_what_happens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ""
    plan = FarmPlan(application="log", raft=FAST)
    async with process_farm(tmp_path / "farm", 1, plan) as farm, trio.open_nursery() as nursery:
        with trio.fail_after(240):
            async with farm.nodes[1].client() as client:
                await client.post(farm.name, b"there is a leader")
            nursery.start_soon(example("follow").main, str(farm.nodes[1].directory / "garlicfarm.toml"))
            while "EntryEvent" not in output:
                await trio.sleep(0.01)
                output += capsys.readouterr().out
        nursery.cancel_scope.cancel()
    assert output.startswith("committed at index ")
    assert "b'hello from this machine'" in output


async def test_statuses_are_printed_as_they_come_over_dafka(capsys: pytest.CaptureFixture[str]) -> None:
    documents = [
        {"id": 1, "config": {"admin": {"action": "interval", "by": "farm create"}}},
        {"id": 2, "router": {"uptime": 7}},
        {"id": 0, "config": {"by": "local", "note": "moved"}},
    ]
    entries = [
        Entry(index, 1, ValueType.APPLICATION, json.dumps(document).encode())
        for index, document in enumerate(documents, 1)
    ]
    output = ""
    async with plain_tower() as tower:
        config = MeshConfig(towers=(str(tower.endpoint),))
        async with open_producer(config, "farm", acks=0) as producer, trio.open_nursery() as nursery:
            place = "farm", str(tower.endpoint), "tcp://127.0.0.1:0", "", ""
            nursery.start_soon(example("dafka_statuses").main, *place)
            await producer.send_many(encode_lines([entry]) for entry in entries)
            with trio.fail_after(240):
                while "moved" not in output:
                    await trio.sleep(0.01)
                    output += capsys.readouterr().out
            nursery.cancel_scope.cancel()
    assert output.splitlines() == [
        "1 'farm create' orders 'interval'",
        '2 member 2: {"uptime": 7}',
        "3 'local' notes 'moved'",
    ]


class TestFileFeed(FeedSuite):
    @pytest.fixture
    def feed(self, tmp_path: Path) -> Feed:
        self.path = tmp_path / "entries.jsonl"
        return self._feed(tmp_path)

    @pytest.fixture
    def arrived(self) -> Callable[[], Awaitable[Sequence[bytes]]]:
        async def arrived() -> list[bytes]:
            lines = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
            return [line["value"].encode() for line in lines if "value" in line]

        return arrived

    @pytest.fixture
    def unreachable_feed(self, tmp_path: Path) -> Feed:
        (tmp_path / "gone").mkdir()
        feed = self._feed(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        return feed

    def _feed(self, base_dir: Path) -> Feed:
        module = example("file_feed")
        site = FeedSite(farm="farm", node_id=1, name="file", directory=base_dir / "site")
        made: Feed = module.FileFeed(module.FileFeedConfig(path="entries.jsonl"), base_dir, site)
        return made


@pytest.mark.slow
async def test_farm_of_processes_on_the_page_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "testing-kits.md").read_text(encoding="utf-8")
    (block,) = [
        code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "process_farm" in code
    ]
    names: dict[str, Any] = {}
    exec(compile(block, "testing-kits.md", "exec"), names)
    await names["test_my_program_survives_a_kill"](tmp_path)


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("howto/use-the-log.md", "replicated_log"),
        ("howto/use-the-log.md", "follow"),
        ("howto/use-the-log.md", "key_value"),
        ("howto/use-the-log.md", "own_application"),
        ("howto/transport-plugin.md", "plain_transport"),
        ("howto/router-plugin.md", "file_router"),
        ("howto/publisher-plugin.md", "file_publisher"),
        ("howto/feed-plugin.md", "file_feed"),
        ("howto/spark-connect.md", "connect_rankings"),
        ("reference/testing-kits.md", "test_counter"),
    ],
)
def test_page_with_example_shows_the_file_as_it_is(page: str, name: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert f"```python\n{source}```\n" in text
