"""Two farms of the same three nodes, behind the same listeners: each with its own id, secret, master,
members' statuses, leader and administration."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import ANY

import trio

from garlicfarm.credentials.member_credentials import write_secret_file
from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.node.replica import Replica
from garlicfarm.storage import Genesis, create_store
from garlicfarm.wire.messages import ClusterServer, Configuration
from tests.node.support.cluster import Cluster, cluster

MASTERS = {"farm": encode(simulated_destination(101)), "second": encode(simulated_destination(102))}


def add_second_farm(nodes: Cluster) -> None:
    servers = tuple(ClusterServer(node_id, endpoint) for node_id, endpoint in nodes.endpoints.items())
    genesis = Genesis("second", bytes(range(16)), "publisher", 2, Configuration(0, 0, servers))
    for node_id, directory in nodes.directories.items():
        create_store(nodes.data(node_id) / "farms" / "second", genesis)
        write_secret_file(nodes.data(node_id) / "secrets" / "second.secret", bytes(range(32)))
        file = directory / "garlicfarm.toml"
        text = file.read_text()
        table = "".join(text.partition("[[farm]]")[1:]).replace(MASTERS["farm"], MASTERS["second"])
        table = table.replace('name = "farm"', 'name = "second"').replace("farm.secret", "second.secret")
        file.write_text(f"{text}\n{table}")


async def leader(nodes: Cluster, name: str) -> Replica:
    with trio.fail_after(240):
        while True:
            farms = [nodes.replica(node_id, name) for node_id in nodes.running]
            for farm in farms:
                if farm.is_leader and {each.leader_id for each in farms} == {farm.node_id}:
                    return farm
            await trio.sleep(0.01)


async def folded(nodes: Cluster, name: str) -> dict[str, object]:
    """The ranking once all three members have posted, the same on each node."""
    with trio.fail_after(240):
        while True:
            views = [nodes.node(node_id).farms[name] for node_id in nodes.running]
            bodies = [view.ranking() for view in views]
            if bodies[0] == bodies[1] == bodies[2] and all(row["index"] for row in bodies[0]["members"]):
                return bodies[0]
            await trio.sleep(0.01)


async def test_farms_of_three_nodes_have_only_their_listeners_in_common(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, start=False, application="publisher", master=MASTERS["farm"]) as nodes:
        add_second_farm(nodes)
        await nodes.start()
        first, second = await leader(nodes, "farm"), await leader(nodes, "second")
        for name in MASTERS:
            await folded(nodes, name)
        for name, master in MASTERS.items():
            for node_id in nodes.running:
                application = nodes.replica(node_id, name).application
                newest = application.fold.newest(node_id)  # type: ignore[attr-defined]
                assert newest[1].cluster == name
                assert newest[1].meta.destination == master

        # What an administrator sets in one farm is not in the other's log.
        view = nodes.node(1).farms["farm"]
        index, _ = await view.administer("override", {"member": 2, "mode": "off"}, "alice")
        await nodes.applied(index)
        orders = {name: (await folded(nodes, name))["orders"] for name in MASTERS}
        assert orders["farm"] == {"override 2": {"by": "alice", "date": ANY, "index": index}}
        assert orders["second"] == {}

        # One farm's leader lets another one lead; the other farm's goes on in its term.
        term = second.raw.status().term
        await first.hand_over()
        assert await leader(nodes, "farm") is not first
        assert await leader(nodes, "second") is second
        assert second.raw.status().term == term
