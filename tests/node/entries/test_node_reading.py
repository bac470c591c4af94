"""Linearizable reads of a farm's nodes (ReadIndex): what they see, and when they are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import trio
from trio.testing import MockClock

from garlicfarm.client import AdminClient
from garlicfarm.config import RaftSection
from garlicfarm.config.model import PRESETS
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.errors import GarlicFarmError, NoQuorum, NotLeader, ProposalDropped
from garlicfarm.extensions import EXTENSIONS
from garlicfarm.log_application import LogApplication
from garlicfarm.node.replica import Replica
from garlicfarm.raft import Persist
from garlicfarm.refusals import Refusal
from garlicfarm.testing.memory_cluster import Cluster, cluster
from tests.node.support.cluster import STEADY, password_of
from tests.node.support.cluster import cluster as cluster_of_nodes
from tests.running import led, wait_until

SLOW_DISK = {**PRESETS["clearnet"], "disk_timeout_s": 60.0}  # it hangs for less


class Journal(LogApplication):
    """Its state is what was applied."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []

    def apply(self, index: int, term: int, entry: bytes) -> None:
        self.entries.append(entry)

    def snapshot(self) -> bytes:
        return b" ".join(self.entries)


def plain(farm: Replica) -> bytes:
    return farm.application.snapshot()


async def linearizable(farm: Replica) -> bytes:
    await farm.reads.read_index()
    return plain(farm)


def has_no_reads(farm: Replica) -> bool:
    return not farm.reads.waiting


def has_leader(farms: list[Replica]) -> bool:
    return any(farm.is_leader for farm in farms)


def hold_disk(farm: Replica) -> Callable[[], None]:
    """Let the farm's disk take nothing until what is returned is called."""
    held: list[Persist] = []
    submit, writer = farm.writer.submit, farm.writer

    def hold(persist: Persist) -> None:
        held.append(persist)

    writer.submit = hold  # type: ignore[method-assign]

    def release() -> None:
        writer.submit = submit  # type: ignore[method-assign]
        for persist in held:
            submit(persist)

    return release


class Timeouts(random.SystemRandom):
    """The election timeouts of a node, drawn at random until a test chooses them."""

    def __init__(self) -> None:
        self.choose: Callable[[int, int], int] = super().randint

    def randint(self, a: int, b: int) -> int:
        return self.choose(a, b)


@pytest.fixture
def timeouts(monkeypatch: pytest.MonkeyPatch) -> dict[int, Timeouts]:
    """Those of each node of a cluster, which makes its nodes in the order of their ids."""
    made: dict[int, Timeouts] = {}

    def make() -> Timeouts:
        return made.setdefault(len(made) + 1, Timeouts())

    monkeypatch.setattr("garlicfarm.node.core_inbox.random", SimpleNamespace(SystemRandom=make))
    return made


def have_first_campaign(timeouts: list[Timeouts]) -> None:
    """Fix the election timeouts, from the next heartbeat on. The first follower's ends a little after the
    shortest, when no other one counts the leader as alive any more; theirs are the longest. So the first one
    leads before an old leader that is cut off gives up, which is at the longest timeout. Drawn at random, all
    timeouts may be that long."""
    first, *others = timeouts
    first.choose = lambda low, high: low + (high - low) // 5
    for other in others:
        other.choose = max


async def alone_with(nodes: Cluster, leader: int) -> set[int]:
    """Part the leader from all others; these."""
    others = set(nodes.running - {leader})
    nodes.partition({leader}, others)
    return others


async def test_read_sees_what_was_acknowledged_by_any_node_just_before(autojump_clock: MockClock) -> None:
    async with led(cluster(3, application=Journal)) as (nodes, leader):
        for number in range(30):
            entry = b"%d" % number
            index, _ = await nodes.post(entry, via=1 + number % 3)
            assert await nodes.replica(leader).reads.read_index() >= index
            assert plain(nodes.replica(leader)).split()[-1] == entry


async def test_read_waits_until_what_was_acknowledged_is_applied_at_the_leader(
    autojump_clock: MockClock,
) -> None:
    """Its own disk is the last one that takes the entry: then a plain read there shows the past."""
    async with led(cluster(3, application=Journal)) as (nodes, leader):
        farm = nodes.replica(leader)
        await nodes.post(b"old")
        release = hold_disk(farm)
        index, _ = await nodes.post(b"new", via=next(iter(nodes.running - {leader})))
        assert plain(farm) == b"old"
        async with trio.open_nursery() as nursery:
            seen: list[tuple[int, bytes]] = []

            async def read() -> None:
                seen.append((await farm.reads.read_index(), plain(farm)))

            nursery.start_soon(read)
            await trio.sleep(1)
            assert not seen
            release()
        assert seen == [(index, b"old new")]


async def test_leader_that_is_cut_off_shows_the_past_plainly_and_refuses_a_linearizable_read(
    autojump_clock: MockClock, timeouts: dict[int, Timeouts]
) -> None:
    async with led(cluster(3, application=Journal)) as (nodes, old):
        have_first_campaign([timeouts[node] for node in sorted(nodes.running - {old})])
        await nodes.applied((await nodes.post(b"old"))[0])
        others = await alone_with(nodes, old)
        farm = nodes.replica(old)
        async with trio.open_nursery() as nursery:

            async def refused() -> None:
                with pytest.raises(NotLeader):
                    await farm.reads.read_index()

            nursery.start_soon(refused)  # it is leader yet, and nobody leads beside it
            new = await nodes.leader(others)
            assert farm.is_leader, "it does not know yet"
            nursery.start_soon(refused)  # another one leads, and
            await nodes.post(b"new", via=new)
            nursery.start_soon(refused)  # an entry is acknowledged that it has not heard of
            await trio.sleep(0.1)
            assert plain(farm) == b"old"
            assert await linearizable(nodes.replica(new)) == b"old new"
        assert plain(farm) == b"old"
        nodes.heal()
        await nodes.applied(nodes.replica(new).applied_index)
        assert await linearizable(farm) == b"old new"


async def test_follower_sees_what_was_acknowledged_by_any_node_just_before(
    autojump_clock: MockClock,
) -> None:
    async with cluster(3, application=Journal) as nodes:
        await nodes.leader()
        for number in range(30):
            entry = b"%d" % number
            index, _ = await nodes.post(entry, via=1 + number % 3)
            for node in nodes.running:
                assert await nodes.replica(node).reads.read_index() >= index
                assert plain(nodes.replica(node)).split()[-1] == entry


async def test_follower_waits_until_it_has_applied_what_its_leader_had_committed(
    autojump_clock: MockClock,
) -> None:
    async with cluster(3, application=Journal, raft=msgspec.convert(SLOW_DISK, RaftSection)) as nodes:
        leader = await nodes.leader()
        await nodes.applied((await nodes.post(b"old"))[0])
        farm = nodes.replica(min(nodes.running - {leader}))
        release = hold_disk(farm)
        await nodes.post(b"new")
        assert plain(farm) == b"old"
        with pytest.raises(NotLeader) as refused:
            await farm.reads.read_index()
        assert refused.value.leader_id == leader, "it may answer"
        async with trio.open_nursery() as nursery:
            seen: list[bytes] = []

            async def read() -> None:
                seen.append(await linearizable(farm))

            nursery.start_soon(read)
            await trio.sleep(1)
            assert not seen
            release()
        assert seen == [b"old new"]


async def test_follower_that_is_cut_off_with_the_old_leader_refuses(
    autojump_clock: MockClock, timeouts: dict[int, Timeouts]
) -> None:
    async with led(cluster(5, application=Journal)) as (nodes, old):
        with_it, *others = sorted(nodes.running - {old})
        have_first_campaign([timeouts[node] for node in others])
        await nodes.applied((await nodes.post(b"old"))[0])
        farm = nodes.replica(with_it)
        nodes.partition({old, with_it}, set(others))
        ended = 0
        async with trio.open_nursery() as nursery:

            async def refused() -> None:
                nonlocal ended
                with pytest.raises(NotLeader):
                    await farm.reads.read_index()
                ended += 1

            nursery.start_soon(refused)
            new = await nodes.leader(set(others))
            await nodes.post(b"new", via=new)
            assert nodes.replica(old).is_leader, "it does not know yet"
            assert farm.leader_id == old
            nursery.start_soon(refused)
            await trio.sleep(0.1)
            assert not ended, "the old leader does not answer before it gives up"
            assert plain(farm) == b"old"
        assert trio.current_time() < 60
        assert plain(farm) == b"old"
        nodes.heal()
        await wait_until(lambda: farm.leader_id == new)
        assert await linearizable(farm) == b"old new"


async def test_follower_whose_leader_lacks_the_extension_names_it_and_asks_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = {name: version for name, version in EXTENSIONS.items() if name != "read-index"}
    assert len(without) == len(EXTENSIONS) - 1
    monkeypatch.setattr("garlicfarm.testing.memory_cluster.EXTENSIONS", without)
    async with led(cluster(3, application=Journal)) as (nodes, leader):
        await nodes.post(b"x")
        for node in nodes.running - {leader}:
            begun = trio.current_time()
            with pytest.raises(NotLeader) as told:
                await nodes.replica(node).reads.read_index()
            assert trio.current_time() == begun
            assert (told.value.leader_id, told.value.endpoint) == (leader, f"memory://node{leader}:27150")
        assert await linearizable(nodes.replica(leader)) == b"x"


async def test_follower_whose_leader_is_gone_refuses_at_once(autojump_clock: MockClock) -> None:
    async with led(cluster(3)) as (nodes, leader):
        farm = nodes.replica(min(nodes.running - {leader}))
        await farm.reads.read_index()
        await nodes.kill(leader)
        begun = trio.current_time()
        with pytest.raises(NotLeader):
            await farm.reads.read_index()
        assert trio.current_time() - begun < 0.1


async def test_read_ends_with_the_leadership_of_a_leader_that_no_majority_answers(
    autojump_clock: MockClock,
) -> None:
    async with led(cluster(3)) as (nodes, leader):
        await alone_with(nodes, leader)
        farm, begun = nodes.replica(leader), trio.current_time()
        with pytest.raises(NotLeader, match="no leader is known"):
            await farm.reads.read_index()
        assert not farm.is_leader
        assert trio.current_time() - begun < farm.section.raft.election_timeout_max_s + 0.1
        begun = trio.current_time()
        with pytest.raises(NotLeader, match="no leader is known"):
            await farm.reads.read_index()
        assert trio.current_time() == begun


async def test_read_that_is_confirmed_outlives_the_leadership_until_it_is_applied(
    autojump_clock: MockClock,
) -> None:
    async with led(cluster(3, application=Journal)) as (nodes, leader):
        farm = nodes.replica(leader)
        release = hold_disk(farm)
        await nodes.post(b"x", via=next(iter(nodes.running - {leader})))
        seen: list[bytes] = []

        async def read() -> None:
            seen.append(await linearizable(farm))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_until(lambda: not farm.reads.waiting)
            assert await farm.step_down(0) != leader
            assert not seen
            release()
        assert seen == [b"x"]


async def test_read_that_is_not_applied_in_time_is_refused(autojump_clock: MockClock) -> None:
    raft = msgspec.convert(SLOW_DISK, RaftSection)
    async with led(cluster(3, raft=raft)) as (nodes, leader):
        farm = nodes.replica(leader)
        release = hold_disk(farm)
        await nodes.post(b"x", via=next(iter(nodes.running - {leader})))
        begun = trio.current_time()
        with pytest.raises(NoQuorum, match="is not applied here in time"):
            await farm.reads.read_index()
        assert farm.is_leader
        assert trio.current_time() - begun == pytest.approx(farm.core.answer_timeout_s, abs=0.01)
        release()
        await farm.reads.read_index()


async def test_new_leader_answers_once_it_has_committed_in_its_own_term(autojump_clock: MockClock) -> None:
    """Before that it may not know that what the old one acknowledged is committed."""
    for _ in range(5):
        async with led(cluster(3, application=Journal)) as (nodes, old):
            index, _ = await nodes.post(b"acknowledged")
            await nodes.kill(old)
            left = [nodes.replica(node) for node in nodes.running]
            await wait_until(partial(has_leader, left), every_s=0.001)
            (farm,) = (farm for farm in left if farm.is_leader)
            start = farm.raw.status().last_index
            assert farm.raw.status().commit < start
            assert await farm.reads.read_index() >= start > index
            assert plain(farm) == b"acknowledged"


async def test_member_alone_answers_at_once(autojump_clock: MockClock) -> None:
    async with cluster(1, application=Journal) as nodes:
        farm = nodes.replica(await nodes.leader())
        index, _ = await nodes.post(b"x")
        assert await farm.reads.read_index() == index
        assert plain(farm) == b"x"


async def test_reads_that_wait_are_bounded_those_of_callers_that_left_too(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garlicfarm.node.read_index.MAX_PENDING_READS", 3)
    async with led(cluster(3)) as (nodes, leader):
        await alone_with(nodes, leader)
        for farm in map(nodes.replica, nodes.running):
            for _ in range(3):
                with trio.move_on_after(0.01) as scope:
                    await farm.reads.read_index()
                assert scope.cancelled_caught
            with pytest.raises(ProposalDropped, match=Refusal.TOO_MANY_READS):
                await farm.reads.read_index()
        nodes.heal()
        for farm in map(nodes.replica, nodes.running):
            await wait_until(partial(has_no_reads, farm))
        await nodes.leader()
        for farm in map(nodes.replica, nodes.running):
            await farm.reads.read_index()


async def test_readers_and_writers_through_lost_leaders_see_a_linearizable_log(
    autojump_clock: MockClock,
) -> None:
    """No read misses an entry that was acknowledged before it began, or that an earlier read saw."""
    acknowledged: set[bytes] = set()
    seen: set[bytes] = set()
    reads = 0
    over = False

    async def write(nodes: Cluster, node: int) -> None:
        number = 0
        while not over:
            number += 1
            entry = b"%d-%d" % (node, number)
            try:
                with trio.move_on_after(0.5):  # it does not wait for one that is cut off
                    await nodes.post(entry, via=node)
                    acknowledged.add(entry)
            except (GarlicFarmError, KeyError):
                pass
            await trio.sleep(0.1)

    async def read(nodes: Cluster, node: int) -> None:
        nonlocal reads
        while not over:
            await trio.sleep(0.07)
            must = acknowledged | seen
            try:
                found = set((await linearizable(nodes.replica(node))).split())
            except (NotLeader, NoQuorum, KeyError):
                continue
            assert must <= found
            seen.update(found)
            reads += 1

    async with cluster(3, application=Journal) as nodes, trio.open_nursery() as nursery:
        await nodes.leader()
        for node in sorted(nodes.running):
            nursery.start_soon(write, nodes, node)
            nursery.start_soon(read, nodes, node)
        for turn in range(4):
            await trio.sleep(2)
            leader = await nodes.leader()
            if turn % 2:
                await nodes.kill(leader)
                await trio.sleep(6)
                await nodes.restart(leader)
            else:
                await alone_with(nodes, leader)
                await trio.sleep(7)
                nodes.heal()
        over = True
    assert len(acknowledged) > 100
    assert reads > 100


async def test_client_of_whole_nodes_finds_the_leader_and_none_without_a_majority(tmp_path: Path) -> None:
    async with led(cluster_of_nodes(tmp_path, 3, raft=STEADY)) as (nodes, leader):
        followers = [node_id for node_id in nodes.running if node_id != leader]
        urls = {
            node_id: f"{running.node.admin_url}?pin={pin_of_file(nodes.data(node_id) / 'tls' / 'node.crt')}"
            for node_id, running in nodes.running.items()
        }

        def client(*node_ids: int) -> AdminClient:
            return AdminClient([urls[i] for i in node_ids], user="bob", password=password_of("bob"))

        async with client(*followers, leader) as all_three, client(followers[0]) as one:
            index, _ = await nodes.replica(followers[0]).post(b"x")
            page, commit_index = await all_three.page("farm", 0, linearizable=True)
            assert [entry.value for entry in page.entries] == [b"x"]
            assert commit_index >= index
            assert (await one.state("farm", linearizable=True))[0] >= index
            for node_id in followers:
                nodes.running[node_id].scope.cancel()
            with pytest.raises(NoQuorum):
                await all_three.page("farm", 0, linearizable=True)
            page, commit_index = await all_three.page("farm", 0)
            assert [entry.value for entry in page.entries] == [b"x"]
            assert commit_index >= index
