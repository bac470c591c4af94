"""Epochs: every member numbers entries alike, and keeps the current epoch whole where a feed serves it."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
import trio

from garlicfarm.cli import run as run_command
from garlicfarm.cli.exits import Exit
from garlicfarm.errors import Compacted, LocalProtocolError, NoQuorum, NotLeader, ProposalDropped
from garlicfarm.feed.contract import Feed, FeedSource
from garlicfarm.node import retention as retention_module
from garlicfarm.raft import Change, ConfChange
from garlicfarm.setup.provision import FarmPlan, create_farm
from garlicfarm.wire.messages import ClusterServer
from tests.node.support.cluster import Cluster, cluster, member
from tests.running import wait_until

LENGTH = 40
KEEP = {"snapshot_every_entries": 20, "keep_entries": LENGTH, "keep_bytes": 1024}
HANG_GUARD_S = 240.0


class Serving(Feed):
    """A feed that serves whole epochs; ``sources``: by the node."""

    Config = msgspec.Struct
    has_epochs = True
    sources: dict[int, FeedSource]

    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        self.sources[self.site.node_id] = source
        task_status.started()
        await trio.sleep_forever()
        raise AssertionError


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin ``serving``, and retention that looks often."""
    monkeypatch.setattr(retention_module, "CHECK_S", 0.05)
    Serving.sources = {}
    info = tmp_path / "site" / "epochs_of_a_test-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: epochs-of-a-test\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[garlicfarm.feeds]\nserving = {__name__}:Serving\n")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    monkeypatch.syspath_prepend(tmp_path / "site")


def configure(node: Path) -> None:
    with (node / "garlicfarm.toml").open("a") as file:
        file.write('\n[[farm.feed]]\nplugin = "serving"\n')


async def post(nodes: Cluster, count: int) -> int:
    """To whoever leads: a machine that stands still may bring an election."""
    index, posted = 0, 0
    while posted < count:
        leader = await nodes.leader()
        with suppress(NotLeader, NoQuorum, ProposalDropped):
            index, _ = await nodes.node(leader).farms["farm"].post(b"%100d" % posted, "alice")
            posted += 1
    return index


def numbers(source: FeedSource) -> dict[int, int]:
    """By their numbers, the indexes of the entries that a member holds."""
    first = source.count_entries(source.first_index - 1)
    last = source.count_entries(source.commit_index)
    found = {number: source.find_entry(number) for number in range(first, last)}
    for number, index in found.items():
        assert (source.count_entries(index - 1), source.count_entries(index)) == (number, number + 1)
    return found


async def test_current_epoch_stays_whole_whatever_retention_says(tmp_path: Path) -> None:
    async with cluster(tmp_path, start=False, retention=KEEP, epoch_length=LENGTH) as nodes:
        configure(nodes.directories[1])
        await nodes.start()
        await nodes.leader()
        await wait_until(lambda: 1 in Serving.sources)
        source = Serving.sources[1]
        assert source.epoch_length == LENGTH
        for _ in range(3 * LENGTH):
            await post(nodes, 1)
            newest = source.count_entries(source.commit_index) - 1
            first = newest - newest % LENGTH
            assert source.find_entry(max(0, first - 1)) >= source.first_index  # and what is between the two
        assert newest == 3 * LENGTH - 1
        await wait_until(lambda: source.first_index > LENGTH)  # the one before is gone
        with pytest.raises(Compacted):
            source.find_entry(0)
        with pytest.raises(Compacted):
            source.count_entries(0)
        with pytest.raises(LocalProtocolError):
            source.find_entry(newest + 1)
        with pytest.raises(LocalProtocolError):
            source.count_entries(source.commit_index + 1)
        status = nodes.node().farms["farm"].status()
        assert (status["application_entries"], status["epoch_length"]) == (newest + 1, LENGTH)


async def test_without_such_a_feed_retention_goes_by_its_settings(tmp_path: Path) -> None:
    async with cluster(tmp_path, retention=KEEP, epoch_length=10**6) as nodes:
        await nodes.leader()
        index = await post(nodes, 3 * LENGTH)
        await wait_until(lambda: nodes.node().farms["farm"].first_index > index - 2 * LENGTH)


async def test_members_number_entries_alike_whether_they_replayed_them_or_got_a_snapshot(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, 3, start=False, retention=KEEP, epoch_length=LENGTH) as nodes:
        for directory in nodes.directories.values():
            configure(directory)
        await nodes.start(1, 2)
        await post(nodes, 2 * LENGTH)
        leader = await nodes.leader()
        await nodes.replica(leader).membership.change(
            ConfChange(Change.SET, ClusterServer(2, nodes.endpoints[2]))
        )  # a Configuration between them
        await post(nodes, LENGTH + 7)
        await wait_until(lambda: nodes.node(1).farms["farm"].first_index > LENGTH)
        await nodes.start(3)
        index = await post(nodes, 5)
        await nodes.applied(index)
        await wait_until(lambda: len(Serving.sources) == 3)
        assert nodes.node(3).farms["farm"].first_index > LENGTH  # from a snapshot
        found = [numbers(Serving.sources[node_id]) for node_id in (1, 2, 3)]
        common = found[0].keys() & found[1].keys() & found[2].keys()
        assert max(common) == 3 * LENGTH + 11
        assert {number: found[0][number] for number in common} == {n: found[2][n] for n in common}
        assert {number: found[1][number] for number in common} == {n: found[2][n] for n in common}
        counts = {nodes.node(node_id).farms["farm"].status()["application_entries"] for node_id in (1, 2, 3)}
        assert counts == {3 * LENGTH + 12}
        await nodes.stop(3)
        Serving.sources.clear()
        await nodes.start(3)
        await nodes.applied(index)
        await wait_until(lambda: 3 in Serving.sources)
        again = numbers(Serving.sources[3])
        assert max(again) == max(common)
        common &= again.keys()  # it may have shortened its log meanwhile
        assert {number: again[number] for number in common} == {n: found[2][n] for n in common}


@pytest.mark.usefixtures("logging_restored")
def test_feed_of_epochs_that_retention_does_not_keep_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = FarmPlan(application="log", retention={"keep_entries": 39}, epoch_length=LENGTH)
    node = create_farm(tmp_path / "farm", {1: member()}, plan).directories[1]
    config = node / "garlicfarm.toml"
    assert run_command(["config", "check", "--config", str(config)]) == Exit.OK
    configure(node)
    capfd.readouterr()
    for command in (["config", "check"], ["node", "start"]):
        assert run_command([*command, "--config", str(config)]) == Exit.USAGE
        assert capfd.readouterr().err == (
            "error: farm farm: the feed serving serves whole epochs, of 40 entries in this farm, and "
            "retention.keep_entries is 39; set it to 40 or more\n"
        )
    config.write_text(config.read_text().replace("keep_entries = 39", "keep_entries = 40"))
    assert run_command(["config", "check", "--config", str(config)]) == Exit.OK
