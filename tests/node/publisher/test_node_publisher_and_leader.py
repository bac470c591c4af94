"""Who publishes and who leads are two things: three real nodes, with routers that can publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.i2p.encoding import encode
from garlicfarm.node.publisher import PublisherApplication
from garlicfarm.publishing.fold import PublisherFold
from tests.node.support.cluster import Cluster, cluster, simulated_member

LEADER = 1


def fold_of(nodes: Cluster, node_id: int) -> PublisherFold:
    application = nodes.replica(node_id).application
    assert isinstance(application, PublisherApplication)
    return application.fold


async def until_publishing(nodes: Cluster, publisher: int) -> None:
    """Every node sees that member publish, alone, and with whom each has shaken hands."""
    with trio.fail_after(240):
        for node_id in nodes.running:
            farm, fold = nodes.replica(node_id), fold_of(nodes, node_id)
            while True:
                newest = fold.newest(publisher)
                meta = newest[1].meta if newest else None
                if fold.holders == (publisher,) and meta and meta.publishing:
                    break
                await farm.wait_applied(farm.applied_index)


async def test_publisher_changes_over_all_members_while_the_leader_stays(tmp_path: Path) -> None:
    key = tmp_path / "master.key"
    master = encode(create_keys(key).destination)
    publishers = ({"plugin": "simulated"},)
    members = {node_id: simulated_member(node_id, publishers=publishers) for node_id in (1, 2, 3)}
    plan: dict[str, Any] = {"application": "publisher", "master": master, "master_key_file": key}
    async with cluster(tmp_path, 3, start=False, members=members, **plan) as nodes:
        nodes.favour(LEADER)
        await nodes.start()
        assert await nodes.leader() == LEADER
        views: dict[int, Any] = {node_id: nodes.node(node_id).farms["farm"] for node_id in nodes.running}
        await views[1].administer("interval", {"ms": 1000}, "alice")
        term = views[1].status()["term"]
        previous = None
        for publisher in (2, 3, LEADER):
            await views[publisher].administer("override", {"member": publisher, "mode": "on"}, "alice")
            if previous:
                await views[publisher].administer("override", {"member": previous, "mode": "off"}, "alice")
            previous = publisher
            await until_publishing(nodes, publisher)
            for view in views.values():
                status = view.status()
                assert (status["leader"], status["publisher"], status["term"]) == (LEADER, publisher, term)
                rows = {row["id"]: row for row in status["members"]}
                assert [rows[node_id]["publisher"] for node_id in (1, 2, 3)] == [
                    node_id == publisher for node_id in (1, 2, 3)
                ]
                assert [row["role"] == "leader" for row in rows.values()] == [True, False, False]
        assert len({fold_of(nodes, node_id).ranking()["publisher"] for node_id in nodes.running}) == 1
        tests = {test.member: test.ms for test in fold_of(nodes, 1).report(2).tests or ()}
        assert set(tests) == {1, 3}
        assert all(0 <= ms < 10_000 for ms in tests.values())
