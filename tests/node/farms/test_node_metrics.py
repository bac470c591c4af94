"""What a scrape finds of members and farms that are gone."""

from __future__ import annotations

from pathlib import Path

import trio

from garlicfarm.raft import Change, ConfChange
from garlicfarm.wire.messages import ClusterServer
from tests.node.support.cluster import Cluster, cluster
from tests.running import led


def shown(nodes: Cluster, node: int, peer: int) -> set[str]:
    """The names of what a scrape of ``node`` finds about ``peer``."""
    nodes.node(node).collect()
    families = nodes.node(node).metrics.registry.collect()
    samples = [sample for family in families for sample in family.samples]
    return {sample.name for sample in samples if sample.labels.get("peer") == str(peer)}


async def test_member_that_is_removed_is_in_no_figure_any_more(tmp_path: Path) -> None:
    async with led(cluster(tmp_path, 2)) as (nodes, leader):
        other = 3 - leader
        assert {"garlicfarm_peer_state", "garlicfarm_peer_match_index"} <= shown(nodes, leader, other)
        await nodes.replica(leader).membership.change(ConfChange(Change.REMOVE, ClusterServer(other)))
        assert shown(nodes, leader, other) == set()


async def test_figure_that_only_a_leader_knows_goes_with_its_leadership(tmp_path: Path) -> None:
    async with led(cluster(tmp_path, 2)) as (nodes, leader):
        other = 3 - leader
        assert "garlicfarm_peer_match_index" in shown(nodes, leader, other)
        # Who has not applied the Configuration of this term refuses to take over.
        index, _ = await nodes.node(leader).farms["farm"].post(b"one", "alice")
        await nodes.applied(index)
        with trio.fail_after(240):
            assert await nodes.replica(leader).step_down(other) == other
        assert "garlicfarm_peer_state" in shown(nodes, leader, other)
        assert "garlicfarm_peer_match_index" not in shown(nodes, leader, other)
