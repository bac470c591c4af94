"""A client's first connections: the 101 names the leader (D5), the farm is another one, or silence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from garlicfarm.client.farm import FarmClient, open_farm_client
from garlicfarm.errors import NoQuorum, OutcomeUnknown
from garlicfarm.extensions import LEADER_HINT
from garlicfarm.http.digest import ALGORITHMS, REALM, DigestVerifier, ha1
from garlicfarm.http.upgrade import FarmCredentials
from garlicfarm.net.handshake import HandshakeLimiter, respond
from garlicfarm.testing.memory_network import MemoryNetwork
from garlicfarm.transport import Endpoint, Peer
from garlicfarm.wire import RequestDecoder, encode_response
from garlicfarm.wire.codec import Limits
from garlicfarm.wire.messages import ClusterServer, Configuration, MessageType, Request, Response

Clock = trio.testing.MockClock
TIMEOUT_S = 3.0
FARM_ID = bytes(16)


def place(server: int) -> str:
    return f"memory://host{server}:1?pin=of-{server}"


MEMBERS = Configuration(1, 0, tuple(ClusterServer(server, place(server)) for server in (1, 2, 3)))


class Server:
    """One server: ``header`` is the leader that its 101 names, ``leader`` the one that its answers name."""

    def __init__(self, server: int, header: int, leader: int) -> None:
        self.id = server
        self.leader = leader
        self.logins = 0
        self.requests = 0
        lookup = {a: [ha1(a, "alice", REALM, "p")] for a in ALGORITHMS}
        verifier = DigestVerifier(REALM, ALGORITHMS, bytes(32), lambda user: lookup)
        self.gate = FarmCredentials(
            "farm", FARM_ID, verifier, {LEADER_HINT: "1"}, lambda: (header, place(header))
        )

    async def handle(self, stream: trio.abc.Stream, peer: Peer) -> None:
        established = await respond(stream, {"farm": self.gate}, HandshakeLimiter(), peer)
        if established is None:
            return
        self.logins += 1
        decoder = RequestDecoder(Limits())
        decoder.receive_data(established.leftover)
        try:
            while data := await stream.receive_some():
                decoder.receive_data(data)
                while (request := decoder.next_message()) is not None:
                    self.requests += 1
                    if (answer := await self.take(request)) is not None:
                        await stream.send_all(encode_response(answer))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def take(self, request: Request) -> Response | None:
        return self.answer()

    def answer(self) -> Response | None:
        kind, leads = MessageType.APPEND_ENTRIES_RESPONSE, self.leader == self.id
        return Response(kind, self.id, self.leader, 1, 8 if leads else 0, leads, None if leads else MEMBERS)


class Slow(Server):
    """Its logins take longer than a client waits for one before it asks another server."""

    async def handle(self, stream: trio.abc.Stream, peer: Peer) -> None:
        await trio.sleep(TIMEOUT_S / 5)
        await super().handle(stream, peer)


class Mute(Server):
    """It lets clients in, and answers nothing."""

    def answer(self) -> Response | None:
        return None


class Silent(Server):
    """Connections to it are accepted, and hear nothing."""

    async def handle(self, stream: trio.abc.Stream, peer: Peer) -> None:
        await trio.sleep_forever()


@asynccontextmanager
async def farm(*servers: Server, known: int = 1, **more: Any) -> AsyncIterator[FarmClient]:
    """A client that is told of the first ``known`` servers; ``more`` changes what it asks for."""
    asked = {"farm": "farm", "user": "alice", "password": "p", "farm_id": FARM_ID} | more
    network = MemoryNetwork()
    async with trio.open_nursery() as nursery:
        for server in servers:
            where = Endpoint("memory", f"host{server.id}", 1)
            await nursery.start(network.transport(where.host).serve, where, server.handle)
        async with open_farm_client(
            {server.id: place(server.id) for server in servers[:known]},
            transport=lambda scheme: network.transport("client"),
            timeout_s=TIMEOUT_S,
            **asked,
        ) as client:
            yield client
        nursery.cancel_scope.cancel()


async def test_client_goes_to_the_leader_that_the_101_names_without_asking(autojump_clock: Clock) -> None:
    follower, leader = Server(1, 2, 2), Server(2, 2, 2)
    async with farm(follower, leader) as client:
        assert await client.post([b"x"]) == (7, 1)
        assert await client.post([b"y"]) == (7, 1)
    assert (follower.requests, leader.requests) == (0, 2)
    assert (follower.logins, leader.logins) == (1, 1)


async def test_stale_hint_costs_one_attempt(autojump_clock: Clock) -> None:
    """The server that is asked leads by now, and its 101 names one that is gone."""
    leader = Server(1, 2, 1)
    async with farm(leader) as client:
        assert await client.post([b"x"]) == (7, 1)
        assert trio.current_time() < TIMEOUT_S / 2
    assert (leader.logins, leader.requests) == (2, 1)


async def test_servers_that_name_each_other_are_asked_and_not_visited_in_turn(autojump_clock: Clock) -> None:
    one, other = Server(1, 2, 3), Server(2, 1, 3)
    async with farm(one, other, known=2) as client:
        with pytest.raises(NoQuorum):
            await client.post([b"x"])
        assert trio.current_time() == pytest.approx(TIMEOUT_S, abs=0.1)
    assert (one.logins, other.logins) == (2, 1)
    assert one.requests > 1
    assert other.requests == 1


@pytest.mark.parametrize("posts", [2, 20])
async def test_posts_of_many_tasks_take_the_same_way(posts: int, autojump_clock: Clock) -> None:
    follower, leader = Server(1, 2, 2), Server(2, 2, 2)
    async with farm(follower, leader) as client, trio.open_nursery() as nursery:
        for _ in range(posts):
            nursery.start_soon(client.post, [b"x"])
    assert (follower.requests, leader.requests) == (0, posts)
    assert (follower.logins, leader.logins) == (1, 1)


@pytest.mark.parametrize(
    ("more", "words"),
    [({"farm": "other"}, "no farm at"), ({"farm_id": bytes([1] * 16)}, "it belongs to another farm")],
    ids=["name", "id"],
)
async def test_wrong_farm_is_no_quorum_at_the_deadline_and_says_why(more, words, autojump_clock):
    async with farm(Server(1, 1, 1), **more) as client:
        with pytest.raises(NoQuorum, match=words):
            await client.post([b"x"])
    assert trio.current_time() == pytest.approx(TIMEOUT_S, abs=0.1)


async def test_silent_server_is_passed_over(autojump_clock: Clock) -> None:
    leader = Server(2, 2, 2)
    async with farm(Silent(1, 1, 1), leader, known=2) as client:
        assert await client.post([b"x"]) == (7, 1)
        assert trio.current_time() < TIMEOUT_S / 10
        assert await client.post([b"y"]) == (7, 1)
    assert leader.requests == 2


async def test_silent_leader_that_a_follower_names_is_left_until_it_names_another(autojump_clock):
    follower, leader = Server(1, 2, 2), Server(3, 3, 3)
    async with farm(follower, Silent(2, 2, 2), leader) as client, trio.open_nursery() as nursery:

        async def elect() -> None:
            await trio.sleep(TIMEOUT_S / 3)
            follower.leader = 3

        nursery.start_soon(elect)
        assert await client.post([b"x"]) == (7, 1)
        assert trio.current_time() == pytest.approx(TIMEOUT_S / 3, abs=TIMEOUT_S / 10)
    assert leader.requests == 1


async def test_post_to_servers_that_are_all_silent_is_certainly_not_appended(autojump_clock: Clock) -> None:
    async with farm(Silent(1, 1, 1), Silent(2, 2, 2), known=2) as client:
        with pytest.raises(NoQuorum, match="not sent in time"):
            await client.post([b"x"])
    assert trio.current_time() == pytest.approx(TIMEOUT_S)


async def test_slow_connection_is_used_once_it_is_up(autojump_clock: Clock) -> None:
    """Another server is asked meanwhile, but the login goes on."""
    slow = Slow(1, 1, 1)
    async with farm(slow) as client:
        assert await client.post([b"x"]) == (7, 1)
    assert (slow.logins, slow.requests) == (1, 1)


async def test_post_that_was_sent_is_unknown_and_sent_to_no_other(autojump_clock: Clock) -> None:
    mute, leader = Mute(1, 1, 1), Server(2, 2, 2)
    async with farm(mute, leader, known=2) as client:
        with pytest.raises(OutcomeUnknown, match="member 1 is silent, and member 2 leads"):
            await client.post([b"x"])
        assert leader.requests == 1, "who leads"
        assert await client.post([b"y"]) == (7, 1)
