"""The level of a farm: who may raise it and when, and what becomes of members that cannot follow (D26)."""

from __future__ import annotations

import msgspec
import pytest

from garlicfarm.errors import NotLeader, ProposalDropped, RemoteProtocolError
from garlicfarm.levels import HIGHEST, SAYS_NOTHING, THIS
from garlicfarm.node.programs import Programs
from garlicfarm.raft import Change, ConfChange
from garlicfarm.refusals import Refusal
from garlicfarm.testing import Cluster, cluster
from garlicfarm.wire.messages import ClusterServer
from tests.running import wait_until

pytestmark = pytest.mark.usefixtures("autojump_clock")
RAISE = ConfChange(Change.RAISE, level=1)


async def raise_level(farm: Cluster, level: int = 1) -> tuple[int, int]:
    leader = farm.replica(await farm.leader())
    return await leader.membership.change(ConfChange(Change.RAISE, level=level))


async def refusal(farm: Cluster, level: int = 1) -> ProposalDropped:
    with pytest.raises(ProposalDropped) as refused:
        await raise_level(farm, level)
    return refused.value


async def all_connected(farm: Cluster) -> None:
    """Return once the leader is connected to every member."""
    leader = farm.replica(await farm.leader())
    await wait_until(lambda: not leader.programs.hindered_by(1))


async def test_raised_level_is_in_force_everywhere_and_after_a_restart() -> None:
    async with cluster(3) as farm:
        await all_connected(farm)
        index, _ = await raise_level(farm)
        await farm.applied(index)
        assert [farm.replica(node).configuration.level for node in (1, 2, 3)] == [1, 1, 1]
        await farm.restart(2)
        leader = await farm.leader()  # perhaps the one that was started again
        await farm.kill(1 if leader == 2 else leader)
        await farm.leader()
        after, _ = await farm.post(b"after")
        await farm.applied(after)
        assert {farm.replica(node).configuration.level for node in farm.running} == {1}


async def test_level_is_raised_by_the_leader_once_and_only_upwards() -> None:
    async with cluster(3) as farm:
        await all_connected(farm)
        follower = next(node for node in (1, 2, 3) if not farm.replica(node).is_leader)
        with pytest.raises(NotLeader):
            await farm.replica(follower).membership.change(RAISE)
        await raise_level(farm)
        assert (await refusal(farm)).reason is Refusal.LEVEL_REACHED


async def test_level_that_a_member_cannot_is_refused_with_the_names_of_all_of_them() -> None:
    async with cluster(5) as farm:
        await all_connected(farm)
        leader = farm.replica(await farm.leader())
        away, older, other = [node for node in range(1, 6) if node != leader.node_id][:3]
        leader.programs.judge(older, SAYS_NOTHING)
        leader.programs.judge(other, msgspec.structs.replace(THIS, version="0.2.9", highest=0))
        await farm.kill(away)
        await wait_until(lambda: not leader.peers.is_connected(away))
        refused = await refusal(farm)
        assert refused.reason is Refusal.CANNOT_FOLLOW_LEVEL
        assert f"member {away} is not connected: bring it back, or remove it" in refused.full_reason
        assert f"member {older} runs a program that names no levels" in refused.full_reason
        assert f"member {other} runs garlicfarm 0.2.9, which can level 0: upgrade it" in refused.full_reason
        assert {farm.replica(node).configuration.level for node in farm.running} == {0}


async def test_level_beyond_the_program_is_refused_by_name_of_the_leader_too() -> None:
    async with cluster(3) as farm:
        await all_connected(farm)
        reason = (await refusal(farm, HIGHEST + 1)).full_reason
        assert [f"member {node} runs garlicfarm" in reason for node in (1, 2, 3)] == [True] * 3


async def test_member_that_cannot_follow_is_refused_and_named_until_it_can() -> None:
    async with cluster(3) as farm:
        await all_connected(farm)
        await raise_level(farm)
        leader = farm.replica(await farm.leader())
        member = 1 + leader.node_id % 3
        with pytest.raises(RemoteProtocolError, match=f"member {member} runs .* the farm is at level 1"):
            leader.programs.judge(member, SAYS_NOTHING)
        hindrance = leader.hindrances.of(member)
        assert hindrance is not None
        assert "which can level 0, and the farm is at level 1: upgrade it" in hindrance.text
        assert hindrance.since_ms
        with pytest.raises(RemoteProtocolError):
            leader.programs.judge(member, SAYS_NOTHING)
        assert leader.hindrances.of(member) == hindrance, "since when does not change"
        with pytest.raises(RemoteProtocolError):
            leader.programs.judge(member, msgspec.structs.replace(THIS, version="0.2.9", highest=0))
        other = leader.hindrances.of(member)
        assert other is not None
        assert "runs garlicfarm 0.2.9" in other.text, "of the program that it runs now"
        assert other.since_ms == hindrance.since_ms
        leader.programs.judge(member, msgspec.structs.replace(THIS, level=1))
        assert leader.hindrances.of(member) is None


async def test_member_of_another_application_is_refused_and_named() -> None:
    async with cluster(3) as farm:
        leader = farm.replica(await farm.leader())
        member = 1 + leader.node_id % 3
        other = msgspec.structs.replace(THIS, application="tally")
        with pytest.raises(RemoteProtocolError, match="runs the application tally, and the farm's is log"):
            leader.programs.judge(member, other)


async def test_node_that_cannot_follow_says_so_of_itself_and_goes_on_saying_it() -> None:
    async with cluster(3) as farm:
        replica = farm.replica(1)
        ahead = msgspec.structs.replace(THIS, highest=HIGHEST + 1, level=HIGHEST + 1)
        with pytest.raises(
            RemoteProtocolError, match=f"the farm is at level {HIGHEST + 1}, and this program"
        ):
            replica.programs.judge(2, ahead)
        replica.programs.judge(3, THIS)  # it has not heard of that level yet
        hindrance = replica.hindrances.of(1)
        assert hindrance is not None
        assert "install the program of the other members" in hindrance.text


async def test_new_server_that_cannot_follow_is_refused_where_it_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster(3) as farm:
        await all_connected(farm)
        await raise_level(farm)
        leader = farm.replica(await farm.leader())
        monkeypatch.setattr(
            Programs,
            "own",
            lambda each: msgspec.structs.replace(THIS, level=1) if each.level else SAYS_NOTHING,
        )
        joiner = await farm.enlist()
        with pytest.raises(ProposalDropped) as refused:
            await leader.membership.change(ConfChange(Change.ADD, joiner))
        assert refused.value.reason is Refusal.CANNOT_FOLLOW_LEVEL
        assert f"member {joiner.id} runs a program that names no levels" in refused.value.full_reason
        assert all(server.id != joiner.id for server in leader.configuration.servers)


async def test_new_server_joins_a_raised_farm_at_its_level() -> None:
    async with cluster(3) as farm:
        await all_connected(farm)
        await raise_level(farm)
        leader, joiner = farm.replica(await farm.leader()), await farm.enlist()
        index, _ = await leader.membership.change(ConfChange(Change.ADD, joiner))
        await farm.applied(index)
        assert farm.replica(joiner.id).configuration.level == 1


async def test_program_of_one_that_is_no_member_is_not_kept_nor_waited_for() -> None:
    async with cluster(4) as farm:
        await all_connected(farm)
        leader = farm.replica(await farm.leader())
        gone = 1 + leader.node_id % 4
        leader.programs.judge(gone, SAYS_NOTHING)
        await leader.membership.change(ConfChange(Change.REMOVE, ClusterServer(gone)))
        leader.programs.judge(99, SAYS_NOTHING)
        assert leader.programs.of(99) is None
        assert leader.programs.of(gone) is None
        await raise_level(farm)
        assert leader.configuration.level == 1
