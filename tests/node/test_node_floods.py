"""Floods from an address that honest clients share: those are let in all the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from garlicfarm.errors import GarlicFarmError
from tests.node.cluster import Cluster, cluster

SHARED = "127.0.0.66"
LOGINS = 21


async def half_open_tcp(farm: Cluster) -> trio.abc.Stream:
    endpoint = farm.endpoint()
    return await trio.open_tcp_stream(endpoint.host, endpoint.port, local_address=SHARED)


async def silent_tls(farm: Cluster) -> trio.abc.Stream:
    stream: trio.abc.Stream = await farm.connect(source=SHARED)()
    return stream


async def half_a_request(farm: Cluster) -> trio.abc.Stream:
    stream = await silent_tls(farm)
    await stream.send_all(b"GET ")
    return stream


@pytest.mark.parametrize(
    ("attack", "count"),
    [(silent_tls, 20), (half_open_tcp, 70), (silent_tls, 100), (half_a_request, 100)],
    ids=["20 silent TLS", "70 half-open TCP", "100 silent TLS", "100 half requests"],
)
async def test_flood_from_a_shared_address_keeps_nobody_behind_it_out(
    attack: Callable[[Cluster], Awaitable[trio.abc.Stream]], count: int, tmp_path: Path
) -> None:
    async with cluster(tmp_path) as farm, AsyncExitStack() as flood:
        for _ in range(count):
            await flood.enter_async_context(await attack(farm))
        logged_in = 0
        for number in range(LOGINS):
            try:
                await farm.login("alice" if number % 2 else "bob", source=SHARED)
                logged_in += 1
            except (GarlicFarmError, trio.BrokenResourceError):
                pass
        assert logged_in == LOGINS
