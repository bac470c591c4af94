"""`cluster`: real nodes in memory, killed and parted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import trio
from trio.testing import MockClock

from garlicfarm.application import Application, Origin
from garlicfarm.config import RaftSection
from garlicfarm.config.model import PRESETS
from garlicfarm.errors import EntryRefused, NoQuorum, OutcomeUnknown
from garlicfarm.log_application import LogApplication
from garlicfarm.testing.memory_cluster import Cluster, cluster
from garlicfarm.testing.memory_network import MemoryNetwork
from garlicfarm.transport import Endpoint
from garlicfarm.wire.messages import Configuration


@pytest.fixture
async def farm() -> AsyncIterator[Cluster]:
    async with cluster(3) as running:
        yield running


class _Counted(trio.abc.SendStream):
    """Notes the size of all that is sent."""

    def __init__(self, stream: trio.abc.SendStream, sent: list[int]) -> None:
        self._stream = stream
        self._sent = sent

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._sent.append(len(data))
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _states(farm: Cluster) -> set[bytes]:
    return {farm.application(node).snapshot() for node in farm.running}


async def test_post_through_any_node_is_applied_by_all_alike(
    farm: Cluster, autojump_clock: MockClock
) -> None:
    index = 0
    for node in (1, 2, 3):
        previous, (index, term) = index, await farm.post(b"entry %d" % node, via=node)
        assert index > previous
        assert term == farm.replica(node).raw.term
    await farm.applied(index)
    (state,) = _states(farm)
    assert state[:8] == index.to_bytes(8, "big")


async def test_killed_leader_is_replaced_and_what_it_acknowledged_survives(
    farm: Cluster, autojump_clock: MockClock
) -> None:
    seen = []
    for turn in range(4):
        index, _ = await farm.post(b"entry %d" % turn)
        seen.append(index)
        leader = await farm.leader()
        await farm.kill(leader)
        assert leader not in farm.running
        assert await farm.leader() != leader
        await farm.applied(index)
        await farm.restart(leader)
        await farm.applied(index)
    index, _ = await farm.post(b"last")
    await farm.applied(index)
    assert len(_states(farm)) == 1
    store = farm.replica(1).store
    values = [entry.value for entry in store.entries(1, store.last_index() + 1, 1 << 20)]
    assert [values[index - 1] for index in seen] == [b"entry %d" % turn for turn in range(4)]


async def test_partition_post_to_the_minoritys_leader_is_not_known_and_then_all_logs_agree(
    farm: Cluster, autojump_clock: MockClock
) -> None:
    await farm.post(b"before")
    old = await farm.leader()
    others = farm.running - {old}
    farm.partition({old}, others)
    with pytest.raises(OutcomeUnknown):
        await farm.post(b"to the old leader", via=old)
    new = await farm.leader(others)
    index, _ = await farm.post(b"to the new leader", via=new)
    await farm.applied(index, others)
    assert farm.replica(old).applied_index < index
    farm.heal()
    index, _ = await farm.post(b"after")
    await farm.applied(index)
    assert len(_states(farm)) == 1


async def test_partition_post_to_a_minority_without_a_leader_is_certainly_not_appended(
    farm: Cluster, autojump_clock: MockClock
) -> None:
    follower = min(farm.running - {await farm.leader()})
    farm.partition({follower}, farm.running - {follower})
    await trio.sleep(30)
    with pytest.raises(NoQuorum):
        await farm.post(b"x", via=follower)
    await farm.leader(farm.running - {follower})


async def test_all_killed_and_restarted_have_the_same_log_and_go_on(
    farm: Cluster, autojump_clock: MockClock
) -> None:
    index, term = await farm.post(b"durable")
    for node in (1, 2, 3):
        await farm.kill(node)
    assert not farm.running
    for node in (1, 2, 3):
        await farm.restart(node)
    later, new_term = await farm.post(b"more")
    assert later > index
    assert new_term > term
    await farm.applied(later)
    assert len(_states(farm)) == 1


async def test_node_that_was_away_catches_up(farm: Cluster, autojump_clock: MockClock) -> None:
    away = min(farm.running - {await farm.leader()})
    await farm.kill(away)
    posts = [await farm.post(b"entry %d" % number) for number in range(100)]
    await farm.restart(away)
    await farm.applied(posts[-1][0])
    assert len(_states(farm)) == 1


async def test_node_that_was_away_catches_up_in_messages_of_the_smallest_size(
    autojump_clock: MockClock,
) -> None:
    values = {**PRESETS["clearnet"], "max_message_bytes": 65536, "max_entry_bytes": 65536 - 58}
    async with cluster(3, raft=msgspec.convert(values, RaftSection)) as farm:
        leader = await farm.leader()
        away = next(node for node in farm.running if node != leader)
        await farm.kill(away)
        for size in (1000,) * 100 + (65536 - 58,):
            index, _ = await farm.post(bytes(size))
        await farm.restart(away)
        await farm.applied(index)
        assert len(_states(farm)) == 1


async def test_node_that_was_away_while_another_was_elected_is_sent_what_it_lacks_alone(
    farm: Cluster, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = 0
    for _ in range(200):
        index, _ = await farm.post(bytes(500))
    old = await farm.leader()
    away = min(farm.running - {old})
    await farm.applied(index)
    await farm.kill(away)
    index, _ = await farm.post(b"the one that is missing")
    await farm.replica(old).hand_over()
    new = await farm.leader()
    assert new != old
    await trio.sleep(10)  # in which the new leader tries to reach it
    sent, connect = list[int](), MemoryNetwork.connect

    async def counted(network: MemoryNetwork, host: str, endpoint: Endpoint) -> trio.abc.Stream:
        stream = await connect(network, host, endpoint)
        if endpoint.host != f"node{away}":
            return stream
        return trio.StapledStream(_Counted(stream, sent), stream)

    monkeypatch.setattr(MemoryNetwork, "connect", counted)
    await farm.restart(away)
    await farm.applied(index)
    assert await farm.leader() == new
    assert 0 < sum(sent) < 10_000  # the whole log is more than ten times that


async def test_many_posts_at_once_all_commit_at_indexes_of_their_own(
    farm: Cluster, autojump_clock: MockClock
) -> None:
    indexes = list[int]()

    async def post(number: int) -> None:
        index, _ = await farm.post(b"entry %d" % number, via=1 + number % 3)
        indexes.append(index)

    await farm.leader()
    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(post, number)
    assert len(set(indexes)) == 60


async def test_application_of_the_user_is_what_runs(autojump_clock: MockClock) -> None:
    class Words(Application):
        """Refuses what is no word, and keeps the others."""

        def __init__(self) -> None:
            self.words: list[bytes] = []
            self.members: list[int] = []

        def check(self, entry: bytes, origin: Origin) -> None:
            if not entry.isalpha():
                raise EntryRefused("", "no word")

        def apply(self, index: int, term: int, entry: bytes) -> None:
            self.words.append(entry)

        def configure(self, index: int, members: Configuration) -> None:
            self.members = [server.id for server in members.servers]

        def snapshot(self) -> bytes:
            return b" ".join(self.words)

        def restore(self, data: bytes) -> None:
            self.words = data.split()

    async with cluster(2, application=Words) as farm:
        await farm.post(b"hello")
        index, _ = await farm.post(b"world", via=2)
        with pytest.raises(EntryRefused):
            await farm.post(b"4711")
        await farm.applied(index)
        for node in (1, 2):
            application = farm.application(node)
            assert isinstance(application, Words)
            assert application.snapshot() == b"hello world"
            assert application.members == [1, 2]


async def test_no_leader_without_a_majority_is_told_in_the_end(
    farm: Cluster, autojump_clock: MockClock
) -> None:
    farm.partition({1}, {2}, {3})
    await trio.sleep(60)
    with pytest.raises(trio.TooSlowError):
        await farm.leader()


async def test_one_way_silence_ends_in_a_leader_that_is_heard(
    farm: Cluster, autojump_clock: MockClock
) -> None:
    leader = await farm.leader()
    other = min(farm.running - {leader})
    farm.network.blocked.add((f"node{leader}", f"node{other}"))
    await trio.sleep(60)
    farm.heal()
    index, _ = await farm.post(b"x")
    await farm.applied(index)


async def test_cluster_of_one_is_its_own_majority(autojump_clock: MockClock) -> None:
    async with cluster(1) as farm:
        index, _ = await farm.post(b"x")
        await farm.restart(1)
        await farm.applied(index)
        application = farm.application(1)
        assert isinstance(application, LogApplication)
        assert application.index == index
