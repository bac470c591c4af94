"""Members whose names are beyond ASCII."""

from __future__ import annotations

from pathlib import Path

from garlicfarm.lab.processes import free_ports
from garlicfarm.setup.provision import MemberPlan
from tests.node.support.cluster import cluster

LOOPBACK = "１２７.0.0.1"  # as a resolver reads it: 127.0.0.1


async def test_members_named_beyond_ascii_reach_each_other(tmp_path: Path) -> None:
    members = {
        node_id: MemberPlan(
            endpoint=f"ssl://{LOOPBACK}:{port}",
            listen=f"ssl://127.0.0.1:{port}",
            admin_url="https://127.0.0.1:0",
        )
        for node_id, port in enumerate(free_ports(2), 1)
    }
    async with cluster(tmp_path, 2, members=members) as farm:
        await farm.leader()
