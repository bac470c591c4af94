"""Three real nodes, one of which comes to hold something else than the others, and is repaired."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.cli import run
from garlicfarm.errors import ProposalDropped
from garlicfarm.node.admin_view import FarmAdminView
from garlicfarm.node.publisher import PublisherApplication
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.raft import SnapshotMeta
from garlicfarm.storage import LogStore
from garlicfarm.testing import cluster as memory_cluster
from tests.node.support.cluster import STEADY, Cluster, cluster, simulated_member


def fold_of(nodes: Cluster, node_id: int) -> PublisherFold:
    application = nodes.replica(node_id).application
    assert isinstance(application, PublisherApplication)
    return application.fold


async def until_contradicted(nodes: Cluster, found: dict[int, str], among: tuple[int, ...]) -> None:
    """All these nodes know that of members that most others contradict."""
    with trio.fail_after(240):
        for node_id in among:
            farm, fold = nodes.replica(node_id), fold_of(nodes, node_id)
            while True:
                known = {one: fold.contradicted(one) for one in fold.members}
                if {one: each.what for one, each in known.items() if each} == found:
                    break
                await farm.wait_applied(farm.applied_index)


async def until_confirmed(nodes: Cluster, node_id: int) -> None:
    """What this node digests is its own, whatever it has restored."""
    farm = nodes.replica(node_id)
    with trio.fail_after(240):
        while (held := farm.digests) is None or held.origin:
            await farm.wait_applied(farm.applied_index)


def restore_slowly(nodes: Cluster, node_id: int) -> None:
    """A snapshot of this node's is restored some heartbeats after it has come."""
    applier = nodes.replica(node_id).applier
    restore = applier.restore

    async def slowly(meta: SnapshotMeta) -> None:
        await trio.sleep(5 * nodes.replica(node_id).section.raft.heartbeat_s)
        await restore(meta)

    applier.restore = slowly


def view_of(nodes: Cluster, node_id: int) -> FarmAdminView:
    view = nodes.node(node_id).farms["farm"]
    assert isinstance(view, FarmAdminView)
    return view


async def test_leader_with_a_wrong_state_hands_over_and_is_repaired_by_a_snapshot(tmp_path: Path) -> None:
    members = {node_id: simulated_member(node_id, publishers=()) for node_id in (1, 2, 3)}
    plan: dict[str, Any] = {"application": "publisher"}
    async with cluster(tmp_path, 3, raft=STEADY, start=False, members=members, **plan) as nodes:
        nodes.favour(1)
        await nodes.start()
        wrong = await nodes.leader()
        others = tuple(one for one in (1, 2, 3) if one != wrong)
        await view_of(nodes, wrong).administer("interval", {"ms": 1000}, "alice")
        fold_of(nodes, wrong).state.skipped["a flipped bit"] = 1
        await until_contradicted(nodes, {wrong: "state"}, others)
        with trio.fail_after(120):
            while (leader := await nodes.leader()) == wrong:
                await nodes.replica(wrong).core.wait_leader_change()
        status = view_of(nodes, leader).status()
        assert any("`garlicfarm member repair`" in problem for problem in status["problems"])

        with pytest.raises(ProposalDropped, match="leads-itself"):
            await view_of(nodes, leader).repair("alice")
        restore_slowly(nodes, wrong)
        with trio.fail_after(120):
            index = await view_of(nodes, wrong).repair("alice")
        assert "a flipped bit" not in fold_of(nodes, wrong).skipped
        assert nodes.replica(wrong).store.origin() in others
        await until_contradicted(nodes, {}, (1, 2, 3))
        assert nodes.replica(wrong).applied_index > index
        await until_confirmed(nodes, wrong)
        own = [nodes.replica(one).digests for one in others]
        assert [each is not None and each.origin for each in own] == [0, 0]

        await nodes.stop(wrong)
        await nodes.start(wrong)
        assert nodes.replica(wrong).store.origin() in others
        await until_confirmed(nodes, wrong)
        await until_contradicted(nodes, {}, (1, 2, 3))


async def test_survivor_that_was_contradicted_leads_the_recovered_farm(tmp_path: Path) -> None:
    members = {node_id: simulated_member(node_id, publishers=()) for node_id in (1, 2, 3)}
    plan: dict[str, Any] = {"application": "publisher", "interval_ms": 1000}
    async with cluster(tmp_path, 3, raft=STEADY, members=members, **plan) as nodes:
        wrong = 1 + await nodes.leader() % 3
        fold_of(nodes, wrong).state.skipped["a flipped bit"] = 1
        await until_contradicted(nodes, {wrong: "state"}, (wrong,))
        await nodes.stop()
        config = str(nodes.directories[wrong] / "garlicfarm.toml")
        command = ["recover", "--config", config, "--yes-i-understand"]
        assert await trio.to_thread.run_sync(run, command) == 0
        with closing(LogStore.open(nodes.data(wrong) / "farms" / "farm", farm="farm")) as store:
            assert store.restored is not None
            begins = store.restored.index
            fold = PublisherFold("farm")
            fold.restore(store.restored.state)
        assert fold.contradicted(wrong) is None
        await nodes.start(wrong)
        assert await nodes.leader() == wrong
        farm = nodes.replica(wrong)
        with trio.fail_after(120):
            while (own := farm.application.claimed(wrong)) is None or own.index <= begins:
                await farm.wait_applied(farm.applied_index)
        await until_contradicted(nodes, {}, (wrong,))


async def test_member_of_a_farm_that_does_not_compare_is_not_repaired() -> None:
    async with memory_cluster(1) as nodes:
        with pytest.raises(ProposalDropped, match="not-compared"):
            await nodes.replica(await nodes.leader()).repair()
