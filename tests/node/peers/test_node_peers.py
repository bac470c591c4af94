"""Connections to the members of the Configuration in force, and to nobody else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from garlicfarm.errors import NotListening, UnreachableError
from garlicfarm.net.handshake import Established
from garlicfarm.net.link import Backoff
from garlicfarm.node.peers import Peers, PeerTimings
from garlicfarm.wire import encode_request, encode_response
from garlicfarm.wire.messages import ClusterServer, Configuration, MessageType, Request, Response
from tests.running import background

Clock = trio.testing.MockClock


def configuration(*servers: str) -> Configuration:
    """``2@a``: member 2 at the endpoint a."""
    parts = [server.split("@") for server in servers]
    return Configuration(0, 0, tuple(ClusterServer(int(member), endpoint) for member, endpoint in parts))


class Network:
    """Members by endpoint; those in ``up`` accept, and say nothing."""

    def __init__(self, *up: str) -> None:
        self.up = set(up)
        self.dialled: list[tuple[int, str]] = []
        self.changes: list[tuple[int, str]] = []
        self.unreachable: list[tuple[int, int]] = []
        self.answers: list[tuple[int, int]] = []
        self.gone: list[int] = []
        self.refuses = False  # an endpoint that is not up: its machine says so
        self.streams: dict[str, trio.abc.Stream] = {}
        self.extensions: frozenset[str] = frozenset()
        self.peers = Peers(
            1,
            self.dial,
            PeerTimings(rpc_timeout_s=2, call_timeout_s=4, heartbeat_s=1, election_timeout_min_s=3),
            Backoff(lambda: 0.5, longest_s=1),
            events=self,
        )

    def on_response(self, seq: int, response: Response) -> None:
        self.answers.append((seq, response.next_index))

    def on_received(self) -> None:
        pass

    def on_unreachable(self, peer: int, seq: int) -> None:
        self.unreachable.append((peer, seq))

    def on_connected(self, peer: int, extensions: frozenset[str]) -> None:
        pass

    def on_connection_change(self, peer: int, error: Exception | None) -> None:
        self.changes.append((peer, "up" if error is None else str(error)))

    def on_process_gone(self, peer: int) -> None:
        self.gone.append(peer)

    def on_slow_peer(self, peer: int, p99_s: float, limit_s: float) -> None:
        pass

    async def dial(self, member: int, endpoint: str) -> Established:
        self.dialled.append((member, endpoint))
        await trio.lowlevel.checkpoint()
        if endpoint not in self.up:
            raise NotListening("refused") if self.refuses else UnreachableError("refused")
        ours, self.streams[endpoint] = trio.testing.memory_stream_pair()
        return Established(ours, "farm", "1", self.extensions, None, None, b"")

    async def follow(self, *servers: str) -> None:
        self.peers.follow(configuration(*servers).servers)
        await trio.testing.wait_all_tasks_blocked()


def vote(member: int) -> Request:
    return Request(MessageType.REQUEST_VOTE_REQUEST, 1, member, 1)


def read(member: int) -> Request:
    return Request(MessageType.READ_INDEX_REQUEST, 1, member)


async def ended(stream: trio.abc.Stream) -> bool:
    with trio.move_on_after(1):
        while await stream.receive_some():
            pass
        return True
    return False


async def test_member_that_stays_away_is_told_of_once_and_again_when_it_was_back(
    autojump_clock: Clock,
) -> None:
    network = Network()
    async with background(network.peers.run):
        await network.follow("1@x", "2@a")
        await trio.sleep(600)
        assert network.changes == [(2, "refused")]
        assert len(network.dialled) > 100
        assert network.peers.error(2) == "refused"
        network.up.add("a")
        await trio.sleep(2)
        assert network.peers.is_connected(2)
        assert network.peers.error(2) is None
        network.up.clear()
        await network.streams["a"].aclose()
        await trio.sleep(600)
    assert network.changes == [
        (2, "refused"),
        (2, "up"),
        (2, "the peer closed the connection"),
        (2, "refused"),
    ]


async def test_changed_endpoint_ends_the_old_connection_and_its_requests_have_failed(
    autojump_clock: Clock,
) -> None:
    network = Network("a", "b", "c")
    async with background(network.peers.run):
        await network.follow("1@x", "2@a", "3@c")
        network.peers.send(2, 7, vote(2))
        network.peers.send(3, 8, vote(3))
        network.peers.flush()
        await network.follow("1@x", "2@b", "3@c")
        assert network.unreachable == [(2, 7)]
        assert await ended(network.streams["a"])
        assert not await ended(network.streams["c"])
        assert sorted(network.dialled) == [(2, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("servers", [["1@x"], ["1@x", "3@c"]])
async def test_removed_member_is_let_go_and_what_is_sent_to_it_fails(
    servers: Sequence[str], autojump_clock: Clock
) -> None:
    network = Network("a", "c")
    async with background(network.peers.run):
        await network.follow("1@x", "2@a")
        network.peers.send(2, 8, vote(2))
        network.peers.flush()
        await network.follow(*servers)
        assert await network.streams["a"].receive_some() == encode_request(vote(2)), "its last message"
        await trio.sleep(2)
        assert await ended(network.streams["a"])
        await trio.testing.wait_all_tasks_blocked()
        network.unreachable.clear()
        network.peers.send(2, 9, vote(2))
        network.peers.flush()
        assert network.unreachable == [(2, 9)]
        assert await network.peers.call(2, vote(2)) is None


async def test_removed_member_gets_what_the_core_held_until_its_disk_was_done(autojump_clock: Clock) -> None:
    network = Network("a")
    async with background(network.peers.run):
        await network.follow("1@x", "2@a")
        await network.follow("1@x")
        network.peers.send(2, 8, vote(2))
        network.peers.flush()
        assert await network.streams["a"].receive_some() == encode_request(vote(2))
        assert network.unreachable == []


async def test_read_that_waits_holds_up_no_vote_since_it_has_another_connection(
    autojump_clock: Clock,
) -> None:
    network = Network("a")
    network.extensions = frozenset({"read-index"})
    async with background(network.peers.run):
        await network.follow("1@x", "2@a")
        raft = network.streams["a"]
        network.peers.send(2, 7, read(2))
        network.peers.send(2, 8, vote(2))
        network.peers.flush()
        await trio.testing.wait_all_tasks_blocked()
        reads = network.streams["a"]
        assert reads is not raft
        assert await reads.receive_some() == encode_request(read(2))
        assert await raft.receive_some() == encode_request(vote(2))
        await raft.send_all(encode_response(Response(MessageType.REQUEST_VOTE_RESPONSE, 2, 1, 1, 0, True)))
        await trio.testing.wait_all_tasks_blocked()
        assert network.answers == [(8, 0)]
        await reads.send_all(encode_response(Response(MessageType.READ_INDEX_RESPONSE, 2, 2, 1, 5, True)))
        await trio.testing.wait_all_tasks_blocked()
        assert network.answers == [(8, 0), (7, 5)]


@pytest.mark.parametrize("why", ["not in force", "no answer", "cut", "removed", "gone"])
async def test_read_that_gets_no_answer_has_failed_once(why: str, autojump_clock: Clock) -> None:
    network = Network("a")
    network.extensions = frozenset() if why == "not in force" else frozenset({"read-index"})
    async with background(network.peers.run):
        await network.follow("1@x", *(["2@a"] if why != "gone" else []))
        network.peers.send(2, 7, read(2))
        network.peers.flush()
        await trio.testing.wait_all_tasks_blocked()
        if why == "cut":
            await network.streams["a"].aclose()
        elif why == "removed":
            await network.follow("1@x")
        await trio.sleep(10)
        assert network.unreachable == [(2, 7)]
        assert not network.answers
    assert network.unreachable == [(2, 7)]


async def test_sign_of_life_ends_the_wait_before_the_next_attempt(autojump_clock: Clock) -> None:
    network = Network()
    async with background(network.peers.run):
        await network.follow("2@a")
        await trio.sleep(100.5)
        network.up.add("a")
        begun = trio.current_time()
        network.peers.on_contact(2)
        await trio.testing.wait_all_tasks_blocked()
        assert network.peers.is_connected(2)
        assert trio.current_time() == begun
        assert network.peers.contact_age_s(2) == 0


async def test_handshakes_are_tried_with_who_is_named_and_tell_of_now(autojump_clock: Clock) -> None:
    network = Network("a", "b", "c")
    async with background(network.peers.run):
        await network.follow("1@x", "2@a", "3@b", "4@c")
        network.up = {"b"}
        network.dialled.clear()
        await network.peers.try_handshakes([2, 3, 5])
        assert sorted(network.dialled) == [(2, "a"), (3, "b")]
        tests = [network.peers.handshake(member) for member in (2, 3, 4)]
        assert [test is not None and test[1] for test in tests] == [False, True, True]
        assert [network.peers.is_connected(member) for member in (2, 3, 4)] == [True, True, True]


@pytest.fixture
async def lost(nursery: trio.Nursery) -> Network:
    """It was connected to member 2, whose session here has not ended; then its own connection broke."""
    network = Network("a")
    nursery.start_soon(network.peers.run)
    await network.follow("1@x", "2@a", "3@b")
    network.peers.on_session_begun(2)
    network.refuses = True
    network.up.clear()
    await network.streams["a"].aclose()
    return network


async def test_process_is_gone_when_its_connections_ended_and_its_machine_refuses(
    lost: Network, autojump_clock: Clock
) -> None:
    lost.peers.on_session_ended(2)
    assert not lost.gone, "nothing was tried since"
    await trio.sleep(1)
    assert set(lost.gone) == {2}


async def test_process_whose_session_goes_on_is_not_gone_until_that_ends_too(
    lost: Network, autojump_clock: Clock
) -> None:
    await trio.sleep(10)
    assert not lost.gone
    lost.peers.on_session_ended(2)
    assert lost.gone == [2]


async def test_process_is_gone_only_when_its_last_session_has_ended(
    lost: Network, autojump_clock: Clock
) -> None:
    lost.peers.on_session_begun(3)
    await trio.sleep(1)
    lost.peers.on_session_ended(3)
    assert not lost.gone
    lost.peers.on_session_ended(2)
    assert lost.gone == [2]


async def test_machine_that_falls_silent_gives_no_sign(lost: Network, autojump_clock: Clock) -> None:
    lost.refuses = False
    lost.peers.on_session_ended(2)
    await trio.sleep(600)
    assert not lost.gone


async def test_member_that_never_let_us_in_is_not_gone_when_it_refuses(
    lost: Network, autojump_clock: Clock
) -> None:
    lost.peers.on_session_begun(3)
    lost.peers.on_session_ended(3)
    await trio.sleep(600)
    assert 3 not in lost.gone


async def test_member_that_logs_in_while_it_refuses_us_runs_though_its_session_ends(
    lost: Network, autojump_clock: Clock
) -> None:
    """A firewall refuses one direction, or the process that is back does not listen yet."""
    await trio.sleep(1)
    lost.peers.on_session_begun(2)
    lost.peers.on_session_ended(2)
    lost.peers.on_session_ended(2)
    await trio.sleep(600)
    assert not lost.gone


async def test_member_that_is_back_counts_anew(lost: Network, autojump_clock: Clock) -> None:
    lost.up.add("a")
    lost.peers.on_session_ended(2)
    await trio.sleep(2)
    assert lost.peers.is_connected(2)
    lost.gone.clear()
    lost.peers.on_session_begun(2)
    lost.peers.on_session_ended(2)
    assert not lost.gone
    lost.up.clear()
    await lost.streams["a"].aclose()
    await trio.sleep(1)
    assert set(lost.gone) == {2}


async def test_connection_for_reads_that_is_up_is_a_sign_of_life(
    lost: Network, autojump_clock: Clock
) -> None:
    lost.up.add("a")
    await trio.sleep(2)
    raft = lost.streams["a"]
    lost.peers.send(2, 7, read(2))
    await trio.testing.wait_all_tasks_blocked()
    reads = lost.streams["a"]
    assert reads is not raft
    lost.up.clear()
    lost.peers.on_session_ended(2)
    await raft.aclose()
    await trio.sleep(1)
    assert not lost.gone
    await reads.aclose()
    await trio.sleep(2)
    assert set(lost.gone) == {2}
