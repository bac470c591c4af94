"""Members come, go, and are told so: real nodes on a memory network."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from garlicfarm.errors import NotLeader, ProposalDropped
from garlicfarm.raft import Change, ConfChange
from garlicfarm.testing.cluster import Cluster, cluster
from garlicfarm.wire.messages import ClusterServer, MessageType, Request


async def change(nodes: Cluster, kind: Change, server: ClusterServer, *, force: bool = False) -> None:
    leader = await nodes.leader()
    index, _ = await nodes.farm(leader).members.change(ConfChange(kind, server, force))
    await nodes.applied(index, [n for n in nodes.running if n in members(nodes, leader)])


def members(nodes: Cluster, node: int) -> list[int]:
    return [server.id for server in nodes.farm(node).configuration.servers]


async def ended(nodes: Cluster, node: int, within_s: float) -> None:
    with trio.fail_after(within_s):
        while node in nodes.running:  # noqa: ASYNC110
            await trio.sleep(0.1)


async def test_server_that_is_added_holds_the_whole_log_and_votes(autojump_clock: MockClock) -> None:
    async with cluster(2) as nodes:
        for number in range(300):  # more than go without a LogPack
            await nodes.post(b"%d" % number)
        server = await nodes.enlist()
        await change(nodes, Change.ADD, server)
        leader = await nodes.leader()
        assert members(nodes, leader) == members(nodes, 3) == [1, 2, 3]
        await nodes.kill(3 - leader)  # the other one of the first two
        index, _ = await nodes.post(b"with the new one")
        await nodes.applied(index)
        state = nodes.application(leader).snapshot()
        assert nodes.application(3).snapshot() == state


async def test_server_that_cannot_be_dialled_is_not_added(autojump_clock: MockClock) -> None:
    async with cluster(2) as nodes:
        with pytest.raises(ProposalDropped, match="cannot-be-dialled"):
            await change(nodes, Change.ADD, ClusterServer(7, "memory://nobody:1"))
        await nodes.post(b"goes on")


async def test_removed_member_is_told_and_ends(autojump_clock: MockClock) -> None:
    async with cluster(4) as nodes:
        leader = await nodes.leader()
        other = next(n for n in (1, 2, 3, 4) if n != leader)
        raft = nodes.farm(leader).section.raft
        await change(nodes, Change.REMOVE, ClusterServer(other))
        told_s = 4 * raft.heartbeat_s
        assert told_s < 2 * raft.election_timeout_max_s, "after which it would end by one word alone"
        await ended(nodes, other, told_s)
        read = nodes.farm(leader).members.refusal(Request(MessageType.READ_INDEX_REQUEST, other, leader))
        assert read is not None
        assert (read.type, read.destination) == (MessageType.READ_INDEX_RESPONSE, leader)
        assert not read.accepted
        await nodes.post(b"goes on")
        with pytest.raises(ProposalDropped, match="id-used-before"):
            await change(nodes, Change.ADD, ClusterServer(other, f"memory://node{other}:1"))


async def test_member_removed_while_it_was_down_is_told_when_it_comes_back(autojump_clock: MockClock) -> None:
    async with cluster(4) as nodes:
        leader = await nodes.leader()
        other = next(n for n in (1, 2, 3, 4) if n != leader)
        await nodes.kill(other)
        await change(nodes, Change.REMOVE, ClusterServer(other))
        term = nodes.farm(leader).raw.term
        await trio.sleep(120)
        await nodes.restart(other)
        await ended(nodes, other, 120)
        assert nodes.farm(await nodes.leader()).raw.term == term


async def test_leader_that_is_removed_hands_over_first(autojump_clock: MockClock) -> None:
    async with cluster(3) as nodes:
        leader = await nodes.leader()
        with pytest.raises(NotLeader) as told:
            await nodes.farm(leader).members.change(ConfChange(Change.REMOVE, ClusterServer(leader)))
        successor = await nodes.leader()
        assert told.value.leader_id == successor != leader
        await change(nodes, Change.REMOVE, ClusterServer(leader))
        await ended(nodes, leader, 30)
        await nodes.post(b"goes on")


async def test_change_without_enough_members_is_refused(autojump_clock: MockClock) -> None:
    async with cluster(3) as nodes:
        leader = await nodes.leader()
        one, other = (n for n in (1, 2, 3) if n != leader)
        await nodes.kill(one)
        await trio.sleep(20)
        with pytest.raises(ProposalDropped, match="too-few-members-heard"):
            await change(nodes, Change.REMOVE, ClusterServer(other))
        await change(nodes, Change.REMOVE, ClusterServer(one))  # the dead one may go
        assert members(nodes, leader) == sorted([leader, other])
        with pytest.raises(NotLeader):
            await nodes.farm(other).members.change(ConfChange(Change.REMOVE, ClusterServer(one)))


async def test_leader_steps_down_for_the_member_that_is_named(autojump_clock: MockClock) -> None:
    async with cluster(3) as nodes:
        leader = await nodes.leader()
        target = next(n for n in (1, 2, 3) if n != leader)
        began, raft = trio.current_time(), nodes.farm(leader).section.raft
        assert await nodes.farm(leader).members.step_down(target) == target
        # No election timeout is waited for; a heartbeat is, where the other one had yet to apply the
        # Configuration that the leader began with.
        assert trio.current_time() - began < raft.election_timeout_min_s
        with pytest.raises(ProposalDropped, match="no-such-member"):
            await nodes.farm(target).members.step_down(9)
        await nodes.post(b"goes on")


async def test_member_told_to_leave_goes_on_where_a_later_leader_keeps_it(autojump_clock: MockClock) -> None:
    """A JRaft leader tells it before the Configuration without it is appended, which may never come."""
    async with cluster(3) as nodes:
        leader = await nodes.leader()
        other, third = (n for n in (1, 2, 3) if n != leader)
        members, raft = nodes.farm(leader).members, nodes.farm(leader).section.raft
        for _ in range(2):
            await members._farewell(other, members.ever[other])
            assert nodes.farm(other).raw.leaving
            await nodes.farm(await nodes.leader()).members.step_down(third)
            await trio.sleep(4 * raft.election_timeout_max_s)
            assert other in nodes.running
            await nodes.farm(third).members.step_down(leader)
        await members._farewell(other, members.ever[other])
        await ended(nodes, other, 3 * raft.election_timeout_max_s)
