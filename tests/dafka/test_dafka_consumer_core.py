"""A consumer's core: input that lies, repeats or is for others, and what it forgets."""

from __future__ import annotations

import pytest

from garlicfarm_plugin_dafka import consumer_core, reading_core
from garlicfarm_plugin_dafka.codec import (
    MAX_SEQUENCE,
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectTail,
    Fetch,
    GetHeads,
    Head,
    Record,
    StoreHello,
    encode,
)
from garlicfarm_plugin_dafka.consumer_core import ConsumerCore, Lost
from garlicfarm_plugin_dafka.reading import LAST_SEQUENCE
from garlicfarm_plugin_dafka.store_core import StoreCore
from tests.dafka.cores import NOW, consumer, sequences, told


def test_a_topic_that_only_begins_alike_is_dropped():
    core = ConsumerCore("me", ["hello"])
    head = encode(Record("hello2", "p", 0, b""))[0]
    assert any(head.startswith(prefix) for prefix in core.subscriptions())  # ZeroMQ lets it through
    told(core, Record("hello2", "p", 0, b""), Head("hello2", "p", 5), DirectHead("me", "hello2", "p", 5))
    assert core.take_records() == []
    assert core.offsets() == {}
    assert core.dropped == {"another topic": 3}


def test_answers_for_others_are_dropped():
    core = consumer()
    told(core, Head("t", "p", 9))
    told(
        core,
        DirectRecord("me2", "t", "p", 0, b""),
        DirectHead("me2", "t", "q", 3),
        DirectTail("me2", "t", "p", 3),
        DirectRecord("me", "t", "never asked", 0, b""),
        StoreHello("me2", "s"),
    )
    assert core.take_records() == []
    assert core.offsets() == {("t", "p"): 0}


def test_answers_of_several_sources_are_taken_once():
    core = consumer()
    assert told(core, Head("t", "p", 3)) == [Fetch("p", "t", "me", 0, 4)]
    for source in ([0, 1, 2], [0, 1, 2, 3], [2, 3]):
        told(core, *(DirectRecord("me", "t", "p", sequence, b"") for sequence in source))
    assert sequences(core) == [0, 1, 2, 3]


def test_live_records_that_come_early_are_not_fetched_again():
    core = consumer()
    told(core, Record("t", "p", 0, b""))
    assert told(core, Record("t", "p", 3, b""), Record("t", "p", 4, b"")) == [Fetch("p", "t", "me", 1, 2)]
    assert told(core, DirectRecord("me", "t", "p", 1, b""), DirectRecord("me", "t", "p", 2, b"")) == []
    assert sequences(core) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sequence", [LAST_SEQUENCE + 1, MAX_SEQUENCE])
def test_a_sequence_that_cannot_be_is_dropped(sequence):
    core = consumer(start="latest")
    lies = Record("t", "p", sequence, b""), Head("t", "p", sequence), DirectHead("me", "t", "p", sequence)
    assert told(core, *lies) == []
    assert (core.offsets(), core.dropped) == ({}, {"sequence out of range": 3})
    told(core, Record("t", "p", 0, b""))
    assert told(core, *lies, DirectRecord("me", "t", "p", sequence, b"")) == []
    store = StoreCore("me")
    assert told(store, *lies[:2]) == []
    assert store.partitions() == []


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_head_that_lies_costs_a_fetch_now_and_then_and_holds_up_nothing(start):
    core = consumer(start=start)
    told(core, Record("t", "p", 0, b""))
    asked = told(core, Head("t", "p", LAST_SEQUENCE))
    assert asked == [Fetch("p", "t", "me", 1, 512)]
    now = NOW
    for sequence in range(1, 200):  # the truth goes on
        now += 0.01
        told(core, Record("t", "p", sequence, b""), now=now)
    assert sequences(core) == [*range(200)]
    asked = []
    while now < NOW + 100:
        now += 0.25
        core.tick(now)
        asked += [command for command in core.take_commands(now) if isinstance(command, Fetch)]
    assert len(asked) < 20


def test_a_consumer_says_hello_to_each_store_that_it_meets():
    core = consumer()
    hello = ConsumerHello("s", "me", ("t",))
    core.on_subscription(ConsumerHello, "s", True)
    assert core.take_commands(NOW) == [hello]
    assert told(core, StoreHello("me", "s")) == [hello]
    core.on_subscription(ConsumerHello, "s", False)
    core.on_subscription(ConsumerHello, "", True)
    core.on_subscription(None, "", True)
    assert core.take_commands(NOW) == []
    core.on_subscription(GetHeads, "t", True)
    assert core.take_commands(NOW) == [GetHeads("t", "me")]


def test_a_consumer_forgets_the_partition_that_was_silent_for_the_longest_time(monkeypatch):
    monkeypatch.setattr(reading_core, "MAX_PARTITIONS", 2)
    core = consumer(offsets={("t", "old"): 7, ("t", "older"): 3})
    core.tick(NOW)
    told(core, DirectHead("me", "t", "older", 2))  # a store still has it
    core.receive(Record("t", "new", 0, b"x"), NOW + consumer_core.SILENT_S - 1)
    assert core.dropped == {"too many partitions": 1}
    core.receive(Record("t", "new", 0, b"x"), NOW + consumer_core.SILENT_S)
    assert core.take_forgotten() == [(("t", "old"), 7)]
    assert core.take_forgotten() == []
    assert core.offsets() == {("t", "older"): 3, ("t", "new"): 1}
    assert core.forgot == {"t"}
    core.receive(Head("t", "more", 0), NOW + consumer_core.SILENT_S)
    assert core.take_forgotten() == [(("t", "older"), 3)]


def test_a_consumer_forgets_no_partition_whose_records_it_waits_for(monkeypatch):
    monkeypatch.setattr(reading_core, "MAX_PARTITIONS", 1)
    core = consumer()
    core.tick(NOW)
    told(core, Head("t", "behind", 5))
    core.receive(Record("t", "new", 0, b"x"), NOW + 2 * consumer_core.SILENT_S)
    assert core.dropped == {"too many partitions": 1}
    assert core.take_forgotten() == []


@pytest.mark.parametrize("forgot", [(), ("t",)])
def test_a_forgotten_producer_that_returns_is_read_from_its_oldest_record(forgot):
    core = consumer(offsets={("t", "other"): 1}, forgot=forgot)
    told(core, Head("t", "p", 9))
    now = NOW
    for _ in range(5):
        core.receive(DirectTail("me", "t", "p", 4), now)
        now += 10
        core.tick(now)
        core.take_commands(now)
    assert core.take_lost() == [Lost("t", "p", 0, 4, is_skipped=bool(forgot))]
