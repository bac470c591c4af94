"""A disk that does not answer any more: another member leads, and the node says what is wrong."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import pytest
import trio
from trio.testing import MockClock

from garlicfarm.admin.health import judge
from garlicfarm.config.model import PRESETS, RaftSection
from garlicfarm.errors import DiskHangs
from garlicfarm.feed.pages import PageReader
from garlicfarm.node.admin_view import FarmAdminView
from garlicfarm.node.replica import Replica
from garlicfarm.testing.memory_cluster import cluster
from tests.node.entries.test_node_reading import Journal, hold_disk, linearizable, plain
from tests.node.support.cluster import cluster as cluster_of_nodes
from tests.running import led, told, wait_until


def view(farm: Replica) -> FarmAdminView:
    return FarmAdminView(farm, cast(PageReader, None), Path("/dev/null"))  # nobody reads the log here


def words(caplog: pytest.LogCaptureFixture, node: int) -> list[str]:
    """What a node logged of its disk."""
    return [each["event"] for each in told(caplog) if each.get("node") == node and "disk" in each["event"]]


def limit_s(farm: Replica) -> float:
    raft = farm.section.raft
    # A tick of the watch later than the timeout, and as long again for a hand-over.
    return 1.1 * raft.disk_timeout_s + raft.election_timeout_max_s


async def test_leader_whose_disk_hangs_hands_over_and_serves_again_when_it_answers(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with led(cluster(3, application=Journal)) as (nodes, old):
        others = nodes.running - {old}
        farm = nodes.replica(old)
        await nodes.applied((await nodes.post(b"before"))[0])
        release, begun = hold_disk(farm), trio.current_time()
        await nodes.post(b"meanwhile", via=min(others))  # its followers commit
        assert (farm.is_leader, plain(farm)) == (True, b"before")
        new = await nodes.leader(others)
        assert trio.current_time() - begun <= limit_s(farm)
        assert not farm.is_leader
        await nodes.applied((await nodes.post(b"after", via=new))[0], others)
        assert plain(nodes.replica(new)) == b"before meanwhile after"

        posted, _ = await nodes.post(b"through it", via=old)
        assert nodes.replica(new).applied_index >= posted

        assert plain(farm) == b"before"  # what readers get who ask for no more
        with pytest.raises(DiskHangs, match="disk of this node has not answered for"):
            await farm.reads.read_index()
        status = view(farm).status()
        hangs_s = trio.current_time() - begun
        assert status["disk_hangs_s"] == pytest.approx(hangs_s, abs=0.1)
        assert "disk" in next(row["error"] for row in status["members"] if row["id"] == old)
        assert judge(status) == "degraded"
        view(farm).collect()
        hangs = "garlicfarm_storage_hangs_seconds", {"farm": "farm"}
        assert farm.metrics.registry.get_sample_value(*hangs) == pytest.approx(hangs_s, abs=0.1)
        for node in others:
            assert view(nodes.replica(node)).status()["disk_hangs_s"] is None

        term = nodes.replica(new).raw.term
        await trio.sleep(60)  # it neither stands nor leads
        assert (nodes.replica(new).raw.term, farm.raw.term) == (term, term)
        release()
        await nodes.applied(nodes.replica(new).applied_index)
        assert plain(farm) == b"before meanwhile after through it"
        assert view(farm).status()["disk_hangs_s"] is None
        view(farm).collect()
        assert farm.metrics.registry.get_sample_value(*hangs) == 0
        await nodes.replica(new).step_down(old)
        assert await linearizable(farm) == b"before meanwhile after through it"
    assert words(caplog, old) == ["disk-hangs", "disk-answers"]
    assert not any(words(caplog, node) for node in others)


async def test_read_that_waits_for_the_disk_is_refused_when_it_is_found_to_hang(
    autojump_clock: MockClock,
) -> None:
    raft = {**PRESETS["clearnet"], "disk_timeout_s": 2.0}  # before a read is given up
    async with led(cluster(3, raft=msgspec.convert(raft, RaftSection))) as (nodes, leader):
        farm = nodes.replica(leader)
        release = hold_disk(farm)
        await nodes.post(b"x", via=min(nodes.running - {leader}))
        begun = trio.current_time()
        with pytest.raises(DiskHangs):
            await farm.reads.read_index()
        assert trio.current_time() - begun <= 1.1 * farm.section.raft.disk_timeout_s
        release()


async def test_member_alone_refuses_posts_while_its_disk_hangs_and_takes_them_again(
    autojump_clock: MockClock,
) -> None:
    async with cluster(1, application=Journal) as nodes:
        farm = nodes.replica(await nodes.leader())
        release = hold_disk(farm)
        with trio.move_on_after(1):
            await nodes.post(b"x", via=1)
        await wait_until(lambda: farm.disk.is_hanging)
        with pytest.raises(DiskHangs):  # it leads yet
            await nodes.post(b"y", via=1)
        await wait_until(lambda: not farm.is_leader)
        with pytest.raises(DiskHangs):  # nobody does
            await nodes.post(b"y", via=1)
        release()
        await nodes.post(b"z", via=1)
        assert plain(farm) == b"x z"


async def test_disk_that_is_slow_and_a_process_that_was_stopped_are_no_disk_that_hangs(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with cluster(1, application=Journal) as nodes:
        farm = nodes.replica(await nodes.leader())
        for number in range(4):
            release = hold_disk(farm)
            async with trio.open_nursery() as nursery:
                proposal = farm.proposals.propose(partial(farm.raw.propose, (b"%d" % number,)))
                nursery.start_soon(farm.proposals.outcome, proposal)
                await trio.sleep(0.8 * farm.section.raft.disk_timeout_s)
                autojump_clock.jump(3600)
                await trio.lowlevel.checkpoint()
                release()
    assert words(caplog, 1) == []


async def test_requests_of_connections_that_are_gone_are_not_kept_while_the_disk_hangs(
    autojump_clock: MockClock,
) -> None:
    """Its leader connects again and again, and gets no answer."""
    async with led(cluster(3, application=Journal)) as (nodes, leader):
        farm = nodes.replica(min(nodes.running - {leader}))
        release = hold_disk(farm)
        await nodes.applied((await nodes.post(b"x"))[0], {leader})
        await trio.sleep(600)
        assert farm.requests.waiting < 20
        release()
        await nodes.applied((await nodes.post(b"y"))[0])
        assert plain(farm) == b"x y"
        await trio.sleep(10)
        assert farm.requests.waiting < 20


async def test_node_whose_disk_hangs_is_not_ready_though_it_knows_the_leader(tmp_path: Path) -> None:
    async with cluster_of_nodes(tmp_path) as nodes:
        await nodes.leader()
        assert nodes.node().ready()
        nodes.replica().disk.is_hanging = True
        assert nodes.replica().leader_id
        assert not nodes.node().ready()
