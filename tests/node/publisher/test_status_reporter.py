"""Statuses: measured, posted until their outcome is known, and out of turn where that cannot wait."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm.config import MetaSection
from garlicfarm.errors import EntryRefused, NoQuorum, NotSupported, OutcomeUnknown, ProposalDropped
from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import decode, encode
from garlicfarm.levels import OUTSIDE
from garlicfarm.node.publisher import PublisherApplication, clocks
from garlicfarm.node.publisher.member_task import MemberTask
from garlicfarm.node.publisher.remote_sensing import MIN_PERIOD_S
from garlicfarm.publishing.documents import DestinationStatus, RemoteStatus, RouterStatus
from garlicfarm.publishing.entries import encode_admin
from garlicfarm.publishing.member_standing import Now
from garlicfarm.refusals import Refusal
from garlicfarm.router import STATUS_TIMEOUT_S, OwnLookUp, Router, StreamFigures, Tunnels
from garlicfarm_plugin_simulated.publisher import SimulatedPublisher
from tests.node.publisher.member import INTERVAL_S, FakeContext, plugin, task_of
from tests.node.support.cluster import Cluster, cluster
from tests.publishing.scripted_log import configuration, destination
from tests.running import background

Clock = trio.testing.MockClock


@pytest.fixture
def farm(moved: SimpleNamespace, tmp_path: Path) -> FakeContext:
    """Of three members; this one has no publishers."""
    return FakeContext(1, 2, 3)


async def run_for(seconds: float, farm: FakeContext, *plugins: SimulatedPublisher) -> MemberTask:
    task = task_of(farm, Path("none"), *plugins)
    with trio.move_on_after(seconds):
        await task.run()
    return task


async def test_status_of_unknown_outcome_is_repeated_byte_for_byte(
    farm: FakeContext, autojump_clock: Clock
) -> None:
    farm.trouble = [OutcomeUnknown("x"), NoQuorum("x"), ProposalDropped(Refusal.REFUSED), OutcomeUnknown("x")]
    task = await run_for(INTERVAL_S + 1, farm)
    assert len(farm.posted) == 6
    assert len(set(farm.posted[:5])) == 1
    assert farm.posted[5] != farm.posted[0]
    assert farm.notes == ["status-not-posted"] * 4
    assert farm.times == pytest.approx([0, 0.6, 1.2, 1.8, 2.4, INTERVAL_S])
    assert task.core.lease.expires_ms is not None


async def test_refused_status_is_told_and_replaced_by_the_next_one(
    farm: FakeContext, autojump_clock: Clock
) -> None:
    farm.trouble = [EntryRefused("date", "x")]
    await run_for(INTERVAL_S + 1, farm)
    assert farm.notes == ["status-refused"]
    first, second = farm.said()
    assert second["sequence"] > first["sequence"]


def handshakes_in(farm: FakeContext) -> list[dict[int, int] | None]:
    """The handshakes that each status reports: member → ms, −1: failed."""
    nodes = [each["config"]["node"] for each in farm.said()]
    return [dict(node["tests"]) if "tests" in node else None for node in nodes]


async def test_status_says_how_the_handshakes_with_the_other_members_went(
    farm: FakeContext, autojump_clock: Clock
) -> None:
    farm.hear(2, 3)
    await run_for(1, farm)
    farm.handshakes[2] = (0.0125, True)
    await run_for(1, farm)
    farm.handshakes |= {2: (5.0, False), 3: (0.02, True)}
    await run_for(1, farm)
    assert handshakes_in(farm) == [None, {2: 12}, {2: -1, 3: 20}]


async def test_status_is_at_most_30_bytes_longer_for_each_handshake(
    moved: SimpleNamespace, autojump_clock: Clock
) -> None:
    """Even where ids and times have as many digits as they can have."""
    sizes = []
    for count in (1, 100):
        others = range(2**31 - count, 2**31)
        farm = FakeContext(1, *others)
        farm.hear(*others)
        farm.handshakes |= {member: (600.0, member % 2 == 0) for member in others}
        await run_for(1, farm)
        assert [len(each or ()) for each in handshakes_in(farm)] == [count]
        sizes.append(len(farm.posted[0]))
    assert 0 < sizes[1] - sizes[0] <= 99 * 30


@pytest.mark.parametrize("reached", [True, False])
async def test_status_says_of_a_silent_member_only_how_handshakes_since_then_went(
    farm: FakeContext, reached: bool, autojump_clock: Clock
) -> None:
    """And where it is reached, handshakes with all others are made anew as well."""
    farm.hear(2)
    farm.handshakes |= {2: (0.01, True), 3: (0.02, True)}  # member 3 never posted; its connection is idle
    farm.now = {2: (0.03, False), 3: (0.04, reached)}
    await run_for(INTERVAL_S + 1, farm)
    assert handshakes_in(farm) == [{2: 10}, {2: -1, 3: 40} if reached else {2: 10, 3: -1}]
    assert farm.tried[:2] == ([{3}, {2}] if reached else [{3}, {3}])


async def test_trial_that_failed_is_repeated_while_the_connection_is_up(
    farm: FakeContext, autojump_clock: Clock
) -> None:
    farm.hear(2, 3)
    farm.handshakes |= {2: (0.01, True), 3: (5.0, False)}
    farm.now = {3: (0.02, True)}
    await run_for(INTERVAL_S + 1, farm)
    assert handshakes_in(farm) == [{2: 10, 3: -1}, {2: 10, 3: 20}]
    assert farm.tried == [{3}, set()]


class HangingRouter:
    control = None
    measures_served = False

    def __getattr__(self, name: str) -> Any:
        async def hang(*args: object) -> None:
            await trio.sleep_forever()

        return hang


async def test_router_that_hangs_delays_a_status_once_however_many_leaves_it_has(
    farm: FakeContext, autojump_clock: Clock
) -> None:
    farm.section.leaf = [SimpleNamespace(destination=destination(seed)) for seed in range(20)]
    farm.router = cast(Router, HangingRouter())
    await run_for(6, farm)
    assert farm.times == [STATUS_TIMEOUT_S]
    assert len(farm.said()[0]["destinations"]) == 20


async def test_router_that_hangs_does_not_delay_news(
    farm: FakeContext, tmp_path: Path, autojump_clock: Clock
) -> None:
    farm.router = cast(Router, HangingRouter())
    made = plugin(tmp_path)
    async with background(task_of(farm, tmp_path, made).run):
        await trio.sleep(1)
        made.kill_router()
        await trio.sleep(1)
    assert farm.times == pytest.approx([1], abs=0.06)
    assert "publishing" not in farm.said()[0]["meta"]


async def test_news_repeat_the_figures_of_the_status_before(
    farm: FakeContext, tmp_path: Path, autojump_clock: Clock
) -> None:
    router = MeasuringRouter()
    farm.router = cast(Router, router)
    farm.hear(2, mode="on")
    made = plugin(tmp_path)
    async with background(task_of(farm, tmp_path, made).run):
        await trio.sleep(10)
        made.kill_router()
        await trio.sleep(INTERVAL_S)
    assert farm.times == pytest.approx([0, 10, INTERVAL_S], abs=0.11)
    first, second, _ = farm.said()
    assert second["destinations"] == first["destinations"] != []
    assert router.asked_at == pytest.approx([0, INTERVAL_S], abs=0.11)


async def statuses(nodes: Cluster, count: int) -> list[dict[str, Any]]:
    """The newest statuses in the log of node 1, once it holds so many."""
    farm = nodes.replica()
    with trio.fail_after(240):
        while True:
            entries = farm.store.entries(1, farm.applied_index + 1, 1 << 30)
            found = [json.loads(entry.value) for entry in entries if entry.value_type == 1]
            found = [document for document in found if "node" in document["config"]]
            if len(found) >= count:
                return found
            await farm.wait_applied(farm.applied_index)


async def test_restarted_node_continues_its_sequence_although_its_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, application="publisher") as nodes:
        await nodes.leader()
        farm = nodes.replica()
        entry = encode_admin("farm", 1, 1, None, "interval", "alice", {"ms": 1000})
        await farm.post(entry)
        before = await statuses(nodes, 2)
        await nodes.stop()
        true = clocks.now
        hour_ms = 3_600_000
        monkeypatch.setattr(clocks, "now", lambda: Now((now := true()).boot_ms, now.wall_ms - hour_ms))
        await nodes.start()
        after = await statuses(nodes, len(before) + 3)
        assert after[: len(before)] == before
        newest = [document["sequence"] for document in after]
        assert newest[-1] > before[-1]["sequence"]
        assert after[-1]["date"] < before[-1]["date"]
        application = nodes.replica().application
        assert isinstance(application, PublisherApplication)
        assert application.fold.last_sequence(1) == newest[-1]


class MeasuringRouter:
    """Fetches in 5 ms whatever it is asked for."""

    control = None
    measures_served = False

    def __init__(self) -> None:
        self.measured: list[bytes] = []
        self.asked_at: list[float] = []  # for its own figures

    async def answer_tests(self) -> None:
        raise NotSupported("it answers no tests")

    async def look_up_own(self, leaf: bytes) -> OwnLookUp:
        raise NotSupported("it does not look up what it serves")

    async def get_local_router_status(self) -> RouterStatus:
        self.asked_at.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        return RouterStatus(uptime=1)

    async def get_local_leaf_status(self, leaf: bytes) -> DestinationStatus:
        await trio.lowlevel.checkpoint()
        return DestinationStatus(destination=encode(leaf), uptime=2)

    async def get_remote_measured_status(self, master_or_leaf: bytes) -> RemoteStatus | None:
        await trio.lowlevel.checkpoint()
        self.measured.append(master_or_leaf)
        return RemoteStatus(hash=encode(master_or_leaf), fetch_time_ms=5)


class OneWay(MeasuringRouter):
    """It knows of a leaf what a client of I2CP does."""

    async def get_local_leaf_status(self, leaf: bytes) -> DestinationStatus:
        await trio.lowlevel.checkpoint()
        return DestinationStatus(
            destination=encode(leaf),
            configured_tunnels=Tunnels(in_=3, out=3),
            current_tunnels=Tunnels(in_=2),
            lease_ends=(5, 6),
            streams=StreamFigures(refused=1),
        )


@pytest.mark.parametrize("level", [OUTSIDE - 1, OUTSIDE])
async def test_status_has_of_a_leaf_what_the_level_knows(
    farm: FakeContext, level: int, autojump_clock: Clock
) -> None:
    """Below level 3 tunnels of one way would make it invalid."""
    farm.fold.configure(1, msgspec.structs.replace(configuration(1, 2, 3), level=level))
    farm.router = cast(Router, OneWay())
    await run_for(1, farm)
    leaf = {"destination": destination(1), "configuredTunnels": {"in": 3, "out": 3}}
    later = {"currentTunnels": {"in": 2}, "leaseEnds": [5, 6], "streams": {"refused": 1}}
    assert farm.said()[-1]["destinations"] == [leaf | (later if level == OUTSIDE else {})]
    assert farm.fold.newest(1)


class Leaf(SimulatedPublisher):
    """It serves leaf 12."""

    @property
    def destination(self) -> bytes:
        return decode(destination(12))


@pytest.mark.parametrize("is_publishing", [True, False])
async def test_status_has_the_leaves_and_what_this_node_measured_of_the_others(
    farm: FakeContext, tmp_path: Path, unwritten: None, is_publishing: bool, autojump_clock: Clock
) -> None:
    """Its own router would fetch from itself what this node publishes."""
    router = MeasuringRouter()
    farm.router = cast(Router, router)
    farm.section.leaf = [SimpleNamespace(destination=destination(11))]
    farm.section.meta = MetaSection(destination=destination(10))
    farm.hear(2, leaves=(12, 13), mode="off" if is_publishing else "on")
    measured = [destination(13)] if is_publishing else [destination(seed) for seed in (10, 12, 13)]
    hashes = sorted(map(destination_hash, measured))
    before = int(is_publishing)  # a look-up that began before it published
    seconds = (before + len(hashes)) * MIN_PERIOD_S + INTERVAL_S
    task = await run_for(seconds, farm, plugin(tmp_path, Leaf))
    assert sorted(router.measured[before : before + len(hashes)]) == hashes  # at first it is in doubt
    posted = farm.said()[-1]
    assert posted["destinations"] == [{"destination": destination(seed), "uptime": 2} for seed in (11, 12)]
    assert posted["meta"]["publishing"] is is_publishing
    master = destination_hash(destination(10))
    leaves = [{"hash": encode(each), "fetchTimeMs": 5} for each in hashes if each != master]
    assert posted["remoteDestinations"] == leaves
    assert ("remoteMeta" in posted) is not is_publishing
    assert (task.core.last_published is not None) is is_publishing
