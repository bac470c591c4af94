"""A disk that fills up: it is told before it is full, and posts end before the farm does."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.admin.health import judge
from garlicfarm.disk_space import RESERVE_BYTES, DiskSpace
from garlicfarm.errors import ProposalDropped
from garlicfarm.node.space_watch import SpaceWatch
from garlicfarm.publishing.documents import StatusDocument
from garlicfarm.publishing.entries import encode_status
from garlicfarm.trouble import Trouble
from tests.node.support.cluster import THREE, Cluster, cluster, simulated_member
from tests.project.pages import ROOT
from tests.running import told, wait_until

Usage = namedtuple("Usage", "total used free")
SIZE = 100 * RESERVE_BYTES


class Disks:
    """How much is free on the disk of each node; the others have much."""

    def __init__(self, nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free: dict[int, int] = {}
        self._nodes = nodes
        monkeypatch.setattr(shutil, "disk_usage", self._usage)

    def _usage(self, path: Path) -> Usage:
        owner = [one for one, at in self._nodes.directories.items() if at in path.parents]
        free = self.free.get(owner[0], SIZE // 2)
        return Usage(SIZE, SIZE - free, free)


def note(sequence: int) -> bytes:
    date = time.time_ns() // 1_000_000
    document = StatusDocument(cluster="farm", date=date, id=0, sequence=sequence, config={"by": "alice"})
    return encode_status(document)


def status_of(nodes: Cluster, node: int) -> dict[str, Any]:
    return nodes.node(node).farms["farm"].status()


async def test_leader_with_only_its_reserve_left_refuses_notes_and_goes_on_with_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    members = {node: simulated_member(node) for node in (1, 2, 3)}
    raft = {**THREE, "election_timeout_min_s": 8.0, "election_timeout_max_s": 9.0}  # one leader throughout
    plan: dict[str, Any] = {"members": members, "application": "publisher", "raft": raft}
    async with cluster(tmp_path, start=False, **plan) as nodes:
        disks = Disks(nodes, monkeypatch)
        await nodes.start()
        leader = await nodes.leader()
        follower = min({1, 2, 3} - {leader})
        farm = nodes.replica(leader)
        views = [nodes.node(node).farms["farm"] for node in (leader, follower)]
        for number, view in enumerate(views, 1):
            await view.post(note(number), "alice")

        disks.free[leader] = RESERVE_BYTES
        await wait_until(lambda: not farm.space.has_room)
        async with nodes.client(leader) as client:
            for number, post in enumerate((*[view.post for view in views], None), 10):
                with pytest.raises(ProposalDropped, match="disk-full"):
                    await (client.post([note(number)]) if post is None else post(note(number), "alice"))
        index, _ = await views[1].administer("interval", {"ms": 1000}, "bob")
        for node in (1, 2, 3):  # each reports twice
            for _ in range(2):
                index = await _next_status(nodes, node, index)
        assert await farm.reads.read_index() >= index
        assert nodes.replica(leader).is_leader

        status = status_of(nodes, leader)
        (trouble,) = [each for each in status["troubles"] if each["kind"] == "disk"]
        assert (trouble["about"], trouble["own"]) == (f"space {leader}", True)
        assert "refuses posts" in trouble["text"]
        assert trouble["text"] in status["problems"]
        assert judge(status) == "degraded"
        assert not [each for each in status_of(nodes, follower)["troubles"] if each["kind"] == "disk"]
        figure = partial(farm.metrics.registry.get_sample_value, labels={"farm": "farm"})
        assert figure("garlicfarm_storage_free_bytes") == RESERVE_BYTES
        assert figure("garlicfarm_storage_used_ratio") == 0.99

        disks.free.clear()
        await wait_until(lambda: farm.space.has_room)
        await views[1].post(note(20), "alice")
        assert not [each for each in status_of(nodes, leader)["troubles"] if each["kind"] == "disk"]
        words = [each["event"] for each in told(caplog, "disk-full", "disk-has-room")]
        assert words == ["disk-full", "disk-has-room"]


async def _next_status(nodes: Cluster, node: int, after: int) -> int:
    """The index of a status of a member behind ``after``."""
    fold: Any = nodes.replica(node).application

    def found() -> int:
        newest = fold.fold.newest(node)
        return newest[0] if newest is not None and newest[0] > after else 0

    return int(await wait_until(found))


def test_what_was_given_to_write_since_the_last_looks_counts_as_taken() -> None:
    watch = SpaceWatch()
    watch.on_submit(10**12)
    assert watch.has_room  # not known yet
    watch = SpaceWatch()
    watch.seen = DiskSpace(Path("x"), SIZE // 2, RESERVE_BYTES + 1000)
    watch.on_submit(999)
    assert watch.has_room
    watch.on_submit(1)
    assert not watch.has_room


@pytest.mark.parametrize(
    ("free", "expected"),
    [(30, None), (15, None), (10, "is 90% full"), (3, "refuses posts")],
)
def test_trouble_is_told_from_90_percent_on(free: int, expected: str | None) -> None:
    watch = SpaceWatch()
    watch.seen = DiskSpace(Path("x"), (100 - free) * 1000, free * 1000)
    trouble = watch.trouble(7)
    if expected is None:
        assert trouble is None
    else:
        assert isinstance(trouble, Trouble)
        assert (trouble.kind, trouble.about, trouble.own) == ("disk", "space 7", True)
        assert expected in trouble.text


@pytest.mark.netns
def test_posts_that_fill_a_small_disk_are_refused_before_it_is_full_and_taken_again(tmp_path: Path) -> None:
    command = ["unshare", "-rm", sys.executable, "-m", "tests.node.storage.full_disk_child", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["reason"] == "disk-full", found
    assert found["posts"] >= 80, found
    assert found["free"] > 0, found
    assert found["troubles"] == ["disk"], found
    assert found["leads"], found
    assert found["read"] > found["posts"], found
    assert found["last"] > found["read"], found
