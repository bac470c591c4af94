"""A node among peers without a handshake (the transport ``jraft``): a tester plays them over sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from garlicfarm.config import load
from garlicfarm.errors import ConfigError, NotLeader, ProposalDropped, TransportError
from garlicfarm.http.digest import ChallengeCache
from garlicfarm.log_application import LogApplication
from garlicfarm.net.handshake import DialCredentials, dial
from garlicfarm.node import serve
from garlicfarm.plugins import make_transport
from garlicfarm.raft import Change, ConfChange
from garlicfarm.refusals import Refusal
from garlicfarm.transport import Endpoint
from garlicfarm.wire import (
    decode_cluster_server,
    decode_configuration,
    encode_configuration,
    encode_snapshot_sync_request,
)
from garlicfarm.wire.messages import (
    NO_LEADER,
    ClusterServer,
    Configuration,
    LogEntry,
    MessageType,
    Request,
    SnapshotSyncRequest,
    ValueType,
)
from tests.node.support.cluster import Wire, client_request
from tests.node.support.jraft_peer import HASTY, Heard, Play, played, request
from tests.running import wait_until

VOTE, APPEND = MessageType.REQUEST_VOTE_REQUEST, MessageType.APPEND_ENTRIES_REQUEST


def write(term: int, value: bytes = b"x") -> LogEntry:
    return LogEntry(term, ValueType.APPLICATION, value)


@pytest.mark.parametrize(
    ("line", "replaced", "problem"),
    [
        ('url = "jraft://127.0.0.1:', 'url = "jraft://0.0.0.0:', "may listen on loopback only"),
        ('url = "jraft://127.0.0.1:', 'url = "jraft://192.0.2.1:', "may listen on loopback only"),
        ('url = "jraft://127.0.0.1:', 'url = "jraft://a.example:', "may listen on loopback only"),
    ],
)
async def test_listener_without_a_handshake_beyond_loopback_is_refused_at_start(
    tmp_path: Path, line: str, replaced: str, problem: str
) -> None:
    async with played(tmp_path, start=False) as plays:
        file = plays.nodes.directories[1] / "garlicfarm.toml"
        text = file.read_text()
        head, rest = text.split("[[listener]]")
        assert line in rest
        file.write_text(head + "[[listener]]" + rest.replace(line, replaced, 1))
        with pytest.raises(ConfigError, match=problem):
            await serve(load(file, {}))


async def test_listener_without_a_handshake_for_two_farms_is_refused_at_start(tmp_path: Path) -> None:
    async with played(tmp_path, start=False) as plays, played(tmp_path / "b", start=False, name="b") as more:
        ours, theirs = plays.nodes.directories[1], more.nodes.directories[1]
        (theirs / "data/farms/b").rename(ours / "data/farms/b")
        (theirs / "data/secrets/b.secret").rename(ours / "data/secrets/b.secret")
        file = ours / "garlicfarm.toml"
        farm = (theirs / "garlicfarm.toml").read_text().partition("[[farm]]")[2]
        text = f"{file.read_text()}\n[[farm]]{farm}"
        file.write_text(text)
        with pytest.raises(ConfigError, match="name the one farm of this listener"):
            await serve(load(file, {}))
        file.write_text(text.replace("[[listener]]", '[[listener]]\nfarms = ["b"]', 1))
        await plays.nodes.start(1)
        assert (await (await plays.dial()).ask(request(VOTE, 1))) is not None
        assert plays.nodes.replica(name="b").raw.term == 1


@pytest.mark.parametrize("host", ["192.0.2.1", "a.example", "0.0.0.0"])
async def test_peer_without_a_handshake_beyond_loopback_is_not_dialled(tmp_path: Path, host: str) -> None:
    transport = make_transport("jraft", {}, tmp_path)
    credentials = DialCredentials("farm", "", "", ChallengeCache())
    with pytest.raises(TransportError, match="is not dialled: jraft has no handshake"):
        await dial(transport, Endpoint("jraft", host, 9001), credentials)


async def test_tester_leads_the_node_and_reads_its_log(tmp_path: Path) -> None:
    """Votes, entries, a heartbeat that commits, a client: every answer to the byte."""
    async with played(tmp_path) as plays:
        wire = await plays.dial()
        granted = await wire.ask(request(VOTE, 1))
        assert (granted.source, granted.destination, granted.term, granted.accepted) == (1, 2, 1, True)
        appended = await wire.ask(request(APPEND, 1, write(1, b"a"), write(1, b"b")))
        assert (appended.destination, appended.next_index, appended.accepted) == (2, 3, True)
        fields = {"last_log_term": 1, "last_log_index": 2, "commit_index": 2}
        noted = await wire.ask(request(APPEND, 1, **fields))
        assert (noted.next_index, noted.accepted) == (3, True)
        with trio.fail_after(240):
            await plays.nodes.replica().wait_applied(1)
        client = await plays.dial()
        redirected = await client.ask(client_request(b"x"))
        assert (redirected.accepted, redirected.destination, redirected.next_index) == (False, 2, 0)


async def test_several_sources_on_one_connection_are_who_they_say(tmp_path: Path) -> None:
    async with played(tmp_path) as plays:
        wire = await plays.dial()
        await wire.send(request(VOTE, 1, source=3), request(VOTE, 1, source=2), client_request())
        for destination, accepted in ((3, True), (2, False), (NO_LEADER, False)):
            answer = await wire.receive()
            assert (answer.destination, answer.accepted) == (destination, accepted)


async def test_node_leads_members_that_a_tester_plays(tmp_path: Path) -> None:
    """It stands for election, appends its Configuration (D7), and answers a client after the commit."""
    async with played(tmp_path, raft=HASTY) as plays, trio.open_nursery() as nursery:
        indexes: dict[int, list[int]] = {2: [], 3: []}

        async def play(member: int) -> None:
            while True:
                heard = await plays.accept()
                nursery.start_soon(follow, heard)

        async def follow(heard: Heard) -> None:
            while (asked := await heard.receive()) is not None:
                assert (asked.source, asked.destination) == (1, heard.to)
                last = asked.last_log_index + len(asked.entries)
                if asked.type is APPEND:
                    indexes[heard.to].append(last)
                    if asked.last_log_index == 0 and asked.entries:
                        first = decode_configuration(asked.entries[0].value)
                        assert (first.log_index, first.last_log_index) == (1, 0)
                await heard.answer(asked, last + 1 if asked.type is APPEND else 0)

        nursery.start_soon(play, 2)
        assert await plays.nodes.leader() == 1
        client: Wire = await plays.dial()
        answer = await client.ask(client_request(b"x"))
        assert (answer.source, answer.destination, answer.next_index, answer.accepted) == (1, 1, 3, True)
        assert plays.nodes.replica().raw.status().commit >= 2
        nursery.cancel_scope.cancel()
    assert 2 in indexes[2]
    assert 2 in indexes[3]


async def test_snapshot_of_a_jraft_leader_is_the_applications_state_also_after_a_restart(
    tmp_path: Path,
) -> None:
    restored: list[bytes] = []

    class Lines(LogApplication):
        def restore(self, data: bytes) -> None:
            restored.append(data)

    async with played(tmp_path, applications={"log": lambda farm: Lines()}) as plays:
        servers = plays.nodes.replica().configuration.servers
        pieces = [(0, b"one\n", False), (4, b"two\n", True)]
        wire = await plays.dial()
        for offset, data, done in pieces:
            piece = SnapshotSyncRequest(9, 2, Configuration(8, 1, servers), offset, data, done)
            value = LogEntry(3, ValueType.SNAPSHOT_SYNC_REQUEST, encode_snapshot_sync_request(piece))
            answer = await wire.ask(request(MessageType.INSTALL_SNAPSHOT_REQUEST, 3, value))
            assert (answer.accepted, answer.next_index) == (True, offset + len(data))
        with trio.fail_after(240):
            await plays.nodes.replica().wait_applied(8)
        assert restored == [b"one\ntwo\n"] * 2, "a first time on trial, by a new application"
        after = await wire.ask(
            request(APPEND, 3, write(3), last_log_term=2, last_log_index=9, commit_index=10)
        )
        assert (after.accepted, after.next_index) == (True, 11)
        await plays.nodes.stop()
        await plays.nodes.start(1)
        assert restored == [b"one\ntwo\n"] * 3
        assert plays.nodes.replica().raw.status().first_index == 10


async def test_follower_of_a_jraft_leader_refuses_a_linearizable_read_and_names_the_leader(
    tmp_path: Path,
) -> None:
    async with played(tmp_path) as plays:
        answer = await (await plays.dial()).ask(request(APPEND, 3))
        assert answer.accepted
        with trio.fail_after(240), pytest.raises(NotLeader) as refused:
            await plays.nodes.replica().reads.read_index()
        assert (refused.value.leader_id, refused.value.endpoint) == (2, plays.nodes.endpoints[2])


async def first_asked(plays: Play) -> tuple[Heard, Request]:
    """The first request that the node sends, on whichever of its connections."""
    found: list[tuple[Heard, Request]] = []
    async with trio.open_nursery() as nursery:

        async def listen(heard: Heard) -> None:
            asked = await heard.receive()
            assert asked is not None
            found.append((heard, asked))
            nursery.cancel_scope.cancel()

        while True:
            nursery.start_soon(listen, await plays.accept())
    return found[0]


async def test_member_asks_a_jraft_leader_for_its_own_removal(tmp_path: Path) -> None:
    """As in conversation 4: LeaveCluster comes before the Configuration."""
    async with played(tmp_path) as plays, trio.open_nursery() as nursery:
        running, farm = plays.nodes.running[1], plays.nodes.replica()
        leads = await plays.dial()
        await leads.ask(request(APPEND, 1, write(1)))
        left: list[tuple[int, int]] = []

        async def leave() -> None:
            left.append(await farm.membership.change(ConfChange(Change.REMOVE, ClusterServer(1))))

        nursery.start_soon(leave)
        heard, asked = await first_asked(plays)
        assert (heard.to, asked.type, asked.source) == (2, MessageType.REMOVE_SERVER_REQUEST, 1)
        assert decode_cluster_server(asked.entries[0].value, id_only=True).id == 1
        await heard.answer(asked, 2, destination=2, term=1)
        told = await leads.ask(request(MessageType.LEAVE_CLUSTER_REQUEST, 1, last_log_index=1))
        assert told.accepted
        others = tuple(server for server in farm.configuration.servers if server.id != 1)
        without = LogEntry(1, ValueType.CONFIGURATION, encode_configuration(Configuration(2, 0, others)))
        fields = {"last_log_term": 1, "last_log_index": 1, "commit_index": 2}
        await leads.ask(request(APPEND, 1, without, **fields))
        with trio.fail_after(240):
            await running.ended.wait()
        assert left == [(2, 1)]


async def test_jraft_leader_that_refuses_to_remove_a_member_gives_no_reason(tmp_path: Path) -> None:
    async with played(tmp_path) as plays, trio.open_nursery() as nursery:
        farm = plays.nodes.replica()
        await (await plays.dial()).ask(request(APPEND, 1, write(1)))
        refused: list[str] = []

        async def leave() -> None:
            with pytest.raises(ProposalDropped) as told:
                await farm.membership.change(ConfChange(Change.REMOVE, ClusterServer(1)))
            refused.append(told.value.reason)

        nursery.start_soon(leave)
        heard, asked = await first_asked(plays)
        next_index = Refusal.TOO_FEW_MEMBERS_HEARD.number
        await heard.answer(asked, next_index, accepted=False, destination=2)
        await wait_until(lambda: refused)
        assert refused == [Refusal.REFUSED]


async def test_peer_without_a_handshake_is_asked_one_thing_at_a_time(tmp_path: Path) -> None:
    async with played(tmp_path, (2,), raft=HASTY | {"heartbeat_s": 0.02}) as plays:
        # JRaft serves a connection serially, and a leader of its kind has one request outstanding.
        heard = await plays.accept()
        while (asked := await heard.receive()) is not None and asked.type is not APPEND:
            await heard.answer(asked)
        assert asked is not None
        client = await plays.dial()
        await client.send(*[client_request(b"%d" % number) for number in range(20)])
        await wait_until(lambda: plays.nodes.replica().store.last_index() >= 21)
        with trio.move_on_after(0.2) as waited:
            assert await heard.receive() is None
        assert waited.cancelled_caught, "it did not wait for the answer"
        last = 0
        while last < 21 and asked is not None:
            last = asked.last_log_index + len(asked.entries)
            await heard.answer(asked, last + 1)
            asked = await heard.receive()
        for number in range(20):
            answer = await client.receive()
            assert (answer.accepted, answer.next_index) == (True, number + 3)
