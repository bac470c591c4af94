"""The client on the Raft wire: it follows the leader, and says what became of a post."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from garlicfarm.client.farm import FarmClient
from garlicfarm.errors import (
    AuthError,
    EntryRefused,
    GarlicFarmError,
    NoQuorum,
    OutcomeUnknown,
    ProposalDropped,
    RemoteProtocolError,
    UnreachableError,
)
from garlicfarm.net.tcp import WrappedStream
from garlicfarm.refusals import Refusal
from garlicfarm.transport import Endpoint
from garlicfarm.wire.messages import NO_LEADER, MessageType, Request, Response
from tests.node.support.cluster import STEADY, TRANSPORT, cluster, password_of
from tests.running import wait_until

Clock = trio.testing.MockClock
TIMEOUT_S = 3.0
HANG = "hang"


def said(source: int, destination: int, next_index: int = 0, *, accepted: bool = False) -> Response:
    return Response(MessageType.APPEND_ENTRIES_RESPONSE, source, destination, 5, next_index, accepted)


class FakeRpcClient:
    """One server; what it says next: an answer, an error, or nothing for ever. The last is repeated."""

    def __init__(self, *script: Response | GarlicFarmError | str) -> None:
        self.script = list(script)
        self.asked: list[Request] = []

    async def call(self, request: Request, deadline: float) -> Response:
        self.asked.append(request)
        await trio.lowlevel.checkpoint()
        now = self.script[0] if len(self.script) == 1 else self.script.pop(0)
        if isinstance(now, Exception):
            raise now
        if isinstance(now, Response):
            return now
        await trio.sleep_until(deadline)
        raise trio.TooSlowError


def client(rpc_clients: Mapping[int, FakeRpcClient]) -> FarmClient:
    return FarmClient(rpc_clients, TIMEOUT_S)  # type: ignore[arg-type]


class _Dialled(WrappedStream):
    def __init__(self, stream: trio.abc.Stream) -> None:
        super().__init__(stream)
        self.is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True
        await super().aclose()


class NotedTransport:
    """The transport of nodes, which notes where to its streams lead."""

    handshake = True

    def __init__(self) -> None:
        self.streams: list[tuple[str, _Dialled]] = []

    def __call__(self, scheme: str) -> Any:
        return self

    async def open_stream(self, endpoint: Endpoint) -> trio.abc.Stream:
        stream = _Dialled(await TRANSPORT.open_stream(endpoint))
        self.streams.append((str(endpoint), stream))
        return stream

    def dialled(self) -> list[str]:
        """The endpoints of all streams in order. The first login at each takes two, one for the challenge."""
        return [endpoint for endpoint, _ in self.streams]

    def connected(self) -> list[str]:
        """The endpoints of the streams that are open."""
        return [endpoint for endpoint, stream in self.streams if not stream.is_closed]


async def test_redirect_is_followed_and_remembered(autojump_clock: Clock) -> None:
    rpc_clients = {
        1: FakeRpcClient(said(1, 3)),
        2: FakeRpcClient(HANG),
        3: FakeRpcClient(said(3, 3, 8, accepted=True)),
    }
    under_test = client(rpc_clients)
    assert await under_test.post([b"a", b"b"]) == (7, 5)
    assert await under_test.post([b"c"]) == (7, 5)
    assert [len(rpc_client.asked) for rpc_client in rpc_clients.values()] == [1, 0, 2]
    request = rpc_clients[3].asked[0]
    assert (request.source, request.destination) == (0, 0)
    assert [entry.value for entry in request.entries] == [b"a", b"b"]


@pytest.mark.parametrize(
    "first",
    [
        said(1, NO_LEADER),
        said(1, 99),  # a leader whose endpoint we do not know
        UnreachableError("x"),
        RemoteProtocolError("x"),
    ],
    ids=repr,
)
async def test_server_of_no_help_is_left_for_the_next(first, autojump_clock):
    rpc_clients = {1: FakeRpcClient(first), 2: FakeRpcClient(said(2, 2, 2, accepted=True))}
    assert await client(rpc_clients).post([b"x"]) == (1, 5)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (said(1, 1, Refusal.ROLE_MISSING.number), AuthError("this user may not post")),
        (said(1, 1, Refusal.ENTRY_REFUSED.number), EntryRefused("", "refused by the application")),
        (said(1, 1, Refusal.ENTRY_TOO_LARGE.number), EntryRefused("", "too large")),
        (said(1, 1, 3), ProposalDropped(Refusal.TOO_MUCH_UNCOMMITTED)),
        (said(1, 1, 27), ProposalDropped(Refusal.REFUSED)),
        (AuthError("x"), AuthError("x")),
        (OutcomeUnknown("x"), OutcomeUnknown("x")),
    ],
    ids=repr,
)
async def test_refusal_is_raised_and_not_repeated(answer, error, autojump_clock):
    rpc_clients = {1: FakeRpcClient(answer), 2: FakeRpcClient(said(2, 2, 2, accepted=True))}
    with pytest.raises(type(error)) as caught:
        await client(rpc_clients).post([b"x"])
    assert str(caught.value) == str(error)
    assert [len(rpc_client.asked) for rpc_client in rpc_clients.values()] == [1, 0]


async def test_hand_over_is_waited_for(autojump_clock: Clock) -> None:
    handing_over = said(1, 1, Refusal.LEADERSHIP_IN_TRANSFER.number)
    rpc_clients = {1: FakeRpcClient(handing_over), 2: FakeRpcClient(said(2, 2, 2, accepted=True))}
    under_test = client(rpc_clients)
    with pytest.raises(NoQuorum, match="leadership-in-transfer"):
        await under_test.post([b"x"])
    assert trio.current_time() == pytest.approx(TIMEOUT_S, abs=0.1)
    assert not rpc_clients[2].asked
    rpc_clients[1].script = [said(1, 2)]  # it has handed over
    assert await under_test.post([b"x"]) == (1, 5)


async def test_no_leader_anywhere_is_no_quorum_at_the_deadline_and_says_why(autojump_clock: Clock) -> None:
    rpc_clients = {
        1: FakeRpcClient(said(1, NO_LEADER)),
        2: FakeRpcClient(UnreachableError("connection refused")),
    }
    with pytest.raises(NoQuorum, match="connection refused"):
        await client(rpc_clients).post([b"x"])
    assert trio.current_time() == pytest.approx(TIMEOUT_S, abs=0.1)
    assert len(rpc_clients[1].asked) > 10


async def test_hanging_server_costs_one_post_and_the_next_asks_another(autojump_clock: Clock) -> None:
    rpc_clients = {1: FakeRpcClient(HANG), 2: FakeRpcClient(said(2, 2, 2, accepted=True))}
    under_test = client(rpc_clients)
    with pytest.raises(OutcomeUnknown):
        await under_test.post([b"x"])
    assert trio.current_time() == TIMEOUT_S
    assert await under_test.post([b"x"]) == (1, 5)


async def test_entries_over_a_message_are_refused_before_they_cost_the_connection(autojump_clock):
    rpc_clients = {1: FakeRpcClient(said(1, 1, 2, accepted=True))}
    under_test = client(rpc_clients)
    await under_test.post([bytes((1 << 20) - 45 - 2 * 13 - 1), b"x"])
    with pytest.raises(EntryRefused, match="together larger than 1048576 bytes: post fewer at a time"):
        await under_test.post([bytes((1 << 20) - 45 - 2 * 13), b"x"])
    await under_test.post([bytes(1 << 20)])  # one entry always fits
    assert len(rpc_clients[1].asked) == 2


async def test_oversized_entry_is_refused_before_it_costs_the_connection(autojump_clock: Clock) -> None:
    rpc_clients = {1: FakeRpcClient(said(1, 1, 2, accepted=True))}
    with pytest.raises(EntryRefused):
        await client(rpc_clients).post([b"x", bytes((1 << 20) + 1)])
    assert not rpc_clients[1].asked


async def test_many_tasks_share_one_connection_and_follow_a_new_leader(tmp_path: Path) -> None:
    transport = NotedTransport()
    async with (
        cluster(tmp_path, 3, raft=STEADY) as nodes,
        nodes.client(timeout_s=60, transport=transport) as client,
    ):
        await nodes.leader()
        indexes: list[int] = []

        async def post(number: int) -> None:
            indexes.append((await client.post([b"%d" % number]))[0])

        async def post_all(count: int) -> None:
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    nursery.start_soon(post, number)

        await post_all(200)
        assert sorted(indexes) == list(range(2, 202))
        assert len(set(transport.connected())) == len(transport.connected())
        first = await nodes.leader()
        leader = nodes.running[first]
        leader.scope.cancel()
        await leader.ended.wait()
        # Or a post is sent in vain.
        await wait_until(lambda: nodes.endpoints[first] not in transport.connected())
        await post_all(20)  # the first ones wait for the election
        assert len(set(indexes)) == 220


async def test_wrong_password_and_reader_are_told_apart_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        await nodes.leader()
        for more, words in [
            ({"password": "guess"}, "password"),
            ({"user": "bob", "password": password_of("bob")}, "may not post"),
        ]:
            async with nodes.client(timeout_s=60, **more) as client:
                with pytest.raises(AuthError, match=words):
                    await client.post([b"x"])
