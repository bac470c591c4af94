"""The feed of a farm on nodes in memory: stores and consumers get its log, whichever member leads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from garlicfarm.errors import FellBehind
from garlicfarm.feed.lines import decode_lines
from garlicfarm.raft import Entry
from garlicfarm.testing.feed_suite import MemorySource
from garlicfarm.wire import ValueType
from garlicfarm_plugin_dafka.codec import (
    Command,
    DirectHead,
    DirectRecord,
    DirectTail,
    Fetch,
    GetHeads,
    Head,
    Record,
)
from garlicfarm_plugin_dafka.consumer import DafkaConsumer, run_consumer
from garlicfarm_plugin_dafka.consumer_core import ConsumerCore, ReceivedRecord
from garlicfarm_plugin_dafka.farm_core import partition_of
from garlicfarm_plugin_dafka.farm_feed import FarmProducer
from garlicfarm_plugin_dafka.store import run_store
from tests.dafka.memory_network import MemoryNetwork, MemoryNode

pytestmark = pytest.mark.usefixtures("no_threads")
LENGTH = 10
P = [partition_of(MemorySource.farm_id, epoch) for epoch in range(20)]


class FarmInMemory:
    """Members that hold the same log, each as far as it was told."""

    def __init__(self, network: MemoryNetwork, size: int) -> None:
        self.network = network
        self.log: list[tuple[bytes, ValueType]] = []
        self.sources = [MemorySource() for _ in range(size)]
        self.nodes = [network.node(f"member {number}") for number in range(size)]
        self.scopes = [trio.CancelScope() for _ in range(size)]
        for source in self.sources:
            source.epoch_length = LENGTH
            source.is_leader = False

    def commit(self, *values: bytes, value_type: ValueType = ValueType.APPLICATION) -> None:
        self.log += [(value, value_type) for value in values]
        for member in range(len(self.sources)):
            self.tell(member)

    def tell(self, member: int) -> None:
        """A member that runs applies what is committed."""
        source = self.sources[member]
        if not self.scopes[member].cancel_called:
            for value, value_type in self.log[source.commit_index :]:
                source.commit(value, value_type=value_type)

    def lead(self, member: int) -> None:
        for number, source in enumerate(self.sources):
            source.lead(number == member)

    def kill(self, member: int) -> None:
        self.scopes[member].cancel()
        self.network.remove(self.nodes[member])
        self.nodes[member].prefixes.clear()

    async def run(self, member: int) -> None:
        with self.scopes[member]:
            await FarmProducer(self.nodes[member], "farm", self.sources[member]).run(trio.TASK_STATUS_IGNORED)

    @property
    def values(self) -> list[bytes]:
        return [value for value, value_type in self.log if value_type is ValueType.APPLICATION]

    def said(self, member: int, *kinds: type[Command]) -> list[Command]:
        return [command for command in self.nodes[member].sent if isinstance(command, kinds)]


@asynccontextmanager
async def farm_of(size: int, network: MemoryNetwork) -> AsyncIterator[FarmInMemory]:
    farm = FarmInMemory(network, size)
    async with trio.open_nursery() as nursery:
        for member in range(size):
            nursery.start_soon(farm.run, member)
        await trio.testing.wait_all_tasks_blocked()
        yield farm
        nursery.cancel_scope.cancel()


def entries_of(records: Sequence[ReceivedRecord]) -> list[Entry]:
    """What is in these records, which are in order."""
    return [entry for record in records for entry in decode_lines(record.content)]


def sorted_by_epoch(records: Sequence[ReceivedRecord]) -> list[ReceivedRecord]:
    return sorted(records, key=lambda record: (P.index(record.partition), record.sequence))


def asker_of(network: MemoryNetwork) -> MemoryNode:
    """A node that takes answers."""
    node = network.node("a")
    for prefix in (b"Da", b"Ea", b"Ta"):
        node.subscribe(prefix)
    return node


async def read(consumer: DafkaConsumer, count: int) -> list[ReceivedRecord]:
    with trio.fail_after(240):
        return [await anext(consumer) for _ in range(count)]


def check_order(records: Sequence[ReceivedRecord]) -> None:
    """Those of a partition come in order, each once."""
    for partition in {record.partition for record in records}:
        sequences = [record.sequence for record in records if record.partition == partition]
        assert sequences == [*range(sequences[0], sequences[0] + len(sequences))]


async def test_records_of_all_epochs_are_the_whole_log(network, autojump_clock):
    async with farm_of(1, network) as farm:
        farm.lead(0)
        farm.commit(b"members 1", value_type=ValueType.CONFIGURATION)
        farm.commit(*[b"%d" % number for number in range(12)])
        async with run_consumer(network.node("c"), ConsumerCore("c", ["farm"])) as consumer:
            records = await read(consumer, 12)
            farm.commit(*[b"%d" % number for number in range(12, 20)])
            farm.commit(b"members 2", b"members 3", value_type=ValueType.CONFIGURATION)
            farm.commit(*[b"%d" % number for number in range(20, 33)])
            records += await read(consumer, 21)
        check_order(records)
        in_order = sorted_by_epoch(records)
        assert [(P.index(each.partition), each.sequence) for each in in_order] == [
            divmod(n, 10) for n in range(33)
        ]
        entries = entries_of(in_order)
        assert [(entry.value, entry.value_type) for entry in entries] == farm.log
        assert [entry.index for entry in entries] == [*range(1, 37)]
        assert {entry.term for entry in entries} == {1}
        assert farm.sources[0].read_index == 36


async def test_new_leader_goes_on_where_the_old_one_stopped(network, autojump_clock, tmp_path):
    async with (
        farm_of(3, network) as farm,
        run_store(network.node("s"), tmp_path) as store,
        run_consumer(network.node("c"), ConsumerCore("c", ["farm"])) as consumer,
    ):
        farm.lead(0)
        records = []
        for round_ in range(3):  # each leader dies before it has sent what it has committed last
            leader = round_
            farm.commit(*[b"%d sent" % round_] * 7)
            records += await read(consumer, 7)
            network.loses = lambda sender, recipient, command: isinstance(command, Record)
            farm.commit(*[b"%d not sent" % round_] * 4)
            await trio.testing.wait_all_tasks_blocked()
            network.loses = lambda sender, recipient, command: False
            if round_ < 2:
                farm.kill(leader)
                farm.lead(leader + 1)
            records += await read(consumer, 4)
        check_order(records)
        assert [entry.value for entry in entries_of(sorted_by_epoch(records))] == farm.values
        await trio.sleep(10)
        saved = {each.partition: (each.tail, each.next) for each in store.partitions()}
        assert saved == {P[0]: (0, 10), P[1]: (0, 10), P[2]: (0, 10), P[3]: (0, 3)}


async def test_follower_sends_nothing_but_answers(network: MemoryNetwork, autojump_clock: MockClock) -> None:
    async with farm_of(2, network) as farm:
        farm.lead(0)
        farm.commit(*[b"%d" % number for number in range(15)])
        await trio.sleep(5)
        assert not farm.nodes[1].sent
        assert not farm.sources[1].asked_bytes, "a follower reads only what it is asked for"
        assert farm.sources[1].read_index == 15
        asker = asker_of(network)
        farm.nodes[0].sent.clear()
        asker.send(GetHeads("farm", "a"))
        asker.send(Fetch(P[0], "farm", "a", 3, 100_000))
        asker.send(Fetch(P[1], "farm", "a", 0, 2))
        await trio.testing.wait_all_tasks_blocked()
        for member in (0, 1):
            heads = farm.said(member, DirectHead)
            assert heads == [DirectHead("a", "farm", P[0], 9), DirectHead("a", "farm", P[1], 4)]
            direct: Any = farm.said(member, DirectRecord)
            found = [(each.partition, each.sequence) for each in direct]
            assert found == [(P[0], sequence) for sequence in range(3, 10)] + [(P[1], 0), (P[1], 1)]
            records = [ReceivedRecord("farm", each.partition, each.sequence, each.content) for each in direct]
            assert [entry.value for entry in entries_of(records)] == [b"%d" % n for n in range(3, 12)]
        assert not farm.said(1, Record, Head)


async def test_member_that_holds_a_part_leaves_the_rest_to_others(network, autojump_clock, tmp_path):
    async with farm_of(2, network) as farm:
        farm.commit(*[b"%d" % number for number in range(25)])
        farm.sources[1].compact(12)  # it got a snapshot
        farm.lead(1)
        async with (
            run_store(network.node("s"), tmp_path) as store,
            run_consumer(network.node("c"), ConsumerCore("c", ["farm"])) as consumer,
        ):
            records = await read(consumer, 25)
            assert [entry.value for entry in entries_of(sorted_by_epoch(records))] == farm.values
            assert any(isinstance(command, DirectTail) for command in farm.nodes[1].sent)
            await trio.sleep(5)
            assert {(each.tail, each.next) for each in store.partitions()} == {(0, 10), (0, 5)}


async def test_record_whose_configurations_are_deleted_is_not_made_up(network, autojump_clock):
    """Its content would not be that of the other members."""
    async with farm_of(1, network) as farm:
        farm.commit(b"0", b"1")
        farm.commit(b"members", value_type=ValueType.CONFIGURATION)
        farm.commit(b"2", b"3")
        farm.sources[0].compact(3)
        farm.lead(0)
        await trio.sleep(1)
        asker = asker_of(network)
        asker.send(Fetch(P[0], "farm", "a", 2, 1))
        asker.send(Fetch(P[0], "farm", "a", 3, 1))
        await trio.sleep(1)
        assert farm.said(0, DirectTail) == [DirectTail("a", "farm", P[0], 3)]
        (record,) = farm.said(0, DirectRecord)
        assert (record.sequence, decode_lines(record.content)[-1].value) == (3, b"3")  # type: ignore[union-attr]
    network = MemoryNetwork()
    async with farm_of(1, network) as farm:
        farm.commit(b"0", b"1")
        farm.commit(b"members", value_type=ValueType.CONFIGURATION)
        farm.sources[0].compact(3)
        farm.lead(0)
        await trio.sleep(1)
        farm.commit(b"2", b"3")
        await trio.sleep(2)
        (record,) = farm.said(0, Record)
        assert (record.sequence, decode_lines(record.content)[-1].value) == (3, b"3")  # type: ignore[union-attr]
        assert farm.said(0, Head)[-1:] == [Head("farm", P[0], 3)]  # others may have it


async def test_leader_that_is_one_no_longer_stops_and_one_again_goes_on(network, autojump_clock):
    async with (
        farm_of(2, network) as farm,
        run_consumer(network.node("c"), ConsumerCore("c", ["farm"])) as consumer,
    ):
        records = []
        for turn in range(6):
            farm.lead(turn % 2)
            await trio.testing.wait_all_tasks_blocked()
            farm.commit(*[b"%d" % turn] * 5)
            records += await read(consumer, 5)
        assert [entry.value for entry in entries_of(sorted_by_epoch(records))] == farm.values
        check_order(records)
        sent = [farm.said(member, Record) for member in (0, 1)]
        assert [len(each) for each in sent] == [15, 15]


async def test_log_that_is_shortened_under_the_leader_costs_no_record(network, autojump_clock):
    async with (
        farm_of(1, network) as farm,
        run_consumer(network.node("c"), ConsumerCore("c", ["farm"])) as consumer,
    ):
        farm.lead(0)
        records = []
        for number in range(5):
            farm.commit(*[b"%d" % number] * 8)
            records += await read(consumer, 8)
            farm.sources[0].compact(8 * number + 4)
        assert [entry.value for entry in entries_of(sorted_by_epoch(records))] == farm.values
        heads: Any = farm.said(0, Head)
        await trio.sleep(3)
        heads = farm.said(0, Head)[len(heads) :]
        assert {(head.partition, head.sequence) for head in heads} == {(each, 9) for each in P[:4]}


async def test_records_that_are_deleted_while_they_are_asked_for_end_nothing(network, autojump_clock):
    async with farm_of(1, network) as farm:
        farm.commit(*[b"%d" % number for number in range(35)])
        asker = asker_of(network)
        await trio.sleep(1.1)  # it looks at its log every quarter of a second
        assert len(farm.nodes[0].prefixes) == 1 + 4 + 1  # heads, epochs, the next one
        asker.send(Fetch(P[0], "farm", "a", 0, 10))
        farm.sources[0].compact(25)
        await trio.testing.wait_all_tasks_blocked()
        assert not farm.nodes[0].sent
        await trio.sleep(1)
        asker.send(Fetch(P[2], "farm", "a", 5, 2))
        asker.send(Fetch(P[2], "farm", "a", 6, 2))
        await trio.sleep(1)
        assert farm.said(0, DirectTail) == [DirectTail("a", "farm", P[2], 6)]
        assert [each.sequence for each in farm.said(0, DirectRecord)] == [6, 7]  # type: ignore[union-attr]


@pytest.mark.parametrize("offset", [4, 10])  # within an epoch, and at its end
async def test_reader_that_was_away_for_too_long_is_told_of_each_epoch_that_is_gone(
    network, autojump_clock, offset
):
    async with farm_of(3, network) as farm:
        farm.lead(0)
        farm.commit(*[b"%d" % number for number in range(45)])
        for source in farm.sources:
            source.compact(29)  # of a record, the entry before it has to be there, too
        await trio.sleep(1)
        # It asks when it connects to a node, and hears the heads of the leader.
        core = ConsumerCore("c", ["farm"], offsets={("farm", P[0]): offset})
        async with run_consumer(network.node("c"), core) as consumer:
            told = []
            records: list[ReceivedRecord] = []
            with trio.move_on_after(60):
                while True:
                    try:
                        records += await consumer.receive()
                    except FellBehind as error:
                        told.append(str(error))
        check_order(records)
        assert {each.partition: each.sequence for each in records} == {P[3]: 9, P[4]: 4}
        gone = [(P[0], offset), (P[1], 0), (P[2], 0)][offset == 10 :]
        texts = [f"partition {partition}: records {first} to 9 are deleted" for partition, first in gone]
        assert [sum(text in each for each in told) for text in texts] == [1] * len(gone)
        assert len(told) == len(gone)


async def test_reader_that_may_skip_and_a_new_one_go_on_behind_epochs_that_are_gone(
    network, autojump_clock, caplog
):
    async with farm_of(1, network) as farm:
        farm.lead(0)
        farm.commit(*[b"%d" % number for number in range(45)])
        farm.sources[0].compact(29)
        await trio.sleep(1)
        known = {("farm", P[0]): 4}
        for core in (ConsumerCore("c", ["farm"], offsets=known, skip_lost=True), ConsumerCore("d", ["farm"])):
            caplog.clear()
            async with run_consumer(network.node(core.address), core) as consumer:
                records = await read(consumer, 15)
                await trio.sleep(20)
                assert {
                    P.index(partition): first for (_, partition), first in consumer.offsets().items()
                } == {0: 10, 1: 10, 2: 10, 3: 10, 4: 5}
            assert [entry.value for entry in entries_of(sorted_by_epoch(records))] == farm.values[30:]
            assert "records-lost" in caplog.text


async def test_memory_of_a_fetch_of_everything_is_bounded(network, autojump_clock):
    async with farm_of(1, network) as farm:
        source = farm.sources[0]
        source.epoch_length = 100_000
        farm.commit(*[bytes(1 << 19)] * 40)
        asker = network.node("a", limit=1 << 20)
        asker.subscribe(b"Da")
        await trio.sleep(1)
        asker.send(Fetch(partition_of(source.farm_id, 0), "farm", "a", 0, 2**32 - 1))
        await trio.sleep(1)
        assert max(source.asked_bytes) <= 1 << 20
