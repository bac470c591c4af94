"""Backups by a node: when, and what a directory that refuses costs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from garlicfarm.admin.health import judge
from garlicfarm.node import backups as backups_module
from garlicfarm.node.backups import due_ms, turn_ms
from garlicfarm.storage import backups as stored_backups
from garlicfarm.storage import list_backups, read_saved
from tests.node.support.cluster import Cluster, cluster
from tests.running import told, wait_until

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("newest_ms", "offset_ms", "due"),
    [
        (None, 0, 0),
        (0, 0, HOUR_MS),
        (HOUR_MS - 1, 0, HOUR_MS),
        (HOUR_MS, 0, 2 * HOUR_MS),
        (HOUR_MS, 20_000, HOUR_MS + 20_000),
        (HOUR_MS + 20_000, 20_000, 2 * HOUR_MS + 20_000),
    ],
)
def test_backup_is_due_at_the_members_own_turn_after_the_newest(
    newest_ms: int | None, offset_ms: int, due: int
) -> None:
    assert due_ms(newest_ms, HOUR_MS, offset_ms) == due


def configure(nodes: Cluster, directory: Path, every: str, keep: int = 2) -> None:
    for each in nodes.directories.values():
        with (each / "garlicfarm.toml").open("a") as file:
            file.write(f'\n[farm.backup]\nevery = "{every}"\nkeep = {keep}\ndirectory = "{directory}"\n')


def test_members_take_turns_at_whole_seconds() -> None:
    turns = [turn_ms(member, (9, 4, 1), HOUR_MS) for member in (1, 4, 9)]
    assert turns == [0, HOUR_MS // 3, 2 * HOUR_MS // 3]
    assert turn_ms(2, (1, 2, 3), 86_399_000) == 28_799_000
    assert turn_ms(2, (), HOUR_MS) == 0  # it was removed


async def test_node_keeps_the_newest_backups_each_with_the_state_at_its_index(tmp_path: Path) -> None:
    directory = tmp_path / "backups"
    directory.mkdir()
    async with cluster(tmp_path, start=False) as nodes:
        configure(nodes, directory, "1s")
        await nodes.start()
        async with nodes.client() as client:
            index, _ = await client.post([b"kept"])

        def is_saved() -> bool:
            found = list_backups(directory, "farm", 1)
            return len(found) == 2 and read_saved(found[-1].path)[0].index >= index

        await wait_until(is_saved)
        newest, saved = read_saved(list_backups(directory, "farm", 1)[0].path)
        replica = nodes.replica()
        assert (newest.farm_id, newest.application) == (nodes.farm_id, "log")
        assert newest.configuration == replica.configuration
        assert (newest.index, newest.state) == (replica.applied_index, replica.application.snapshot())
        assert (saved.farm, saved.node, saved.epoch_length) == ("farm", 1, 100_000)
        value = nodes.node().metrics.registry.get_sample_value
        await wait_until(lambda: value("garlicfarm_backup_timestamp_seconds", {"farm": "farm"}))


async def test_directory_that_is_gone_degrades_the_health_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "backups"
    async with cluster(tmp_path, start=False) as nodes:
        configure(nodes, directory, "1s")
        await nodes.start()
        view = nodes.node().farms["farm"]
        problems = await wait_until(lambda: view.status().get("problems"))
        assert problems == [f"node 1 makes no backups: {directory}: No such file or directory"]
        assert judge(view.status()) == "degraded"
        assert told(caplog, "backup-failed")[0]["cause"] == f"{directory}: No such file or directory"
        async with nodes.client() as client:
            await client.post([b"the farm goes on"])
        directory.mkdir()
        await wait_until(lambda: not view.status().get("problems"))
        assert judge(view.status()) == "healthy"


async def test_directory_that_hangs_is_a_problem_and_ends_with_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "hangs"
    os.mkfifo(pipe)

    def hang(*arguments: object) -> None:
        pipe.read_bytes()  # until the end of the test opens the other end

    monkeypatch.setattr(stored_backups, "replace_file", hang)
    monkeypatch.setattr(backups_module, "DEADLINE_S", 0.5)
    async with cluster(tmp_path, start=False) as nodes:
        configure(nodes, tmp_path, "1s")
        await nodes.start()
        view = nodes.node().farms["farm"]
        await wait_until(lambda: view.status().get("problems"))
        assert "has not answered for" in view.status()["problems"][0]
        async with nodes.client() as client:
            await client.post([b"the farm goes on"])
        await nodes.stop()
    pipe.write_bytes(b"")


async def test_backup_of_a_later_date_than_now_keeps_no_clock_from_backups(tmp_path: Path) -> None:
    directory = tmp_path / "backups"
    directory.mkdir()
    (directory / "farm~1~29990101T000000Z~7.snap").touch()
    before_ms = time.time_ns() // 1_000_000
    async with cluster(tmp_path, start=False) as nodes:
        configure(nodes, directory, "1h")
        await nodes.start()
        await wait_until(lambda: len(list_backups(directory, "farm", 1)) == 2)
    later, made = list_backups(directory, "farm", 1)
    assert later.date_ms > made.date_ms >= before_ms // 1000 * 1000
