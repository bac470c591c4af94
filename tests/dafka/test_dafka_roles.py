"""Producers, stores and consumers together: what was produced is stored and read, each record once, in
order."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm_plugin_dafka.codec import Ack, DirectRecord, Fetch, Record
from garlicfarm_plugin_dafka.consumer_core import Lost
from garlicfarm_plugin_dafka.reading import WINDOW
from tests.dafka.lossy_network import Consumer, Network, Producer, Store, content_of


def contents(topic: str, partition: str, end: int, first: int = 0) -> list[bytes]:
    return [content_of(topic, partition, sequence) for sequence in range(first, end)]


@pytest.fixture(name="network")
def lossy_network():
    return Network(Random(1))


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.02, 0.3]),
    reorders=st.booleans(),
    delay_s=st.sampled_from([0.0, 0.05, 1.5]),
)
def test_each_record_is_stored_and_read_once_in_order_whatever_the_network_loses(
    seed, loss, reorders, delay_s
):
    rnd = Random(seed)
    network = Network(rnd)
    network.loss, network.repeats, network.reorders, network.delay_s = loss, loss, reorders, delay_s
    disks: list[dict] = [{}, {}]
    stores = [Store(network, f"store-{number}", disk) for number, disk in enumerate(disks)]
    producers = [Producer(network, topic, f"p-{topic}") for topic in ("hello", "hello2", "hello")[:2]]
    producers.append(Producer(network, "hello", "p-more"))
    live = Consumer(network, "live", ["hello"])
    late = offsets = None
    read = {}
    for step in range(20):
        for producer in producers:
            producer.produce(rnd.choice([0, 1, 1, 40]))
        network.run(rnd.choice([0.0, 0.1, 1.0]))
        if rnd.random() < 0.3:  # kill -9
            number = rnd.randrange(2)
            network.leave(stores[number])
            network.run(rnd.choice([0.0, 3.0]))
            stores[number] = Store(network, f"store-{number}", disks[number])
        if step == 10:
            late = Consumer(network, "late", ["hello", "hello2"])
        if step == 15:  # the consumer is killed; it goes on where it has read to
            read = {key: list(sequences) for key, sequences in live.read.items()}
            network.leave(live)
            offsets = live.core.offsets()
            live = Consumer(network, "live-again", ["hello"], offsets=offsets)
    network.loss = network.repeats = 0.0
    network.reorders, network.delay_s = False, 0.01
    network.run(40.0)

    ends = {(each.core.topic, each.core.partition): each.core.next_sequence for each in producers}
    for disk in disks:
        assert disk == {key: (0, contents(*key, end)) for key, end in ends.items() if end}
    assert all(each.core.acked == each.core.next_sequence for each in producers)
    assert late.read == {key: list(range(end)) for key, end in ends.items() if end}
    for key, sequences in live.read.items():
        read[key] = read.get(key, []) + sequences
    assert read == {key: list(range(end)) for key, end in ends.items() if end and key[0] == "hello"}


def test_a_record_is_sent_once_and_never_fetched_where_nothing_is_lost(network):
    store, producer = Store(network, "store", {}), Producer(network, "t", "p")
    consumer = Consumer(network, "consumer", ["t"])
    network.run(1.0)
    producer.produce(1000)
    network.run(5.0)
    assert consumer.read == {("t", "p"): [*range(1000)]}
    assert store.disk == {("t", "p"): (0, contents("t", "p", 1000))}
    assert (network.sent[Record], network.sent[Fetch], network.sent[DirectRecord]) == (1000, 0, 0)


def test_a_late_consumer_catches_up_without_waiting_for_a_head(network):
    network.delay_s = 0.001
    count = 10 * WINDOW + 17
    disk = {("t", "dead"): (0, contents("t", "dead", count))}
    Store(network, "store", disk)
    consumer = Consumer(network, "consumer", ["t"])
    network.run(0.9)  # less than the time-out of any FETCH
    assert consumer.read == {("t", "dead"): [*range(count)]}
    assert network.sent[DirectRecord] == count
    assert network.sent[Fetch] < 2 * count / WINDOW + 10


def test_a_consumer_that_catches_up_overtakes_a_producer_that_does_not_pause(network):
    network.delay_s = 0.02
    Store(network, "store", {("t", "p"): (0, contents("t", "p", 2000))})
    producer = Producer(network, "t", "p")
    for _ in range(2000):
        producer.core.append(b"", network.now)
    producer.core.receive(Ack("p", "t", 1999))  # the store has them
    consumer = Consumer(network, "consumer", ["t"])
    for _ in range(200):
        producer.produce(10)
        network.run(0.01)
    fetched = network.sent[Fetch]
    for _ in range(100):
        producer.produce(10)
        network.run(0.01)
    assert network.sent[Fetch] == fetched  # all comes live by now
    network.run(0.1)
    assert consumer.read == {("t", "p"): [*range(5000)]}


def test_a_new_store_takes_over_from_another_what_the_producer_no_longer_has(network):
    producer, _ = Producer(network, "t", "p"), Store(network, "old", {})
    producer.produce(100)
    network.run(2.0)
    producer.produce(1)
    network.run(2.0)
    assert producer.core.acked == 101
    new = Store(network, "new", {})
    network.run(3.0)
    assert new.disk == {("t", "p"): (0, contents("t", "p", 101))}


def test_a_new_store_and_a_new_consumer_begin_with_what_is_left(network):
    key = "t", "p"
    store = Store(network, "store", {key: (0, contents(*key, 100))})
    store.delete(key, 60)
    consumer = Consumer(network, "consumer", ["t"])
    network.run(5.0)
    assert consumer.read == {key: [*range(60, 100)]}
    assert consumer.core.take_lost() == [Lost("t", "p", 0, 60, is_skipped=True)]
    second = Store(network, "second", {})
    producer = Producer(network, "t", "p")
    for sequence in range(100):
        producer.core.append(content_of(*key, sequence), network.now)
    producer.core.receive(Ack("p", "t", 99))
    producer.produce(1)
    network.run(5.0)
    assert second.disk == {key: (60, contents(*key, 101, first=60))}


def test_a_beginning_that_another_store_still_has_is_not_lost(network):
    key = "t", "p"
    Store(network, "short", {key: (60, contents(*key, 100, first=60))})
    full = Store(network, "full", {key: (0, contents(*key, 100))})
    network.leave(full)
    consumer = Consumer(network, "consumer", ["t"])
    network.run(0.4)
    network.join(full)
    network.run(5.0)
    assert consumer.read == {key: [*range(100)]}
    assert consumer.core.take_lost() == []


@pytest.mark.parametrize("skip_lost", [False, True])
def test_records_lost_in_the_middle_are_told_once_and_skipped_only_if_wanted(network, skip_lost):
    key = "t", "p"
    Store(network, "store", {key: (60, contents(*key, 100, first=60))})
    consumer = Consumer(network, "consumer", ["t"], offsets={key: 10}, skip_lost=skip_lost)
    network.run(30.0)
    assert consumer.core.take_lost() == [Lost("t", "p", 10, 60, is_skipped=skip_lost)]
    assert consumer.read == ({key: [*range(60, 100)]} if skip_lost else {})


def test_a_producer_without_acks_serves_late_consumers_what_it_still_has(network):
    producer = Producer(network, "t", "p", acks=0, limit_records=50)
    producer.produce(80)
    consumer = Consumer(network, "consumer", ["t"])
    network.run(5.0)
    assert consumer.read == {("t", "p"): [*range(30, 80)]}
    producer.produce(2)
    network.run(1.0)
    assert consumer.read == {("t", "p"): [*range(30, 82)]}


@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", 10), (4, 4), (12, 12)])
def test_a_partition_begins_where_the_consumer_wants_it(network, start, first):
    producer, _ = Producer(network, "t", "p"), Store(network, "store", {})
    producer.produce(10)
    network.run(3.0)
    consumer = Consumer(network, "consumer", ["t"], start=start)
    network.run(3.0)
    producer.produce(5)
    network.run(3.0)
    assert consumer.read == {("t", "p"): [*range(first, 15)]}


def test_two_producers_of_one_partition_harm_no_other_and_each_sequence_comes_once(network):
    one, two = Producer(network, "t", "p"), Producer(network, "t", "p")
    other = Producer(network, "t", "q")
    disk: dict = {}
    Store(network, "store", disk)
    consumer = Consumer(network, "consumer", ["t"])
    for _ in range(20):
        for producer, number in ((one, 2), (two, 1), (other, 1)):
            producer.produce(number)
        network.run(0.3)
    network.run(3.0)
    assert consumer.read == {("t", "p"): [*range(40)], ("t", "q"): [*range(20)]}
    assert disk == {("t", "p"): (0, contents("t", "p", 40)), ("t", "q"): (0, contents("t", "q", 20))}
