"""Election timeouts of nodes that follow their leader's round trips (D27), with the preset ``i2p``."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm.application import Application
from garlicfarm.config.model import PRESET_LEAST_ELECTION_TIMEOUTS_S, PRESETS, RaftSection
from garlicfarm.log_application import LogApplication
from garlicfarm.net.tcp import WrappedStream
from garlicfarm.node.publisher import PublisherApplication, clocks
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.raft import Change, ConfChange
from garlicfarm.testing.memory_cluster import Cluster, cluster
from garlicfarm.testing.memory_network import MemoryTransport
from garlicfarm.transport import Endpoint
from tests.running import told, wait_until

I2P = PRESETS["i2p"] | {"least_election_timeout_s": PRESET_LEAST_ELECTION_TIMEOUTS_S["i2p"]}
PUBLISHER: Callable[[], Application] = partial(PublisherApplication, "farm")
MINUTE_S = 60.0


@pytest.fixture(autouse=True)
def simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses are dated by the simulated clock too."""
    monkeypatch.setattr(clocks, "wall_ms", lambda: (1_800_000_000 + round(trio.current_time())) * 1000)


class Ways:
    """``way_s``: how long whatever is sent is on its way. ``under_way``: how much is now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.way_s = 0.5
        self.under_way = 0
        ways, fast = self, MemoryTransport.open_stream

        class Slow(WrappedStream):
            async def send_all(self, data: bytes | bytearray | memoryview) -> None:
                await ways.go()
                await super().send_all(data)

            async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
                data = await super().receive_some(max_bytes)
                await ways.go()
                return data

        async def open_stream(transport: MemoryTransport, endpoint: Endpoint) -> trio.abc.Stream:
            return Slow(await fast(transport, endpoint))

        monkeypatch.setattr(MemoryTransport, "open_stream", open_stream)

    async def go(self) -> None:
        self.under_way += 1
        try:
            await trio.sleep(self.way_s)
        finally:
            self.under_way -= 1


@asynccontextmanager
async def farm_at_level(
    level: int, application: Callable[[], Application] = PUBLISHER, **raft: float
) -> AsyncIterator[Cluster]:
    section = msgspec.convert(I2P | raft, RaftSection)
    async with cluster(3, application=application, raft=section) as farm:
        leader = farm.replica(await farm.leader())
        await leader.membership.change(ConfChange(Change.RAISE, level=level))
        yield farm


def fold(farm: Cluster, node: int) -> PublisherFold:
    application = farm.application(node)
    assert isinstance(application, PublisherApplication)
    return application.fold


def told_ms(farm: Cluster) -> list[int]:
    """The upper election timeout that each node's state tells."""
    return [fold(farm, node).election_timeout_ms for node in sorted(farm.running)]


async def missed_after_s(farm: Cluster) -> float:
    """Cut the leader off, and wait until another member misses it: how long that took."""
    leader, begun = await farm.leader(), trio.current_time()
    others = farm.running - {leader}
    farm.partition({leader}, others)
    await wait_until(lambda: any(farm.replica(node).leader_id != leader for node in others))
    took_s = trio.current_time() - begun
    farm.heal()
    return took_s


@pytest.mark.slow
async def test_quick_round_trips_shorten_what_all_members_wait_for_a_leader(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    Ways(monkeypatch)
    async with farm_at_level(2, heartbeat_s=1.0, least_election_timeout_s=16.0) as farm:
        assert await missed_after_s(farm) > 18  # 20 s after the last heartbeat
        await trio.sleep(45 * MINUTE_S)
        assert told_ms(farm) == [16_000] * 3
        assert fold(farm, 1).lease_lasts_ms == 45_000  # as ordered: less than a minute
        assert await missed_after_s(farm) < 18
    first = told(caplog, "timeouts")[0]
    assert (first["election_min_ms"], first["election_max_ms"], first["rpc_ms"]) == (14_140, 28_280, 8_484)


async def test_slow_round_trips_lengthen_it_again_within_a_minute_without_an_election(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = Ways(monkeypatch)
    async with farm_at_level(2) as farm:
        leader = await farm.leader()
        await trio.sleep(25 * MINUTE_S)
        term = farm.replica(leader).raw.term
        assert told_ms(farm) == [20_000] * 3
        await wait_until(lambda: not ways.under_way, 0.01)  # what is, would come in time
        ways.way_s = 3.5  # there and back longer than the 6 s in which an answer has to come
        peers, others = farm.replica(leader).peers, farm.running - {leader}
        await wait_until(lambda: any("within 6 s" in (peers.error(node) or "") for node in others), 0.1)
        await trio.sleep(1.5 * MINUTE_S)
        assert told_ms(farm) == [40_000] * 3
        assert (await farm.leader(), farm.replica(leader).raw.term) == (leader, term)


@pytest.mark.slow
async def test_restarted_member_takes_it_from_its_log(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ways(monkeypatch)
    async with farm_at_level(2, heartbeat_s=1.0, least_election_timeout_s=16.0) as farm:
        await trio.sleep(45 * MINUTE_S)
        leader = await farm.leader()
        for node in farm.running - {leader}:
            await farm.restart(node)
            await farm.applied(farm.replica(leader).applied_index)
        assert told_ms(farm) == [16_000] * 3
        assert await missed_after_s(farm) < 18


@pytest.mark.parametrize(
    ("level", "application", "least_s"),
    [(1, PUBLISHER, 20.0), (2, LogApplication, 20.0), (2, PUBLISHER, 40.0)],
)
async def test_nothing_is_told_below_level_2_nor_in_a_log_nor_where_it_is_fixed(
    level: int,
    application: Callable[[], Application],
    least_s: float,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    Ways(monkeypatch)
    async with farm_at_level(level, application, least_election_timeout_s=least_s) as farm:
        await trio.sleep(25 * MINUTE_S)
        assert await missed_after_s(farm) > 14.9
    assert told(caplog, "timeouts") == []
