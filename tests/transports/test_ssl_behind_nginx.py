"""A member of the transport ``ssl`` behind a reverse proxy, which its endpoint tells (D4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.support.cluster import cluster
from tests.transports.nginx import nginx


@pytest.mark.nginx
async def test_client_posts_through_a_proxy_that_passes_upgrades_on(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        await nodes.leader()
        upstreams = {"/GarlicFarm/farm/1/websocket": f"https://127.0.0.1:{nodes.endpoint().port}"}
        with nginx(tmp_path / "nginx", upstreams) as (port, pin):
            nodes.endpoints = {1: f"ssl://127.0.0.1:{port}?proxied=1&pin={pin}"}
            async with nodes.client() as client:
                index, _ = await client.post([b"through the proxy"])
        assert nodes.replica().raw.status().commit >= index
