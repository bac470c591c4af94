"""A leader that cannot reach a member lets one lead that can; nobody else makes it do so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm.config import RaftSection
from garlicfarm.config.model import PRESETS
from garlicfarm.errors import NoQuorum
from garlicfarm.node.membership import Membership
from garlicfarm.node.publisher import PublisherApplication, clocks, handover
from garlicfarm.node.publisher.handover import better_placed
from garlicfarm.node.replica import Replica
from garlicfarm.publishing.documents import ConnectTest, MemberTest, NodeReport, RemoteRouter
from garlicfarm.publishing.entries import encode_status
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.raft import Change, ConfChange
from garlicfarm.testing.memory_cluster import Cluster, cluster
from tests.publishing.scripted_log import T0, configuration, status
from tests.running import told, wait_until

Clock = trio.testing.MockClock
RAFT = msgspec.convert(PRESETS["i2p"], RaftSection)
INTERVAL_S = 30.0
IN_TIME_S = 8 * INTERVAL_S
"""Silent for R = 3 intervals; tried within one, said within one; said R times in a row; and an election."""
PAUSE_S = 600.0
"""Not an hour: that much less time is simulated."""


class Posting:
    """A `Cluster` whose nodes post statuses and hand over, all by the simulated clock."""

    def __init__(self, nodes: Cluster) -> None:
        self.nodes = nodes

    def fold(self, node: int) -> PublisherFold:
        application = self.nodes.application(node)
        assert isinstance(application, PublisherApplication)
        return application.fold

    async def settled(self) -> tuple[int, list[int]]:
        """The leader and the others, once all have posted."""
        leader = await self.nodes.leader()
        fold = self.fold(leader)
        with trio.fail_after(3 * INTERVAL_S):
            while not all(fold.is_recent(member) for member in fold.members):
                await self.nodes.replica(leader).wait_applied(self.nodes.replica(leader).applied_index)
        return leader, sorted(self.nodes.running - {leader})

    def part(self, *pairs: tuple[int, int]) -> None:
        for one, other in pairs:
            self.nodes.partition({one}, {other})

    def terms(self) -> list[int]:
        return [self.nodes.replica(node).raw.term for node in sorted(self.nodes.running)]

    async def back(self, member: int, among: Collection[int], within_s: float) -> None:
        """A new status of a member, applied by these."""
        before = self.fold(min(among)).last_sequence(member)
        with trio.fail_after(within_s):
            for node in among:
                farm, fold = self.nodes.replica(node), self.fold(node)
                while fold.last_sequence(member) <= before or not fold.is_recent(member):
                    await farm.wait_applied(farm.applied_index)


@pytest.fixture(autouse=True)
def simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses are dated by the simulated clock too."""
    monkeypatch.setattr(clocks, "wall_ms", lambda: (1_800_000_000 + round(trio.current_time())) * 1000)
    monkeypatch.setattr(handover, "PAUSE_S", PAUSE_S)


@asynccontextmanager
async def posting(size: int) -> AsyncIterator[Posting]:
    async with cluster(size, application=partial(PublisherApplication, "farm"), raft=RAFT) as nodes:
        yield Posting(nodes)


def handed_over(caplog: pytest.LogCaptureFixture) -> list[tuple[int, int, str]]:
    """From, to, and the members that were missed, of each hand-over."""
    return [(f["node"], f["peer"], f["unreachable"]) for f in told(caplog, "handing-over")]


@pytest.mark.parametrize("size", [3, pytest.param(5, marks=pytest.mark.slow)])
async def test_leader_that_cannot_reach_a_member_hands_over_and_the_member_is_back(
    size: int, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with posting(size) as farm:
        leader, (lost, *others) = await farm.settled()
        terms = farm.terms()
        farm.part((leader, lost))
        await farm.back(lost, farm.nodes.running, IN_TIME_S)
        assert handed_over(caplog) == [(leader, others[0], str(lost))]
        assert set(farm.terms()) == {max(terms) + 1}
        await trio.sleep(2 * PAUSE_S)  # the two are still cut off from each other
        assert set(farm.terms()) == {max(terms) + 1}
        assert farm.nodes.replica(lost).leader_id == others[0]


@pytest.mark.parametrize("out", [True, False], ids=["to-the-member", "from-the-member"])
async def test_one_way_that_leads_nowhere_is_enough(
    out: bool, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with posting(3) as farm:
        leader, (lost, other) = await farm.settled()
        way = (f"node{leader}", f"node{lost}")
        farm.nodes.network.blocked.add(way if out else way[::-1])
        await farm.back(lost, farm.nodes.running, IN_TIME_S)
        assert handed_over(caplog) == [(leader, other, str(lost))]


@pytest.mark.parametrize("dead", ["killed", "hanging"])
async def test_dead_member_costs_no_leader_though_idle_connections_to_it_are_up(
    dead: str, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with posting(3) as farm:
        leader, (lost, other) = await farm.settled()
        terms = farm.terms()
        if dead == "killed":
            await farm.nodes.kill(lost)
        else:
            farm.part((leader, lost), (other, lost))
            assert farm.nodes.replica(other).peers.is_connected(lost)
        await trio.sleep(PAUSE_S)
        assert handed_over(caplog) == []
        assert set(farm.terms()) == set(terms)
        assert not farm.fold(leader).is_recent(lost)


async def test_member_that_the_leader_reaches_again_soon_enough_costs_no_leader(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with posting(3) as farm:
        leader, (lost, _) = await farm.settled()
        fold, silent_since = farm.fold(leader), farm.nodes.replica(leader).applied_index + 1
        farm.part((leader, lost))
        with trio.fail_after(IN_TIME_S):
            while not better_placed(fold, leader, {lost: silent_since}):
                await farm.nodes.replica(leader).wait_applied(farm.nodes.replica(leader).applied_index)
                if fold.is_recent(lost):
                    silent_since = farm.nodes.replica(leader).applied_index + 1
        await trio.sleep(
            1
        )  # it was said once: of a router that was restarted each other one learns when it can
        farm.nodes.heal()
        await farm.back(lost, farm.nodes.running, 2 * INTERVAL_S)
        await trio.sleep(IN_TIME_S)
        assert handed_over(caplog) == []
        assert farm.nodes.replica(leader).is_leader


async def test_leader_stays_where_everybody_misses_somebody(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with posting(4) as farm:
        leader, (lost, one, other) = await farm.settled()
        terms = farm.terms()
        farm.part((leader, lost), (one, other))
        assert farm.nodes.replica(one).peers.is_connected(other)  # it is idle, which proves nothing
        await trio.sleep(3 * PAUSE_S)
        assert handed_over(caplog) == []
        assert farm.nodes.replica(leader).is_leader
        assert set(farm.terms()) == set(terms)


@pytest.mark.slow
async def test_links_that_come_and_go_cost_each_member_the_lead_once_in_the_pause_at_most(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever leads cannot reach the same third member for six minutes of each seven."""
    pauses, pause_s = 4, 1200.0  # three times as long as they take: without it more than two would come
    monkeypatch.setattr(handover, "PAUSE_S", pause_s)
    async with posting(3) as farm:
        _, (lost, _) = await farm.settled()
        terms = farm.terms()
        begun = trio.current_time()
        while trio.current_time() < begun + pauses * pause_s:
            farm.part((await farm.nodes.leader(farm.nodes.running - {lost}), lost))
            await trio.sleep(360)
            farm.nodes.heal()
            await trio.sleep(60)
        count = len(handed_over(caplog))
        assert pauses <= count <= 2 * pauses
        assert max(farm.terms()) == max(terms) + count


async def test_nothing_is_handed_over_while_the_members_change(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with posting(3) as farm:
        leader, (lost, *_) = await farm.settled()
        with monkeypatch.context() as changing:
            changing.setattr(Membership, "is_changing", property(lambda members: True))
            farm.part((leader, lost))
            await trio.sleep(2 * IN_TIME_S)
            assert handed_over(caplog) == []
        await farm.back(lost, farm.nodes.running, IN_TIME_S)


async def test_members_change_until_the_change_is_committed(autojump_clock: Clock) -> None:
    async with posting(3) as farm:
        members = farm.nodes.replica((await farm.settled())[0]).membership
        newcomer = await farm.nodes.enlist()
        async with trio.open_nursery() as nursery:
            assert not members.is_changing
            nursery.start_soon(members.change, ConfChange(Change.ADD, newcomer))
            await wait_until(lambda: members.is_changing, every_s=0.0001)
        assert not members.is_changing


async def test_hand_over_that_fails_is_told_and_tried_again_after_the_pause(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(context: Replica, to: int) -> int:
        raise NoQuorum("nobody")

    async with posting(3) as farm:
        leader, (lost, *_) = await farm.settled()
        with monkeypatch.context() as failing:
            failing.setattr(Replica, "step_down", nobody)
            farm.part((leader, lost))
            await trio.sleep(IN_TIME_S + PAUSE_S / 2)
        events = [each["event"] for each in told(caplog, "handing-over", "not-handed-over")]
        assert events == ["handing-over", "not-handed-over"]
        assert farm.nodes.replica(leader).is_leader
        await farm.back(lost, farm.nodes.running, PAUSE_S / 2 + INTERVAL_S)
        assert len(handed_over(caplog)) == 2


# ------------------------------------------------------------------ whom, by what is in the log


class Log:
    """Five members, of whom 2 … 5 say whom they reach; each round is an interval."""

    def __init__(self, key: str) -> None:
        """``key`` of the statuses that has the tests: ``tests``, or ``remoteRouters`` as in version 0.1."""
        self.key = key
        self.fold = PublisherFold("farm")
        self.fold.configure(1, configuration(1, 2, 3, 4, 5, index=1))
        self.index, self.date = 1, T0

    def say(self, member: int, reached: str, *, applied: int | None = None) -> int:
        """``reached``: "1+ 5-" for member 1 and not member 5."""
        tests = [(int(word[:-1]), word.endswith("+")) for word in reached.split()]
        begun = self.index if applied is None else applied
        said: dict[str, Any] = {"sequence": self.index}
        if self.key == "tests":
            results = tuple(MemberTest(one, 1 if ok else -1) for one, ok in tests)
            said["config"] = {"node": NodeReport(applied=begun, interval_ms=1000, R=3, tests=results)}
        else:
            said["applied"] = begun
            said["remote_routers"] = tuple(
                RemoteRouter(member=one, connect_test=ConnectTest(ms=1, ok=ok)) for one, ok in tests
            )
        entry = encode_status(status(member, self.date + member, **said))
        self.index += 1
        self.fold.apply(self.index, 1, entry)
        return self.index

    def rounds(self, count: int, *members: int) -> None:
        for _ in range(count):
            self.date += 1000
            for member in members:
                self.say(member, "")


@pytest.mark.parametrize("key", ["tests", "remoteRouters"])
def test_better_placed_is_who_reaches_all_the_others_and_one_that_is_missed(key: str) -> None:
    log = Log(key)
    log.rounds(1, 1, 2, 3, 4, 5)
    log.rounds(4, 1, 2, 3, 4)
    assert not log.fold.is_recent(5)
    missing = {5: log.index}
    assert better_placed(log.fold, 1, missing) == {}
    log.say(2, "1+ 3+ 4- 5+")  # not 4, whom the leader reaches
    log.say(3, "1+ 2+ 4+")  # of 5 it says nothing
    at = log.say(4, "1+ 2+ 3+ 5+")
    assert better_placed(log.fold, 1, missing) == {4: at}
    assert better_placed(log.fold, 1, {5: at}) == {}  # begun before it was known that 5 is missed
    assert better_placed(log.fold, 1, {}) == {}
    log.say(4, "1+ 2+ 3+ 5-")
    assert better_placed(log.fold, 1, missing) == {}


@pytest.mark.parametrize("key", ["tests", "remoteRouters"])
def test_better_placed_first_is_who_reaches_most_then_the_lowest_id_and_nobody_who_is_silent(
    key: str,
) -> None:
    log = Log(key)
    log.rounds(5, 1, 2, 3, 4)
    missing = {4: log.index, 5: log.index}
    indexes = {
        2: log.say(2, "1+ 3+ 4+ 5-"),
        3: log.say(3, "1+ 2+ 4+ 5+"),
    }
    assert list(better_placed(log.fold, 1, missing).items()) == [(3, indexes[3]), (2, indexes[2])]
    indexes[2] = log.say(2, "1+ 3+ 4+ 5+")
    assert list(better_placed(log.fold, 1, missing)) == [2, 3]
    log.rounds(4, 1, 3, 4, 5)
    assert not log.fold.is_recent(2)
    at = log.say(3, "1+ 2+ 4+ 5+")
    assert better_placed(log.fold, 1, missing) == {3: at}
