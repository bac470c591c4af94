"""Members that are reached through I2P beside members that are reached by TLS: endpoint by endpoint."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.lab.processes import free_ports
from garlicfarm.net.handshake import HandshakeLimiter
from garlicfarm.node import listeners
from garlicfarm.setup.provision import MemberPlan
from tests.node.support.cluster import Cluster, cluster
from tests.running import wait_until
from tests.transports.connect_proxy import B32, ConnectProxy, connect_proxy

ADMIN = "https://127.0.0.1:0"
# The preset `i2p`, ten times as fast.
FAST_I2P = {
    "election_timeout_min_s": 2.0,
    "election_timeout_max_s": 4.0,
    "heartbeat_s": 0.5,
    "rpc_timeout_s": 1.2,
}


@asynccontextmanager
async def mixed(
    directory: Path, proxy: ConnectProxy, schemes: Sequence[str], **more: Any
) -> AsyncIterator[Cluster]:
    """Nodes 1, 2 … with endpoints of these schemes, all with the same router."""
    members = {}
    for node_id, (scheme, port) in enumerate(zip(schemes, free_ports(len(schemes)), strict=True), 1):
        endpoint, listen = f"ssl://127.0.0.1:{port}", ""
        if scheme == "i2p":
            proxy.names[B32[node_id]] = port
            endpoint, listen = f"i2p://{B32[node_id]}:27150", f"i2p://127.0.0.1:{port}"
        members[node_id] = MemberPlan(endpoint=endpoint, listen=listen, admin_url=ADMIN)
    async with cluster(directory, len(schemes), members=members, start=False, **more) as farm:
        farm.environ["GARLICFARM_TRANSPORT__I2P__PROXY"] = proxy.url
        yield farm


def row(farm: Cluster, of: int, member: int) -> dict[str, Any]:
    view = farm.node(of).farms[farm.plan.name]
    found: dict[str, Any] = next(each for each in view.status()["members"] if each["id"] == member)
    return found


async def error_of(farm: Cluster, of: int, member: int, words: str) -> str:
    """What node ``of`` says of its connection to ``member``, once that holds ``words``."""

    def told() -> str:
        error: str = row(farm, of, member)["error"] or ""
        return error if words in error else ""

    return await wait_until(told)


async def test_farm_of_ssl_and_i2p_members_elects_commits_and_changes_its_leader(tmp_path: Path) -> None:
    async with connect_proxy() as proxy, mixed(tmp_path, proxy, ["ssl", "i2p", "i2p"]) as farm:
        await farm.start()
        leader = await farm.leader()
        index, _ = await farm.node(leader).farms["farm"].post(b"one", "alice")
        await farm.applied(index)
        assert [row(farm, leader, i)["transport"] for i in (1, 2, 3)] == ["ssl", "i2p", "i2p"]
        await farm.stop(leader)
        other = await farm.leader()
        follower = next(node_id for node_id in farm.running if node_id != other)
        index, _ = await farm.node(follower).farms["farm"].post(b"two", "alice")
        await farm.applied(index)
        await farm.start(leader)
        await farm.replica(leader).wait_applied(index - 1)
        assert await farm.leader()
    assert proxy.early == b""


async def connected(farm: Cluster, of: int) -> None:
    """Node ``of`` is connected to all others that run."""
    others = farm.running.keys() - {of}
    await wait_until(lambda: all(map(farm.replica(of).peers.is_connected, others)))


@pytest.mark.slow
async def test_first_streams_that_lead_nowhere_cost_no_election(tmp_path: Path) -> None:
    """A router answers 200 and then carries nothing, twice per connection, and the third one works: also
    where a leader has lost the connections to all others at once, whose timers run meanwhile.

    A busy machine may cost an election too. One that is too late by itself always does.
    """
    raft = FAST_I2P | {"election_timeout_max_s": 2.2}  # a third attempt at 2.4 s would come too late
    async with connect_proxy() as proxy, mixed(tmp_path, proxy, ["i2p"] * 3, raft=raft) as farm:
        proxy.dead.update(B32[1:4])
        await farm.start()
        for _ in range(10):
            leader = await farm.leader()
            (index, term) = await farm.node(leader).farms["farm"].post(b"one", "alice")
            await farm.applied(index)
            for node_id in farm.running:
                await connected(farm, node_id)
            others = {1, 2, 3} - {leader}
            for follower in others:
                proxy.dead[B32[follower]] = 2 * proxy.cut(
                    B32[follower]
                )  # of the leader, and of the other one
                assert proxy.dead[B32[follower]] == 4
            await trio.sleep(FAST_I2P["heartbeat_s"])
            were_down = not any(farm.replica(leader).peers.is_connected(follower) for follower in others)
            await connected(farm, leader)
            await trio.sleep(raft["election_timeout_max_s"])
            if were_down and {farm.replica(each).raw.status().term for each in farm.running} == {term}:
                return
        pytest.fail("each time an election")


async def test_streams_that_all_lead_nowhere_are_told_as_that(tmp_path: Path) -> None:
    async with connect_proxy() as proxy, mixed(tmp_path, proxy, ["i2p"] * 2, raft=FAST_I2P) as farm:
        proxy.dead[B32[1]] = proxy.dead[B32[2]] = 1000
        await farm.start()
        await error_of(farm, 1, 2, "not let in within 1.2 s; is that node up?")
        proxy.dead.clear()
        await connected(farm, 1)


@pytest.mark.parametrize(("preset", "deadline_s"), [("clearnet", 10.0), ("i2p", 12.0)])
async def test_whoever_logs_in_has_as_long_as_members_wait(
    preset: str, deadline_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    class Noted(HandshakeLimiter):
        def __init__(self, **how: Any) -> None:
            given.append(how["deadline_s"])
            super().__init__(**how)

    monkeypatch.setattr(listeners, "HandshakeLimiter", Noted)
    async with cluster(tmp_path, preset=preset, raft={}):
        assert given == [deadline_s]


async def test_member_that_nobody_finds_has_its_cause_in_the_status(tmp_path: Path) -> None:
    async with connect_proxy() as proxy, mixed(tmp_path, proxy, ["i2p"] * 3) as farm:
        await farm.start(1, 2)
        leader = await farm.leader()
        assert B32[3] in await error_of(farm, leader, 3, "the router finds no LeaseSet of")


async def test_address_of_another_member_is_found_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Member 3's b32 leads to member 2's tunnel: not what the Configuration says."""
    async with connect_proxy() as proxy, mixed(tmp_path, proxy, ["i2p"] * 3) as farm:
        proxy.names[B32[3]] = proxy.names[B32[2]]
        farm.favour(1)
        with caplog.at_level("WARNING"):
            await farm.start(1, 2)
            assert await farm.leader() == 1
            await error_of(farm, 1, 3, "does this address lead to member 3? its log says why it refuses")
        causes = [record.__dict__ for record in caplog.records]
        assert "a request for 3 sent to 2" in str(causes)


async def test_address_of_another_farm_is_found_out(tmp_path: Path) -> None:
    async with (
        connect_proxy() as proxy,
        mixed(tmp_path / "a", proxy, ["i2p"] * 3) as ours,
        mixed(tmp_path / "b", proxy, ["i2p"]) as theirs,
    ):
        await theirs.start()
        proxy.names[B32[3]] = proxy.names[B32[1]]
        await ours.start(2)
        error = await error_of(ours, 2, 3, B32[3])
        assert "refused user '2'" in error


async def test_tls_spoken_to_the_tunnels_end_is_told_as_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect_proxy() as proxy, mixed(tmp_path, proxy, ["i2p"]) as farm:
        await farm.start()
        tcp = await trio.open_tcp_stream("127.0.0.1", proxy.names[B32[1]])
        stream = trio.SSLStream(tcp, ssl.create_default_context(), server_hostname="a.example")
        with caplog.at_level("WARNING"), pytest.raises(trio.BrokenResourceError):
            await stream.do_handshake()
        await trio.aclose_forcefully(stream)
        (told,) = [record.__dict__ for record in caplog.records if record.message == "rejected"]
        assert "tls" in str(told)
