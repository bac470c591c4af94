"""A farm on a network that is too slow for its election timeout says so in its log."""

from __future__ import annotations

import logging

import msgspec
import pytest
import trio
from trio.testing import MockClock

from garlicfarm.config import RaftSection
from garlicfarm.config.model import PRESETS
from garlicfarm.net.tcp import WrappedStream
from garlicfarm.testing.memory_cluster import cluster
from garlicfarm.testing.memory_network import MemoryTransport
from garlicfarm.transport import Endpoint
from tests.running import told


@pytest.mark.parametrize(("way_s", "slow"), [(1.5, False), (2.7, True)])
async def test_round_trips_near_the_limit_are_in_the_leaders_log_where_they_are_over_it(
    way_s: float,
    slow: bool,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the preset i2p the limit is 5 s."""

    class Slow(WrappedStream):
        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            await trio.sleep(way_s)
            await super().send_all(data)

        async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
            data = await super().receive_some(max_bytes)
            await trio.sleep(way_s)
            return data

    async def open_stream(transport: MemoryTransport, endpoint: Endpoint) -> trio.abc.Stream:
        return Slow(await fast(transport, endpoint))

    fast = MemoryTransport.open_stream
    monkeypatch.setattr(MemoryTransport, "open_stream", open_stream)
    caplog.set_level(logging.WARNING)
    async with cluster(3, raft=msgspec.convert(PRESETS["i2p"], RaftSection)) as farm:
        leader = await farm.leader()
        await trio.sleep(3000)
        assert await farm.leader() == leader
    events = told(caplog, "slow-round-trip")
    assert sorted(event["peer"] for event in events) == (
        [i for i in (1, 2, 3) if i != leader] if slow else []
    )
    for event in events:
        assert event["node"] == leader
        assert event["limit_ms"] == 5000
        assert event["p99_ms"] == pytest.approx(2000 * way_s, rel=0.01)
