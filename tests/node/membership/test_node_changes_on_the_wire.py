"""AddServerRequest and RemoveServerRequest on the wire: each refusal is answered, with its reason (D8)."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import msgspec
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from garlicfarm.errors import LocalProtocolError, RemoteProtocolError
from garlicfarm.node.session import Principal
from garlicfarm.refusals import Refusal
from garlicfarm.testing.memory_cluster import Cluster, cluster
from garlicfarm.wire import ResponseDecoder, encode_cluster_server, encode_request
from garlicfarm.wire.messages import (
    NO_LEADER,
    ClusterServer,
    LogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)
from tests.raft.test_raft_extreme_numbers import EXTREMES, HEADER
from tests.running import background, led

ADD, REMOVE = MessageType.ADD_SERVER_REQUEST, MessageType.REMOVE_SERVER_REQUEST


JRAFT_PEER = Principal("a JRaft peer", 0, True, is_jraft=True)


async def ask(
    nodes: Cluster, node: int, kind: MessageType, server: ClusterServer, principal: Principal = JRAFT_PEER
) -> Response:
    """The answer of ``node`` to ``principal``, on a connection of its own. Raises what ends that first."""
    ours, theirs = trio.testing.memory_stream_pair()
    farm = nodes.replica(node)
    value = encode_cluster_server(server, id_only=kind is REMOVE)
    request = Request(kind, principal.member_id, 0, entries=(LogEntry(0, ValueType.CLUSTER_SERVER, value),))
    decoder = ResponseDecoder()
    async with background(lambda: farm.serve(theirs, principal)):
        await ours.send_all(encode_request(request))
        while (answer := decoder.next_message()) is None:
            decoder.receive_data(bytes(await ours.receive_some(1000)))
    assert (answer.type, answer.source) == (kind + 1, node)
    return answer


async def refused(nodes: Cluster, kind: MessageType, server: ClusterServer) -> int:
    """Why the leader refuses."""
    leader = await nodes.leader()
    answer = await ask(nodes, leader, kind, server)
    assert (answer.accepted, answer.destination) == (False, leader)
    return answer.next_index


def others(leader: int) -> tuple[int, int]:
    one, other = sorted({1, 2, 3} - {leader})
    return one, other


async def test_removal_of_a_server_that_is_no_member_is_refused_as_senseless(
    autojump_clock: MockClock,
) -> None:
    async with cluster(3) as nodes:
        assert await refused(nodes, REMOVE, ClusterServer(9)) == Refusal.NO_SUCH_MEMBER.number


async def test_removal_of_the_last_member_is_refused(autojump_clock: MockClock) -> None:
    async with cluster(1) as nodes:
        assert await refused(nodes, REMOVE, ClusterServer(1)) == Refusal.TOO_FEW_MEMBERS_HEARD.number


async def test_removal_that_leaves_no_majority_is_refused_and_no_leader_hands_over_for_it(
    autojump_clock: MockClock,
) -> None:
    async with led(cluster(3)) as (nodes, leader):
        one, other = others(leader)
        await nodes.kill(one)
        await trio.sleep(nodes.replica(leader).section.raft.election_timeout_max_s + 1)
        for member in (other, leader):
            assert await refused(nodes, REMOVE, ClusterServer(member)) == Refusal.TOO_FEW_MEMBERS_HEARD.number
        assert await nodes.leader() == leader


async def test_change_is_refused_while_another_one_is_begun(autojump_clock: MockClock) -> None:
    async with led(cluster(3)) as (nodes, leader):
        one, other = others(leader)
        answers: list[Response] = []

        async def remove(member: int) -> None:
            answers.append(await ask(nodes, leader, REMOVE, ClusterServer(member)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(remove, one)
            nursery.start_soon(remove, other)
        said = {answer.accepted: answer.next_index for answer in answers}
        assert said[False] == Refusal.ANOTHER_CHANGE_IN_FLIGHT.number
        assert True in said


async def test_leader_whose_hand_over_fails_says_so_in_time(autojump_clock: MockClock) -> None:
    """Whoever was to take over is gone just now: all others were heard of late."""
    async with led(cluster(3)) as (nodes, leader):
        await trio.sleep(10)
        await nodes.kill(min(others(leader)))  # of equals it is taken
        assert await refused(nodes, REMOVE, ClusterServer(leader)) == Refusal.TOO_FEW_MEMBERS_HEARD.number


async def test_leader_that_nobody_follows_any_more_redirects_to_nobody(autojump_clock: MockClock) -> None:
    async with led(cluster(3)) as (nodes, leader):
        for member in others(leader):
            await nodes.kill(member)
        answer = await ask(nodes, leader, REMOVE, ClusterServer(leader))
        assert (answer.accepted, answer.destination) == (False, NO_LEADER)


async def test_removal_during_a_hand_over_is_refused_for_it(autojump_clock: MockClock) -> None:
    async with led(cluster(3)) as (nodes, leader):
        one, other = others(leader)
        await trio.sleep(10)
        nodes.partition([leader, other], [one])
        farm = nodes.replica(leader)
        farm.core.put(farm.raw.transfer_leadership, one)
        assert await refused(nodes, REMOVE, ClusterServer(one)) == Refusal.LEADERSHIP_IN_TRANSFER.number
        assert await refused(nodes, REMOVE, ClusterServer(leader)) == Refusal.LEADERSHIP_IN_TRANSFER.number


async def test_member_that_does_not_lead_names_the_leader(autojump_clock: MockClock) -> None:
    async with led(cluster(3)) as (nodes, leader):
        one, other = others(leader)
        for kind, server in ((REMOVE, ClusterServer(other)), (ADD, ClusterServer(4, "memory://d:1"))):
            answer = await ask(nodes, one, kind, server)
            assert (answer.accepted, answer.destination) == (False, leader)


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (ClusterServer(1, "memory://node1:27150"), Refusal.ID_USED_BEFORE.number),
        (ClusterServer(4, "memory://node1:27150"), Refusal.ENDPOINT_OF_ANOTHER_MEMBER.number),
        (ClusterServer(4, "memory://nobody:1"), Refusal.CANNOT_BE_DIALLED.number),
    ],
)
async def test_refused_newcomer_is_told_why(
    autojump_clock: MockClock, server: ClusterServer, reason: int
) -> None:
    async with cluster(2) as nodes:
        await nodes.leader()
        assert await refused(nodes, ADD, server) == reason


async def test_member_may_name_any_server_and_another_only_itself(autojump_clock: MockClock) -> None:
    async with led(cluster(4)) as (nodes, leader):
        member, gone, _ = sorted({1, 2, 3, 4} - {leader})
        principals = {server: Principal(f"member {server}", server, True) for server in (member, gone, 9)}
        answer = await ask(nodes, leader, REMOVE, ClusterServer(gone), principals[member])
        assert answer.accepted
        await nodes.applied(answer.next_index - 1, [leader])
        refusal = pytest.RaisesExc(RemoteProtocolError, match="may not change")
        for server in (gone, 9):
            with pytest.RaisesGroup(refusal, flatten_subgroups=True):
                await ask(nodes, leader, REMOVE, ClusterServer(member), principals[server])


@pytest.mark.parametrize("kind", [ADD, REMOVE], ids=lambda kind: kind.name)
async def test_change_with_an_extreme_number_leaves_the_farm_as_it_is(
    kind: MessageType, autojump_clock: MockClock
) -> None:
    """In any field of the header or of the entry, and as the id of the server, which nobody can dial."""
    async with led(cluster(3)) as (nodes, leader):
        farm = nodes.replica(leader)
        before = farm.configuration.servers
        plain = Request(kind, 9, 0, entries=(LogEntry(0, ValueType.CLUSTER_SERVER, b""),))
        changed = [msgspec.structs.replace(plain, **{name: number}) for name in HEADER for number in EXTREMES]
        changed += [
            msgspec.structs.replace(plain, entries=(LogEntry(number, ValueType.CLUSTER_SERVER, b""),))
            for number in EXTREMES
        ]
        servers = [ClusterServer(number, "memory://nowhere:1") for number in (9, 2**31 - 1)]
        for request, server in [*product(changed, servers[:1]), (plain, servers[1])]:
            value = encode_cluster_server(server, id_only=kind is REMOVE)
            (entry,) = request.entries
            whole = msgspec.structs.replace(request, entries=(msgspec.structs.replace(entry, value=value),))
            with suppress(LocalProtocolError):  # the wire cannot say it
                await send_raw(nodes, leader, encode_request(whole))
        for raw in (b"", bytes(4), b"\xff" * 4, b"\xff" * 12):  # ids 0 and -1, and no server
            entry = LogEntry(2**64 - 1, ValueType.CLUSTER_SERVER, raw)
            await send_raw(nodes, leader, encode_request(msgspec.structs.replace(plain, entries=(entry,))))
        await nodes.post(b"after")
        assert nodes.replica(await nodes.leader()).configuration.servers == before


async def send_raw(nodes: Cluster, node: int, data: bytes) -> None:
    """Send it over a connection of its own, until there is an answer or the connection ends."""
    ours, theirs = trio.testing.memory_stream_pair()
    farm = nodes.replica(node)

    async def serve() -> None:
        try:
            await farm.serve(theirs, JRAFT_PEER)
        except* RemoteProtocolError:
            pass  # the connection ends
        await theirs.aclose()

    async with background(serve):
        await ours.send_all(data)
        with trio.move_on_after(farm.core.answer_timeout_s):
            await ours.receive_some(1)
