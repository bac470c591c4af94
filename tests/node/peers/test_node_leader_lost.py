"""What a member tells of a leader that it no longer hears."""

from __future__ import annotations

import time

import trio
from trio.testing import MockClock

from garlicfarm.testing.memory_cluster import cluster


async def test_member_tells_which_leader_it_lost_and_when_until_it_knows_another(
    autojump_clock: MockClock,
) -> None:
    began_ms = time.time_ns() // 1_000_000
    async with cluster(3) as farm:
        leader = await farm.leader()
        left, other = farm.running - {leader}
        core = farm.replica(left).core
        await trio.sleep(60)
        assert core.leader_lost is None
        await farm.kill(other)
        await farm.kill(leader)
        await trio.sleep(60)
        lost = core.leader_lost
        assert lost is not None
        assert lost.id == leader
        assert began_ms <= lost.date_ms <= time.time_ns() // 1_000_000
        await trio.sleep(600)
        assert core.leader_lost == lost  # campaigns change nothing

        await farm.restart(other)
        await farm.leader()
        await trio.sleep(60)
        assert core.leader_lost is None


async def test_leader_without_followers_tells_that_it_was_the_last(autojump_clock: MockClock) -> None:
    async with cluster(3) as farm:
        leader = await farm.leader()
        for other in farm.running - {leader}:
            await farm.kill(other)
        await trio.sleep(60)
        lost = farm.replica(leader).core.leader_lost
        assert lost is not None
        assert lost.id == leader
