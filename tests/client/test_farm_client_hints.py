"""A client finds a leader that it was not told of, where leader-hint is in force (D5)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from garlicfarm.client.farm import FarmClient
from garlicfarm.wire import ResponseDecoder, encode_request
from garlicfarm.wire.messages import ClusterServer, Configuration, MessageType, Response
from tests.client.test_farm_client import FakeRpcClient, NotedTransport
from tests.node.support.cluster import Cluster, client_request, cluster
from tests.running import background, led, wait_until


def follower_of(nodes: Cluster, leader: int) -> int:
    return next(node_id for node_id in nodes.endpoints if node_id != leader)


async def test_client_that_knows_a_follower_alone_finds_the_leader(tmp_path: Path) -> None:
    transport = NotedTransport()
    async with (
        led(cluster(tmp_path, 3)) as (nodes, leader),
        nodes.client(follower_of(nodes, leader), transport=transport) as client,
    ):
        index, _ = await client.post([b"x"])
        assert (await client.post([b"y"]))[0] == index + 1
        members = leader, follower_of(nodes, leader)
        assert set(transport.dialled()) == {nodes.endpoints[member] for member in members}


async def test_client_without_the_extension_stays_where_it_was_told_to_go(tmp_path, monkeypatch):
    async with led(cluster(tmp_path, 3)) as (nodes, leader):
        monkeypatch.setattr("garlicfarm.client.farm.LEADER_HINT", "not-this-one")
        follower, transport = follower_of(nodes, leader), NotedTransport()
        received = nodes.replica(follower).metrics.received
        async with nodes.client(follower, timeout_s=60, transport=transport) as client:
            async with background(lambda: client.post([b"x"])):
                await wait_until(lambda: received[MessageType.CLIENT_REQUEST] >= 4)
            assert transport.dialled() == [nodes.endpoints[follower]] * 2, "it has understood three refusals"


async def test_refusal_on_the_wire_is_followed_by_the_members_in_force(tmp_path: Path) -> None:
    async with led(cluster(tmp_path, 3)) as (nodes, leader):
        follower = follower_of(nodes, leader)
        await nodes.applied(1)
        wire = await nodes.login(node_id=follower, extensions={"leader-hint": "1"})
        assert wire.leader == (leader, nodes.endpoints[leader])
        stream, decoder = wire.stream, ResponseDecoder()
        await stream.send_all(encode_request(client_request(b"x")) + encode_request(client_request()))
        answers: list[Response] = []
        while len(answers) < 2:
            decoder.receive_data(await stream.receive_some())
            while (response := decoder.next_message(hinted=True)) is not None:
                answers.append(response)
        for response in answers:
            assert (response.accepted, response.destination, response.next_index) == (False, leader, 0)
            assert response.hint is not None
            assert {server.id: server.endpoint for server in response.hint.servers} == nodes.endpoints


async def test_hint_is_followed_to_the_leader_that_it_names_alone(autojump_clock):
    followed: list[tuple[int, str]] = []
    members = Configuration(1, 0, (ClusterServer(2, "ssl://b:1"), ClusterServer(3, "ssl://c:1")))
    refused = partial(Response, MessageType.APPEND_ENTRIES_RESPONSE, 1)
    server = FakeRpcClient(
        refused(3, 4, 0, False, members),
        refused(9, 4, 0, False, members),
        refused(3, 4, 0, False),
        refused(1, 4, 2, True),
    )
    client = FarmClient({1: server}, 60.0, lambda *place: followed.append(place))  # type: ignore[dict-item]
    assert await client.post([b"x"]) == (1, 4)
    assert followed == [(3, "ssl://c:1")]
