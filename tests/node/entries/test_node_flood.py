"""Entries that cost much to judge and to apply: a node goes on with everything else meanwhile.

The cost is virtual: the application moves the autojump clock, which all nodes share as they would one
processor.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from garlicfarm.application import Origin
from garlicfarm.errors import EntryRefused
from garlicfarm.log_application import LogApplication
from garlicfarm.logs import EventLogger
from garlicfarm.node.applier import Applier
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.replica import Replica
from garlicfarm.node.session import Principal, Session
from garlicfarm.raft import Entry
from garlicfarm.refusals import Refusal
from garlicfarm.storage import Snapshot
from garlicfarm.testing.memory_cluster import Cluster, cluster
from garlicfarm.testing.memory_storage import MemoryStorage
from garlicfarm.wire import ResponseDecoder, encode_request
from garlicfarm.wire.messages import MessageType, Response, ValueType
from tests.node.entries.test_core_waits import GENESIS, SECTION
from tests.node.support.cluster import client_request

Clock = trio.testing.MockClock
COST_S = 0.008  # of an entry, above what one turn takes
ROUND_S = 3 * 2 * COST_S  # a turn of each of three nodes, which judges one entry and applies one
LARGE = 35  # entries, far more than one turn judges
ALICE = Principal("user alice", 0, may_post=True)


class Costly(LogApplication):
    """Each entry, judged or applied, takes `COST_S`; ``counts`` says how many were."""

    clock: Clock

    def __init__(self) -> None:
        super().__init__()
        self.counts = {"judged": 0, "applied": 0}

    def check(self, entry: bytes, origin: Origin) -> None:
        self.clock.jump(COST_S)
        self.counts["judged"] += 1
        if entry == b"bad":
            raise EntryRefused("", "bad")

    def apply(self, index: int, term: int, entry: bytes) -> None:
        self.clock.jump(COST_S)
        self.counts["applied"] += 1
        super().apply(index, term, entry)


@asynccontextmanager
async def three(clock: Clock) -> AsyncIterator[Cluster]:
    class Costing(Costly):
        pass

    Costing.clock = clock
    async with cluster(3, application=Costing) as nodes:
        yield nodes


def application(farm: Replica) -> Costly:
    assert isinstance(farm.application, Costly)
    return farm.application


class Client:
    """A user's connection to a node, in memory."""

    def __init__(self, farm: Replica, nursery: trio.Nursery, answer_timeout_s: float = 3600.0) -> None:
        self._stream, theirs = trio.testing.memory_stream_pair()
        self._decoder = ResponseDecoder()
        self.leave = self._stream.aclose
        nursery.start_soon(Session(farm.requests, theirs, ALICE, b"", answer_timeout_s).run)

    async def send(self, *values: bytes) -> None:
        await self._stream.send_all(encode_request(client_request(*values)))

    async def receive(self) -> Response:
        response = await self._decoder_message()
        assert isinstance(response, Response)
        return response

    async def _decoder_message(self) -> Any:
        with trio.fail_after(3600):
            while (message := self._decoder.next_message()) is None:
                self._decoder.receive_data(await self._stream.receive_some(65536))
        return message


def per_turn(farm: Replica) -> dict[str, int]:
    """The most entries that the core's task judges, and applies, before it tells the core the time again."""
    counts, tick = application(farm).counts, farm.raw.tick
    most, before = dict.fromkeys(counts, 0), dict(counts)

    def counted(now_ms: int) -> None:
        for name, count in counts.items():
            most[name] = max(most[name], count - before[name])
        before.update(counts)
        tick(now_ms)

    farm.raw.tick = counted  # type: ignore[method-assign]
    return most


def heartbeats(farm: Replica) -> Callable[[], float]:
    """How long a member was sent nothing at most, in s."""
    sent: dict[int, list[float]] = {}
    send = farm.peers.send

    def timed(member: int, seq: int, request: Any) -> None:
        sent.setdefault(member, []).append(trio.current_time())
        send(member, seq, request)

    farm.peers.send = timed  # type: ignore[method-assign]
    return lambda: max(b - a for times in sent.values() for a, b in pairwise(times))


async def test_flood_of_the_most_costly_entries_leaves_the_heartbeats_their_time(
    autojump_clock: Clock,
) -> None:
    async with three(autojump_clock) as nodes, trio.open_nursery() as nursery:
        leader = await nodes.leader()
        farm = nodes.replica(leader)
        term, heartbeat_s = farm.raw.term, farm.section.raft.heartbeat_s
        turns = {node: per_turn(nodes.replica(node)) for node in nodes.running}
        gap_s = heartbeats(farm)
        clients = [Client(farm, nursery) for _ in range(3)]
        for client in clients[:2]:
            for _ in range(2):
                await client.send(*[b"%d" % number for number in range(LARGE)])
        await clients[2].send(b"meanwhile")
        quick = (await clients[2].receive()).next_index - 1
        assert application(farm).counts["judged"] < LARGE  # what is small does not wait for what is large
        answers = [await client.receive() for _ in range(2) for client in clients[:2]]
        indexes = [answer.next_index - 1 for answer in answers]
        assert sorted(indexes) == indexes == [quick + LARGE * n for n in range(1, 5)]
        await nodes.applied(max(indexes))
        assert {node: most["applied"] for node, most in turns.items()} == dict.fromkeys(nodes.running, 1)
        assert turns[leader]["judged"] == 1
        assert gap_s() <= heartbeat_s + ROUND_S
        assert (farm.is_leader, farm.raw.term) == (True, term)
        assert len({nodes.application(node).snapshot() for node in nodes.running}) == 1
        nursery.cancel_scope.cancel()


async def test_of_large_posts_that_take_too_long_together_some_are_committed(autojump_clock: Clock) -> None:
    """And the others are refused, while their connections go on: none is judged in vain."""
    async with three(autojump_clock) as nodes, trio.open_nursery() as nursery:
        farm = nodes.replica(await nodes.leader())
        answer_s, last = farm.core.answer_timeout_s, farm.raw.status().last_index
        clients = [Client(farm, nursery, answer_s) for _ in range(int(2 * answer_s / (LARGE * COST_S)))]
        for client in clients:
            await client.send(*[b"%d" % number for number in range(LARGE)])
        answers = [await client.receive() for client in clients]
        committed = [answer for answer in answers if answer.accepted]
        refused = [answer.next_index for answer in answers if not answer.accepted]
        assert answers[0].accepted
        assert set(refused) == {Refusal.TOO_MUCH_UNCOMMITTED.number}
        assert farm.raw.status().last_index == last + LARGE * len(committed)
        judged = application(farm).counts["judged"] - LARGE * len(committed)
        assert judged <= len(refused)  # of one that is refused, what was judged while it was thought small
        for client in clients:
            await client.send()
            assert (await client.receive()).accepted
        nursery.cancel_scope.cancel()


async def test_flood_of_refused_entries_is_spread_over_turns_too(autojump_clock: Clock) -> None:
    async with three(autojump_clock) as nodes, trio.open_nursery() as nursery:
        farm = nodes.replica(await nodes.leader())
        most = per_turn(farm)
        client = Client(farm, nursery)
        for _ in range(200):
            await client.send(b"bad")
        assert {(await client.receive()).next_index for _ in range(200)} == {Refusal.ENTRY_REFUSED.number}
        assert most["judged"] == 1
        nursery.cancel_scope.cancel()


async def test_requests_are_judged_and_answered_in_their_order_and_refused_as_a_whole(
    autojump_clock: Clock,
) -> None:
    async with three(autojump_clock) as nodes, trio.open_nursery() as nursery:
        farm = nodes.replica(await nodes.leader())
        client = Client(farm, nursery)
        await client.send(b"1", b"2", b"3")
        await client.send(b"4", b"bad", b"5")
        await client.send()
        await client.send(b"6")
        answers = [await client.receive() for _ in range(4)]
        assert [answer.accepted for answer in answers] == [True, False, True, True]
        assert answers[1].next_index == Refusal.ENTRY_REFUSED.number
        first, last = answers[0].next_index - 1, answers[3].next_index - 1
        assert last == first + 1
        assert application(farm).counts["judged"] == 6  # "5" is behind one that is refused
        nursery.cancel_scope.cancel()


async def test_request_that_is_being_judged_when_leadership_ends_is_not_appended(
    autojump_clock: Clock,
) -> None:
    async with three(autojump_clock) as nodes, trio.open_nursery() as nursery:
        leader = await nodes.leader()
        farm = nodes.replica(leader)
        client, last = Client(farm, nursery), farm.raw.status().last_index
        await client.send(*[b"%d" % number for number in range(1000)])
        while application(farm).counts["judged"] < 10:
            await trio.lowlevel.checkpoint()
        nodes.partition({leader}, nodes.running - {leader})
        heard = await client.receive()
        assert not heard.accepted
        assert heard.type is MessageType.APPEND_ENTRIES_RESPONSE
        assert farm.raw.status().last_index == last
        assert application(farm).counts["judged"] < 1000
        nodes.heal()
        nursery.cancel_scope.cancel()


async def test_posts_of_a_connection_that_is_over_are_not_kept(autojump_clock: Clock) -> None:
    """Or a user who connects anew again and again has the node hold any number of them."""
    async with three(autojump_clock) as nodes, trio.open_nursery() as nursery:
        farm = nodes.replica(await nodes.leader())
        for _ in range(20):
            gone = Client(farm, nursery)
            await gone.send(*[b"%d" % number for number in range(1000)])
            await gone.leave()
        client = Client(farm, nursery)
        await client.send(b"later")
        assert (await client.receive()).accepted
        assert not farm.requests.has_unchecked
        assert not farm.requests.waiting
        assert application(farm).counts["judged"] < 1000
        nursery.cancel_scope.cancel()


async def test_snapshot_from_the_leader_takes_the_place_of_what_was_still_to_be_applied(
    autojump_clock: Clock,
) -> None:
    Costly.clock = autojump_clock
    core = CoreInbox(SECTION, 1, MemoryStorage(GENESIS))
    log = tuple(Entry(index, 1, ValueType.APPLICATION, b"%d" % index) for index in (1, 2, 3))
    ahead, behind = Costly(), Costly()
    for entry in log:
        ahead.apply(entry.index, entry.term, entry.value)
    meta = core.applied.after(log)
    snapshot = Snapshot(
        bytes(16), "log", 2, meta.index, meta.term, GENESIS, (), meta.application_entries, ahead.snapshot()
    )
    membership: Any = SimpleNamespace(on_restored=lambda configuration, all_members: None)
    store: Any = SimpleNamespace(read_state=lambda meta: snapshot, origin=lambda: 1)
    applier = Applier(core, membership, behind, store, EventLogger(logging.getLogger("garlicfarm")))
    applier.add(log)
    assert core.applied_index == 1
    assert applier.has_entries
    await applier.restore(meta)
    assert not applier.has_entries
    assert core.applied == meta
    assert behind.snapshot() == ahead.snapshot()


async def test_state_is_that_of_the_applied_index_whenever_others_look(autojump_clock: Clock) -> None:
    """Snapshots, reads and the feed go by it."""
    async with three(autojump_clock) as nodes, trio.open_nursery() as nursery:
        farm = nodes.replica(await nodes.leader())
        client, seen = Client(farm, nursery), set[int]()

        async def look() -> None:
            while True:
                assert application(farm).index in (farm.applied_index, 0) or farm.applied_index < 3
                seen.add(farm.applied_index)
                await trio.sleep(0.0001)

        nursery.start_soon(look)
        await client.send(*[b"%d" % number for number in range(100)])
        index = (await client.receive()).next_index - 1
        await nodes.applied(index)
        assert len(seen) > 50
        nursery.cancel_scope.cancel()
