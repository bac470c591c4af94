"""Members that stay silent are removed by the leader: nodes on a memory network, with a simulated clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm.config import RaftSection
from garlicfarm.config.model import PRESETS
from garlicfarm.errors import NoQuorum, ProposalDropped
from garlicfarm.levels import FORGETTING
from garlicfarm.node.proposals import origin_now
from garlicfarm.node.publisher import PublisherApplication, clocks
from garlicfarm.node.publisher.forgetter import PAUSE_S, Forgetter
from garlicfarm.node.replica import Replica
from garlicfarm.publishing.administration import FORGET_BY
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.forgetting import silences
from garlicfarm.raft import Change, ConfChange
from garlicfarm.refusals import Refusal
from garlicfarm.testing.memory_cluster import Cluster, cluster
from garlicfarm.wire.messages import ClusterServer
from tests.publishing.test_forgetting import Farm
from tests.running import background, told, wait_until

Clock = trio.testing.MockClock
RAFT = msgspec.convert(PRESETS["i2p"], RaftSection)
HOUR_S = 3600.0
SLACK_S = 600.0
"""A new leader, R = 3 intervals of 30 s until a member counts as silent, and ten elections of up to 40 s."""


@pytest.fixture(autouse=True)
def simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses are dated by the simulated clock too."""
    monkeypatch.setattr(clocks, "wall_ms", lambda: (1_800_000_000 + round(trio.current_time())) * 1000)


class Nodes:
    """Nodes that post statuses at level 4, with an order to remove members that are silent for an hour."""

    def __init__(self, nodes: Cluster) -> None:
        self.nodes = nodes

    async def fold(self) -> PublisherFold:
        """The leader's."""
        application = self.nodes.application(await self.nodes.leader())
        assert isinstance(application, PublisherApplication)
        return application.fold

    async def begin(self) -> None:
        replica = self.nodes.replica(await self.nodes.leader())
        raised = ConfChange(Change.RAISE, level=FORGETTING)
        index, _ = await replica.membership.change(raised)
        await self.nodes.applied(index)
        origin = origin_now(replica.node_id, "alice")
        entry = replica.application.administer("forget", {"after_ms": 3_600_000}, origin)
        assert entry is not None
        index, _ = await replica.proposals.post(entry, origin)
        await self.nodes.applied(index)
        fold = await self.fold()
        with trio.fail_after(SLACK_S):
            while fold.recent() != [*fold.members]:
                await replica.wait_applied(replica.applied_index)

    async def members(self) -> list[int]:
        return [*(await self.fold()).members]

    async def removed(self, *members: int, within_s: float) -> None:
        with trio.fail_after(within_s):
            await wait_until(partial(self._are_removed, *members), every_s=10)

    async def _are_removed(self, *members: int) -> bool:
        return not {*members} & {*await self.members()}

    async def silent_s(self, member: int) -> float:
        return {one.member: one.for_ms / 1000 for one in silences(await self.fold())}.get(member, 0)


@asynccontextmanager
async def farm(size: int) -> AsyncIterator[Nodes]:
    async with cluster(size, application=partial(PublisherApplication, "farm"), raft=RAFT) as nodes:
        running = Nodes(nodes)
        await running.begin()
        yield running


@pytest.mark.slow
async def test_farm_outlives_one_death_after_the_other(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Five members that lost three would commit nothing any more."""
    async with farm(5) as five:
        nodes = five.nodes
        first, second, third = sorted(nodes.running - {await nodes.leader()})[:3]
        await nodes.kill(first)
        await trio.sleep(HOUR_S - SLACK_S)
        assert len(await five.members()) == 5
        (trouble,) = [one for one in (await five.fold()).troubles(0) if one.kind == "health"]
        assert trouble.text.startswith(f"member {first} is silent for 50 min, and will be removed in ")
        await five.removed(first, within_s=2 * SLACK_S)
        assert (await five.fold()).policy.orders[f"remove {first}"].by == FORGET_BY
        text = f"member {first} removed after a long silence"
        assert (await five.fold()).events()[-1]["text"] == text
        assert [each["peer"] for each in told(caplog, "removing-silent-member")] == [first]
        await nodes.kill(second)
        await five.removed(second, within_s=HOUR_S + SLACK_S)
        await nodes.kill(third)
        await trio.sleep(SLACK_S)
        fold = await five.fold()
        assert (set(fold.recent()), silences(fold)) == (nodes.running, [])  # of three, none is removed
        assert set(await five.members()) - {third} == nodes.running

        await nodes.restart(first)
        with trio.fail_after(SLACK_S):
            await wait_until(lambda: first not in nodes.running, every_s=1)
        replica = nodes.replica(await nodes.leader())
        again = ConfChange(Change.ADD, ClusterServer(first, "memory://other:27150"))
        with pytest.raises(ProposalDropped) as refused:
            await replica.membership.change(again)
        assert refused.value.reason is Refusal.ID_USED_BEFORE


@pytest.mark.slow
async def test_two_that_die_at_once_are_removed_one_after_the_other(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with farm(5) as five:
        dead = sorted(five.nodes.running - {await five.nodes.leader()})[:2]
        for member in dead:
            await five.nodes.kill(member)
        await five.removed(*dead, within_s=HOUR_S + SLACK_S)
        assert sorted(each["peer"] for each in told(caplog, "removing-silent-member")) == dead
        assert told(caplog, "silent-member-not-removed") == []


@pytest.mark.slow
async def test_leader_that_dies_is_removed_and_another_change_of_the_leader_begins_no_new_count(
    autojump_clock: Clock,
) -> None:
    async with farm(4) as four:
        nodes = four.nodes
        dead = await nodes.leader()
        await nodes.kill(dead)
        await trio.sleep(HOUR_S * 3 / 4)
        before = await four.silent_s(dead)
        assert before > HOUR_S / 2
        leader = await nodes.leader()
        await nodes.replica(leader).step_down()
        assert await nodes.leader() != leader
        assert await four.silent_s(dead) >= before
        await four.removed(dead, within_s=HOUR_S / 4 + SLACK_S)


@pytest.mark.slow
async def test_member_that_is_only_cut_off_from_the_leader_is_kept(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(context: Replica, to: int) -> int:
        raise NoQuorum("nobody")

    monkeypatch.setattr(Replica, "step_down", nobody)  # else it hands over to one that reaches it
    async with farm(4) as four:
        nodes, leader = four.nodes, await four.nodes.leader()
        lost = max(nodes.running - {leader})
        nodes.partition({leader}, {lost})
        await trio.sleep(HOUR_S + SLACK_S)
        assert await four.silent_s(lost) > HOUR_S
        assert len(await four.members()) == 4
        await nodes.kill(lost)
        await four.removed(lost, within_s=SLACK_S)


# ------------------------------------------------------------------ what only the leader knows


class FakeContext:
    """Of a leader that has applied a state in which member 4 is due."""

    node_id = 1
    section = SimpleNamespace(raft=SimpleNamespace(election_timeout_max_s=1.0))

    def __init__(self) -> None:
        farm = Farm(1, 2, 3, 4)
        farm.kill(4)
        farm.run(7_200_000)
        assert farm.due() == 4
        self.fold = farm.farm
        self.is_leader, self.is_changing_members, self.term, self.applied_index = True, False, 1, 1
        self.is_connected = False
        self.age_s: float | None = None
        self.removed: list[tuple[int, str]] = []
        self.failure: Exception | None = None
        self.peers = SimpleNamespace(
            is_connected=lambda member: self.is_connected, contact_age_s=lambda member: self.age_s
        )
        self.notes: list[str] = []
        self.log = SimpleNamespace(warning=lambda event, **fields: self.notes.append(event))

    async def wait_applied(self, beyond: int) -> None:
        await trio.sleep(1)

    def raft_status(self) -> Any:
        return SimpleNamespace(term=self.term)

    async def remove_member(self, member: int, by: str) -> tuple[int, int]:
        self.removed.append((member, by))
        if self.failure is not None:
            raise self.failure
        self.is_changing_members = True  # once is enough
        return 1, 1


@asynccontextmanager
async def watching() -> AsyncIterator[FakeContext]:
    context: Any = FakeContext()
    async with background(Forgetter(context, context.fold).run):
        yield context


@pytest.mark.parametrize(("timeout_s", "least_s"), [(1.0, 60), (40.0, 400)])
async def test_leader_waits_for_a_minute_or_ten_elections_of_its_term(
    timeout_s: float, least_s: float, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeContext.section.raft, "election_timeout_max_s", timeout_s)
    async with watching() as context:
        await trio.sleep(least_s - 5)
        context.term = 2
        await trio.sleep(least_s - 5)
        context.is_leader = False
        await trio.sleep(least_s)
        context.is_leader = True
        await trio.sleep(least_s - 5)
        assert context.removed == []
        await trio.sleep(10)
        assert context.removed == [(4, FORGET_BY)]


@pytest.mark.parametrize(
    "changes",
    [{"is_connected": True}, {"age_s": 59.0}, {"is_changing_members": True}, {"is_leader": False}],
)
async def test_member_is_kept_while_it_is_heard_or_the_members_change(
    changes: dict[str, Any], autojump_clock: Clock
) -> None:
    async with watching() as context:
        before = {name: getattr(context, name) for name in changes}
        vars(context).update(changes)
        await trio.sleep(300)
        assert context.removed == []
        vars(context).update(before)
        await trio.sleep(70)
        assert context.removed == [(4, FORGET_BY)]


async def test_removal_that_fails_is_told_and_tried_again_after_a_pause(autojump_clock: Clock) -> None:
    async with watching() as context:
        context.failure = ProposalDropped(Refusal.ANOTHER_CHANGE_IN_FLIGHT)
        await trio.sleep(62 + PAUSE_S / 2)
        assert context.notes == ["removing-silent-member", "silent-member-not-removed"]
        context.failure = None
        await trio.sleep(PAUSE_S)
        assert len(context.removed) == 2
