"""A farm on a network that is too slow for its election timeout says so in its log."""

from __future__ import annotations

import logging

import msgspec
import pytest
import trio
from trio.testing import MockClock

from garlicfarm.config import RaftSection
from garlicfarm.config.model import PRESETS
from garlicfarm.testing import memory_network
from garlicfarm.testing.memory_cluster import cluster
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

    class SlowPipe(memory_network._Pipe):
        async def _sent(self) -> None:
            await trio.sleep(way_s)
            await super()._sent()

    monkeypatch.setattr(memory_network, "_Pipe", SlowPipe)
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
