"""Members come, go, and are told so: real nodes on a memory network."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from garlicfarm.errors import NoQuorum, NotLeader, ProposalDropped
from garlicfarm.metrics import FarmMetrics
from garlicfarm.node.session import Principal
from garlicfarm.raft import Change, ConfChange
from garlicfarm.refusals import Refusal
from garlicfarm.testing.memory_cluster import Cluster, cluster
from garlicfarm.wire import encode_request
from garlicfarm.wire.messages import ClusterServer, MessageType, Request
from tests.running import background, led, wait_until


async def change(nodes: Cluster, kind: Change, server: ClusterServer, *, force: bool = False) -> None:
    leader = await nodes.leader()
    index, _ = await nodes.replica(leader).membership.change(ConfChange(kind, server, force))
    await nodes.applied(index, [n for n in nodes.running if n in members(nodes, leader)])


def members(nodes: Cluster, node: int) -> list[int]:
    return [server.id for server in nodes.replica(node).configuration.servers]


async def ended(nodes: Cluster, node: int, within_s: float) -> None:
    with trio.fail_after(within_s):
        await wait_until(lambda: node not in nodes.running)


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


async def test_removed_member_is_told_and_ends(autojump_clock: MockClock) -> None:
    async with led(cluster(4)) as (nodes, leader):
        other = next(n for n in (1, 2, 3, 4) if n != leader)
        raft = nodes.replica(leader).section.raft
        await change(nodes, Change.REMOVE, ClusterServer(other))
        told_s = 4 * raft.heartbeat_s
        assert told_s < 2 * raft.election_timeout_max_s, "after which it would end by one word alone"
        await ended(nodes, other, told_s)
        read = nodes.replica(leader).membership.refusal(
            Request(MessageType.READ_INDEX_REQUEST, other, leader)
        )
        assert read is not None
        assert (read.type, read.destination) == (MessageType.READ_INDEX_RESPONSE, leader)
        assert not read.accepted
        await nodes.post(b"goes on")
        with pytest.raises(ProposalDropped, match=Refusal.ID_USED_BEFORE):
            await change(nodes, Change.ADD, ClusterServer(other, f"memory://node{other}:1"))


async def test_member_removed_while_it_was_down_is_told_when_it_comes_back(autojump_clock: MockClock) -> None:
    async with led(cluster(4)) as (nodes, leader):
        other = next(n for n in (1, 2, 3, 4) if n != leader)
        await nodes.kill(other)
        await change(nodes, Change.REMOVE, ClusterServer(other))
        term = nodes.replica(leader).raw.term
        await trio.sleep(120)
        await nodes.restart(other)
        await ended(nodes, other, 120)
        assert nodes.replica(await nodes.leader()).raw.term == term


async def leave(nodes: Cluster, node: int, *, force: bool = False) -> tuple[int, int]:
    """Have ``node`` removed by itself."""
    change = ConfChange(Change.REMOVE, ClusterServer(node), force)
    return await nodes.replica(node).membership.change(change)


async def test_leader_that_removes_itself_hands_over_and_is_removed(autojump_clock: MockClock) -> None:
    async with led(cluster(3)) as (nodes, leader):
        farm = nodes.replica(leader)
        index, term = await leave(nodes, leader)
        assert farm.core.applied.configuration.log_index == index
        assert leader not in [server.id for server in farm.core.applied.configuration.servers]
        successor = await nodes.leader([n for n in nodes.running if n != leader])
        assert nodes.replica(successor).raw.term == term
        assert leader not in members(nodes, successor)
        await ended(nodes, leader, 30)
        await nodes.post(b"goes on")


async def test_leader_of_two_leaves_the_other_one_alone(autojump_clock: MockClock) -> None:
    async with led(cluster(2)) as (nodes, leader):
        await leave(nodes, leader)
        assert members(nodes, 3 - leader) == [3 - leader]
        await ended(nodes, leader, 30)
        await nodes.post(b"goes on")


async def test_follower_asks_the_leader_for_its_own_removal(autojump_clock: MockClock) -> None:
    """RemoveServer and its answer, then LeaveCluster and its (docs/reference/protocol.md, "What JRaft's bytes
    settle")."""
    async with led(cluster(3)) as (nodes, leader):
        other = next(n for n in (1, 2, 3) if n != leader)
        seen = {n: nodes.replica(n).metrics for n in (leader, other)}
        await leave(nodes, other)
        await ended(nodes, other, 30)
        assert messages(seen[leader], "REMOVE_SERVER_REQUEST", "in") == 1
        assert messages(seen[other], "LEAVE_CLUSTER_REQUEST", "in") == 1
        assert await nodes.leader() == leader
        await nodes.post(b"goes on")


@pytest.mark.parametrize("removed", ["leader", "other"])
async def test_follower_that_is_to_remove_another_member_has_the_leader_do_it(
    autojump_clock: MockClock, removed: str
) -> None:
    async with led(cluster(4)) as (nodes, leader):
        asked, other, _ = sorted({1, 2, 3, 4} - {leader})
        gone = leader if removed == "leader" else other
        index, term = await nodes.replica(asked).membership.change(
            ConfChange(Change.REMOVE, ClusterServer(gone))
        )
        assert gone not in members(nodes, asked)
        assert (index, term) == (
            nodes.replica(asked).core.applied.configuration.log_index,
            nodes.replica(await nodes.leader()).raw.term,
        )
        await ended(nodes, gone, 30)
        await nodes.post(b"goes on")


async def test_follower_that_is_to_add_a_server_has_the_leader_do_it(autojump_clock: MockClock) -> None:
    async with led(cluster(2)) as (nodes, leader):
        server = await nodes.enlist()
        await nodes.replica(3 - leader).membership.change(ConfChange(Change.ADD, server))
        assert members(nodes, 3 - leader) == [1, 2, 3]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (ConfChange(Change.ADD, ClusterServer(7, "memory://nobody:1")), Refusal.CANNOT_BE_DIALLED),
        (
            ConfChange(Change.ADD, ClusterServer(7, "memory://node1:27150")),
            Refusal.ENDPOINT_OF_ANOTHER_MEMBER,
        ),
        (ConfChange(Change.REMOVE, ClusterServer(7)), Refusal.NO_SUCH_MEMBER),
    ],
)
async def test_follower_passes_the_leaders_refusal_on(
    autojump_clock: MockClock, change: ConfChange, reason: str
) -> None:
    async with led(cluster(3)) as (nodes, leader):
        asked = min({1, 2, 3} - {leader})
        with pytest.raises(ProposalDropped) as refused:
            await nodes.replica(asked).membership.change(change)
        assert refused.value.reason == reason


async def test_follower_leaves_to_the_leader_what_the_wire_cannot_say(autojump_clock: MockClock) -> None:
    async with led(cluster(3)) as (nodes, leader):
        asked, other = sorted({1, 2, 3} - {leader})
        members_of = nodes.replica(asked).membership
        with pytest.raises(NotLeader) as told:  # another endpoint
            await members_of.change(ConfChange(Change.SET, ClusterServer(other, "memory://node9:1")))
        assert told.value.leader_id == leader
        await nodes.kill(other)
        await trio.sleep(20)
        forced = ConfChange(Change.REMOVE, ClusterServer(leader), True)
        with pytest.raises(ProposalDropped, match=Refusal.TOO_FEW_MEMBERS_HEARD):
            await members_of.change(ConfChange(Change.REMOVE, ClusterServer(leader)))
        with pytest.raises(NotLeader) as told:
            await members_of.change(forced)
        assert told.value.leader_id == leader


async def test_change_during_a_hand_over_is_made_by_the_new_leader(autojump_clock: MockClock) -> None:
    async with led(cluster(4)) as (nodes, leader):
        successor, other, _ = sorted({1, 2, 3, 4} - {leader})
        await trio.sleep(10)
        farm = nodes.replica(leader)
        farm.core.put(farm.raw.transfer_leadership, successor)
        await farm.membership.change(ConfChange(Change.REMOVE, ClusterServer(other)))
        assert other not in members(nodes, await nodes.leader())


def messages(metrics: FarmMetrics, kind: str, direction: str) -> float:
    labels = {"farm": "farm", "type": kind, "direction": direction}
    return metrics.registry.get_sample_value("garlicfarm_raft_messages_total", labels) or 0.0


async def test_member_whose_leader_is_lost_meanwhile_is_removed_by_the_next_one(
    autojump_clock: MockClock,
) -> None:
    async with led(cluster(4)) as (nodes, leader):
        other = next(n for n in (1, 2, 3, 4) if n != leader)
        await nodes.kill(leader)
        await leave(nodes, other)
        await ended(nodes, other, 30)
        assert other not in members(nodes, await nodes.leader())


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
async def test_member_whose_leaving_would_cost_the_majority_stays(
    autojump_clock: MockClock, leads: bool
) -> None:
    async with led(cluster(3)) as (nodes, leader):
        one, other = (n for n in (1, 2, 3) if n != leader)
        await nodes.kill(one)
        await trio.sleep(20)
        leaving, term = leader if leads else other, nodes.replica(leader).raw.term
        with pytest.raises(ProposalDropped, match=Refusal.TOO_FEW_MEMBERS_HEARD):
            await leave(nodes, leaving)
        assert (await nodes.leader(), nodes.replica(leader).raw.term) == (leader, term)
        with pytest.raises(NotLeader) as told:  # the wire knows no force: that is for the (new) leader
            await leave(nodes, leaving, force=True)
        assert told.value.leader_id == (other if leads else leader)


async def test_last_member_stays(autojump_clock: MockClock) -> None:
    async with cluster(1) as nodes:
        await nodes.leader()
        with pytest.raises(ProposalDropped, match=Refusal.THE_LAST_MEMBER):
            await leave(nodes, 1)


async def test_member_without_a_leader_has_asked_nobody_to_remove_it(autojump_clock: MockClock) -> None:
    async with led(cluster(3)) as (nodes, leader):
        one, other = (n for n in (1, 2, 3) if n != leader)
        await nodes.kill(leader)
        await nodes.kill(one)
        await trio.sleep(20)
        with pytest.raises(NoQuorum):
            await leave(nodes, other)


async def test_change_without_enough_members_is_refused(autojump_clock: MockClock) -> None:
    async with led(cluster(3)) as (nodes, leader):
        one, other = (n for n in (1, 2, 3) if n != leader)
        await nodes.kill(one)
        await trio.sleep(20)
        with pytest.raises(ProposalDropped, match=Refusal.TOO_FEW_MEMBERS_HEARD):
            await change(nodes, Change.REMOVE, ClusterServer(other))
        await change(nodes, Change.REMOVE, ClusterServer(one))  # the dead one may go
        assert members(nodes, leader) == sorted([leader, other])
        with pytest.raises(ProposalDropped, match=Refusal.NO_SUCH_MEMBER):
            await nodes.replica(other).membership.change(ConfChange(Change.REMOVE, ClusterServer(one)))


async def test_leader_steps_down_for_the_member_that_is_named(autojump_clock: MockClock) -> None:
    async with led(cluster(3)) as (nodes, leader):
        target = next(n for n in (1, 2, 3) if n != leader)
        began, raft = trio.current_time(), nodes.replica(leader).section.raft
        assert await nodes.replica(leader).step_down(target) == target
        # No election timeout is waited for; a heartbeat is, where the other one had yet to apply the
        # Configuration that the leader began with.
        assert trio.current_time() - began < raft.election_timeout_min_s
        with pytest.raises(ProposalDropped, match=Refusal.NO_SUCH_MEMBER):
            await nodes.replica(target).step_down(9)
        await nodes.post(b"goes on")


async def order_to_leave(nodes: Cluster, leader: int, member: int) -> None:
    """What a leader says to a member, on a connection of its own."""
    status, (ours, theirs) = nodes.replica(leader).raw.status(), trio.testing.memory_stream_pair()
    last = 0, status.last_index, status.commit
    order = Request(MessageType.LEAVE_CLUSTER_REQUEST, leader, member, status.term, *last)
    principal = Principal(f"member {leader}", leader, True)
    async with background(lambda: nodes.replica(member).serve(theirs, principal)):
        await ours.send_all(encode_request(order))
        await ours.receive_some(100)


async def test_member_ordered_to_leave_stays_where_a_later_leader_keeps_it(autojump_clock: MockClock) -> None:
    """A JRaft leader tells it before the Configuration without it is appended, which may never come."""
    async with led(cluster(3)) as (nodes, leader):
        other, third = (n for n in (1, 2, 3) if n != leader)
        raft = nodes.replica(leader).section.raft
        for _ in range(2):
            await order_to_leave(nodes, leader, other)
            assert nodes.replica(other).raw.is_leaving
            await nodes.replica(await nodes.leader()).step_down(third)
            await trio.sleep(4 * raft.election_timeout_max_s)
            assert other in nodes.running
            await nodes.replica(third).step_down(leader)
        await order_to_leave(nodes, leader, other)
        await ended(nodes, other, 3 * raft.election_timeout_max_s)
