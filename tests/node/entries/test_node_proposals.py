"""Posts through real nodes: where they end up, and what a client learns when they do not."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm.config import RaftSection
from garlicfarm.config.model import PRESETS
from garlicfarm.errors import (
    AuthError,
    EntryRefused,
    GarlicFarmError,
    NoQuorum,
    OutcomeUnknown,
    ProposalDropped,
    RemoteProtocolError,
    TransportError,
    UnreachableError,
)
from garlicfarm.feed.pages import PageReader
from garlicfarm.log_application import LogApplication
from garlicfarm.metrics import NodeMetrics
from garlicfarm.node.admin_view import FarmAdminView
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.disk_watch import DiskWatch
from garlicfarm.node.proposals import Proposals, origin_now
from garlicfarm.node.publisher import PublisherApplication
from garlicfarm.node.space_watch import SpaceWatch
from garlicfarm.raft import Role
from garlicfarm.refusals import Refusal
from garlicfarm.testing.memory_cluster import Cluster as MemoryCluster
from garlicfarm.testing.memory_cluster import cluster as memory_cluster
from garlicfarm.testing.memory_storage import MemoryStorage
from garlicfarm.wire.messages import NO_LEADER, MessageType, Request, Response
from tests.node.entries.test_core_waits import GENESIS, SECTION
from tests.node.support.cluster import STEADY, Cluster, client_request, cluster, member
from tests.running import led

Clock = trio.testing.MockClock


def values(nodes: Cluster | MemoryCluster, node_id: int) -> list[bytes]:
    """The committed application entries of a node's log."""
    farm = nodes.replica(node_id)
    entries = farm.store.entries(1, farm.applied_index + 1, 1 << 30)
    return [entry.value for entry in entries if entry.value_type == 1]


async def test_posts_through_every_member_reach_all_logs_once_and_in_one_order(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, raft=STEADY) as nodes:
        await nodes.leader()
        places: dict[bytes, tuple[int, int]] = {}

        async def post(node_id: int, number: int) -> None:
            entry = b"%d from %d" % (number, node_id)
            places[entry] = await nodes.replica(node_id).post(entry)

        async with trio.open_nursery() as nursery:
            for node_id in nodes.running:
                for number in range(20):
                    nursery.start_soon(post, node_id, number)
        await nodes.applied(max(index for index, _ in places.values()))
        logs = [values(nodes, node_id) for node_id in nodes.running]
        assert logs[0] == logs[1] == logs[2] == sorted(places, key=lambda entry: places[entry])
        assert sorted(index for index, _ in places.values()) == list(range(2, 62))


async def test_batch_through_any_member_is_one_piece_of_the_log_without_what_is_refused(
    tmp_path: Path,
) -> None:
    async with led(cluster(tmp_path, 3, raft=STEADY)) as (nodes, leader):
        for node_id in sorted(nodes.running, key=lambda node_id: node_id != leader):
            view = FarmAdminView(nodes.replica(node_id), cast(PageReader, None), Path("/dev/null"))
            entries = [b"%d of %d" % (number, node_id) for number in range(50)]
            entries[3] = bytes((1 << 20) + 1)
            outcomes = await view.post_batch(entries, "anna")
            assert isinstance(refused := outcomes[3], EntryRefused)
            assert "larger than" in refused.reason
            del entries[3]
            places = [outcome for outcome in outcomes if not isinstance(outcome, EntryRefused)]
            first, term = places[0]
            assert places == [(index, term) for index in range(first, first + 49)]
            farm = nodes.replica(node_id)
            held = farm.store.entries(first, first + 49, 1 << 30)
            assert [entry.value for entry in held] == entries
            assert farm.applied_index >= first + 48


async def test_batch_too_large_for_one_message_is_refused_as_a_whole(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as nodes:
        await nodes.leader()
        proposals = nodes.replica(1).proposals
        with pytest.raises(EntryRefused, match="together larger than 1048576 bytes"):
            await proposals.post_checked([bytes(1 << 19)] * 2)
        largest = bytes(1 << 20)
        await nodes.applied((await proposals.post_checked([largest]))[0])
        assert values(nodes, 1) == [largest]


async def test_post_during_an_election_waits_for_it_and_a_dead_member_catches_up(tmp_path: Path) -> None:
    async with led(cluster(tmp_path, 3)) as (nodes, first):
        dead = nodes.running[first]
        dead.scope.cancel()
        await dead.ended.wait()
        follower = next(iter(nodes.running))
        index, term = await nodes.replica(follower).post(b"meanwhile")
        second = await nodes.leader()
        assert second != first
        assert term == nodes.replica(second).raw.term > 1
        await nodes.applied(index)
        assert values(nodes, second) == [b"meanwhile"]
        await nodes.start(first)
        await nodes.applied(index)
        assert values(nodes, first) == [b"meanwhile"]


async def test_post_without_a_quorum_ends_in_time_and_none_is_acknowledged(autojump_clock: Clock) -> None:
    async with led(memory_cluster(3)) as (nodes, leader):
        survivor, other = nodes.running - {leader}
        await nodes.kill(other)
        # The leader with one of two followers still has its quorum.
        index, _ = await nodes.replica(survivor).post(b"with two")
        await nodes.kill(survivor)
        farm, begun = nodes.replica(leader), trio.current_time()
        with pytest.raises(OutcomeUnknown):
            await farm.post(b"on the leader alone")
        assert trio.current_time() <= begun + farm.core.answer_timeout_s
        await nodes.kill(leader)
        await nodes.restart(survivor)
        farm, begun = nodes.replica(survivor), trio.current_time()
        with pytest.raises(NoQuorum):
            await farm.post(b"on a follower alone")
        assert trio.current_time() <= begun + farm.core.answer_timeout_s
        await nodes.restart(other)  # both know all that was acknowledged
        await nodes.leader()
        assert (await farm.post(b"again with two"))[0] > index
        assert values(nodes, survivor) == [b"with two", b"again with two"]


async def test_post_over_the_bound_of_uncommitted_entries_is_dropped(tmp_path: Path) -> None:
    raft = {"max_uncommitted_bytes": 1024}
    async with led(cluster(tmp_path, 3, raft={**STEADY, **raft})) as (nodes, leader):
        farm, wire = nodes.replica(leader), await nodes.login(node_id=leader)
        for node_id in tuple(nodes.running):
            if node_id != leader:
                nodes.running[node_id].scope.cancel()
        async with trio.open_nursery() as nursery:

            async def first() -> None:
                with pytest.raises(OutcomeUnknown):
                    await farm.post(os.urandom(900))

            nursery.start_soon(first)
            await trio.testing.wait_all_tasks_blocked(0.01)
            with pytest.raises(ProposalDropped, match=Refusal.TOO_MUCH_UNCOMMITTED):
                await farm.post(os.urandom(900))
            answer = await wire.ask(client_request(os.urandom(900)))
            assert (answer.accepted, answer.next_index) == (False, Refusal.TOO_MUCH_UNCOMMITTED.number)


async def test_posts_of_any_way_in_wait_for_the_end_of_a_hand_over(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, raft=STEADY) as nodes, nodes.client() as client:
        leader = await nodes.leader()
        await client.post([b"before"])
        farm, term = nodes.replica(leader), nodes.replica(leader).raw.term
        farm.core.put(farm.raw.transfer_leadership, leader % 3 + 1)
        places: list[tuple[int, int]] = []

        async def post_here() -> None:
            places.append(await farm.post(b"here"))

        async def post_by_wire() -> None:
            places.append(await client.post([b"there"]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(post_here)
            nursery.start_soon(post_by_wire)
        assert all(later > term for _, later in places)


async def test_entry_that_the_application_refuses_is_refused_with_the_field(tmp_path: Path) -> None:
    async with cluster(tmp_path, application="publisher") as nodes:
        await nodes.leader()
        with pytest.raises(EntryRefused) as caught:
            await nodes.replica().post(b'{"cluster":"other","date":1,"id":0}')
        assert caught.value.field == "cluster"


def note(by: str, sequence: int = 1) -> bytes:
    return b'{"cluster":"farm","date":1,"id":0,"sequence":%d,"config":{"by":"%b"}}' % (sequence, by.encode())


async def test_user_posts_notes_in_his_own_name_only(tmp_path: Path) -> None:
    """In another's, with a high sequence, it would have all that one's own skipped."""
    async with cluster(tmp_path, application="publisher") as nodes, nodes.client() as client:
        await nodes.leader()
        await client.post([note("alice")])
        with pytest.raises(EntryRefused):
            await client.post([note("bob")])
        with pytest.raises(EntryRefused) as caught:
            await nodes.node().farms["farm"].post(note("bob"), "alice")
        assert caught.value.field == "config.by"
        with pytest.raises(EntryRefused):
            await nodes.node().farms["farm"].post(b'{"config":' + b'{"x":' * 10_000, "alice")


async def test_sequence_that_would_keep_its_author_out_is_refused_on_every_way_in(tmp_path: Path) -> None:
    async with cluster(tmp_path, application="publisher") as nodes, nodes.client() as client:
        await nodes.leader()
        farm = nodes.replica()
        last = note("alice", 2**63 - 1)
        with pytest.raises(EntryRefused):
            await client.post([note("alice", 7), last])
        with pytest.raises(EntryRefused, match="sequence: years ahead"):
            await nodes.node().farms["farm"].post(last, "alice")
        index, _ = await client.post([note("alice", 8)])
        await nodes.applied(index)
        assert isinstance(farm.application, PublisherApplication)
        assert farm.application.fold.last_sequence("alice") == 8


def said(accepted: bool, destination: int, next_index: int) -> Response:
    return Response(MessageType.APPEND_ENTRIES_RESPONSE, 2, destination, 7, next_index, accepted)


ANSWERS: list[tuple[Response | GarlicFarmError | None, object]] = [
    (said(True, 2, 43), (42, 7)),
    (said(False, 2, Refusal.TOO_MUCH_UNCOMMITTED.number), ProposalDropped),
    (said(False, 2, Refusal.LEADERSHIP_IN_TRANSFER.number), None),
    (said(False, 2, Refusal.ENTRY_REFUSED.number), EntryRefused),
    (said(False, 2, Refusal.ENTRY_TOO_LARGE.number), EntryRefused),
    (said(False, 3, 0), None),
    (said(False, NO_LEADER, 0), None),
    (None, None),
    (UnreachableError("x"), None),
    (TransportError("x"), None),
    (AuthError("x"), None),
    (RemoteProtocolError("x"), None),
    (OutcomeUnknown("x"), OutcomeUnknown),
]


@pytest.mark.parametrize(("answer", "outcome"), ANSWERS, ids=repr)
async def test_forwarded_post_ends_as_the_leaders_answer_says(
    answer: Response | GarlicFarmError | None, outcome: object, autojump_clock: Clock
) -> None:
    """None: certainly not appended, and worth another try."""
    asked: list[Request] = []

    async def call(leader: int, request: Request) -> Response | None:
        asked.append(request)
        if len(asked) > 1:
            return said(True, 2, 44)
        if isinstance(answer, Exception):
            raise answer
        return answer

    store = MemoryStorage(GENESIS)
    core = CoreInbox(SECTION, 1, store)
    core.on_leader(Role.FOLLOWER, 2, 0)
    peers: Any = SimpleNamespace(call=call, has_handshake=lambda member: True)
    disk, metrics = DiskWatch(60.0, lambda: None), NodeMetrics().farm("farm")
    proposals = Proposals(core, peers, disk, store, LogApplication(), metrics, SpaceWatch())
    if isinstance(outcome, type):
        with pytest.raises(outcome):
            await proposals.post(b"x", origin_now(1))
    else:
        assert await proposals.post(b"x", origin_now(1)) == (outcome or (43, 7))
    assert len(asked) == (2 if outcome is None else 1)
    for request in asked:
        assert (request.type, request.source, request.destination) == (MessageType.CLIENT_REQUEST, 1, 2)
        assert [entry.value for entry in request.entries] == [b"x"]


async def test_post_to_a_leader_that_vanishes_is_given_up_soon_after_another_one_leads(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Not when a commit would be given up, which takes as long as an election and then some."""
    async with led(memory_cluster(raft=msgspec.convert(PRESETS["i2p"], RaftSection))) as (nodes, leader):
        follower, other = nodes.running - {leader}
        await nodes.post(b"warm", via=follower)  # which opens the connection for posts
        farm = nodes.replica(follower)
        nodes.partition({leader}, {follower, other})
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            ended: list[float] = []

            async def post() -> None:
                with pytest.raises(OutcomeUnknown, match=f"{leader} did not answer, and leads no more"):
                    await farm.post(b"lost")
                ended.append(trio.current_time())

            nursery.start_soon(post)
            await nodes.leader({follower, other})
            elected = trio.current_time()
        assert elected <= ended[0] <= elected + farm.section.raft.rpc_timeout_s + 1.0
        assert ended[0] - begun < farm.core.answer_timeout_s
        nodes.heal()


async def test_post_that_waits_for_its_commit_delays_neither_votes_nor_appends(tmp_path: Path) -> None:
    """A follower's posts travel on a connection of their own."""
    async with led(cluster(tmp_path, 3, raft=STEADY)) as (nodes, leader):
        follower = next(node_id for node_id in nodes.running if node_id != leader)
        await nodes.replica(follower).post(b"warm")
        logins = nodes.replica(leader).peers
        held = trio.Event()
        posts: list[Any] = []
        farm = nodes.replica(leader)
        step = farm.requests.step

        def hold(requests: Any) -> None:
            """Keep posts from the core of the leader."""
            if any(request.type is MessageType.CLIENT_REQUEST for request, _ in requests):
                posts.append(requests)
                held.set()
            else:
                step(requests)

        farm.requests.step = hold  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            outcome: list[tuple[int, int]] = []

            async def post() -> None:
                outcome.append(await nodes.replica(follower).post(b"held"))

            nursery.start_soon(post)
            with trio.fail_after(240):
                await held.wait()
            term = farm.raw.term
            index, _ = await nodes.replica(leader).post(b"not held")
            await nodes.applied(index)  # appends reach the follower whose post waits
            assert not outcome
            assert nodes.replica(leader).raw.term == term
            for requests in posts:
                step(requests)
        assert outcome == [(index + 1, term)]
        assert logins is nodes.replica(leader).peers


async def test_member_that_cannot_be_dialled_costs_no_more_than_its_vote(tmp_path: Path) -> None:
    """No plugin for its transport: the others elect and commit."""
    members = {1: member(), 2: member(), 3: member("nosuch")}
    async with cluster(tmp_path, 3, members=members, start=False) as nodes:
        await nodes.start(1, 2)
        await nodes.leader()
        await nodes.replica(1).post(b"x")
        error = nodes.replica(1).peers.error(3)
        assert error is not None
        assert "nosuch" in error
        status = nodes.node(1).farms["farm"].status()
        assert [row["role"] == "unreachable" for row in status["members"]] == [False, False, True]
