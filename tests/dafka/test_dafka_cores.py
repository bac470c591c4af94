"""The cores of the roles alone: input that lies, repeats or is for others, and what must stay bounded."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import LocalProtocolError
from garlicfarm_plugin_dafka import codec, consumer_core, producer_core, reading, serving, store_core
from garlicfarm_plugin_dafka.codec import (
    MAX_COUNT,
    MAX_SEQUENCE,
    Ack,
    Command,
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
    subscription_prefix,
)
from garlicfarm_plugin_dafka.consumer_core import ConsumerCore, Lost
from garlicfarm_plugin_dafka.producer_core import ProducerCore
from garlicfarm_plugin_dafka.reading import LAST_SEQUENCE, WINDOW, EarlyRecords, PartitionReader
from garlicfarm_plugin_dafka.serving import PAGE_RECORDS, FetchQueue
from garlicfarm_plugin_dafka.store_core import SavedPartition, StoreCore

NOW = 100.0


def producer(records: int = 0, **options) -> ProducerCore:
    core = ProducerCore("t", "p", **{"acks": 1, "limit_records": 1000, "limit_bytes": 1 << 20} | options)
    for sequence in range(records):
        core.append(b"%d" % sequence, NOW)
    return core


def consumer(**options) -> ConsumerCore:
    core = ConsumerCore("me", ["t"], **options)
    core.tick(NOW)
    core.take_commands(NOW)
    return core


def told(core: ConsumerCore | StoreCore, *commands: Command, now: float = NOW) -> list[Command]:
    """What a core sends after these."""
    for command in commands:
        core.receive(command, now)
    return core.take_commands(now)


def sequences(core: ConsumerCore) -> list[int]:
    return [record.sequence for record in core.take_records()]


def all_answers(core: ProducerCore) -> list[Command]:
    found = []
    while core.has_answers:
        found += core.answers()
    return found


addresses = st.sampled_from(["me", "p", "you"])
topics = st.sampled_from(["t", "t2"])
numbers = st.one_of(st.integers(0, 20), st.sampled_from([LAST_SEQUENCE, LAST_SEQUENCE + 1, MAX_SEQUENCE]))
commands = st.one_of(
    st.builds(Record, topics, addresses, numbers, st.binary(max_size=3)),
    st.builds(DirectRecord, addresses, topics, addresses, numbers, st.binary(max_size=3)),
    st.builds(Head, topics, addresses, numbers),
    st.builds(DirectHead, addresses, topics, addresses, numbers),
    st.builds(DirectTail, addresses, topics, addresses, numbers),
    st.builds(Ack, addresses, topics, numbers),
    st.builds(Fetch, addresses, topics, addresses, numbers, st.sampled_from([1, 5, MAX_COUNT])),
    st.builds(GetHeads, topics, addresses),
    st.builds(ConsumerHello, addresses, addresses, st.lists(topics).map(tuple)),
    st.builds(StoreHello, addresses, addresses),
)


@given(st.lists(st.one_of(commands, st.just(None)), max_size=60), st.sampled_from([0, 1, 2]))
def test_no_sequence_of_commands_upsets_a_core(events: list[Command | None], acks: int):
    cores: list[ConsumerCore | StoreCore] = [consumer(), StoreCore("me", [SavedPartition("t", "p", 3, 5)])]
    sender = producer(5, acks=acks, limit_records=10)
    read: dict[tuple[str, str], int] = {}
    saved = {("t", "p"): 5}
    now = NOW
    for event in events:
        now += 0.3
        for core in cores:
            if event is None:
                now += 3
                core.tick(now)
            else:
                core.receive(event, now)
            for command in core.take_commands(now):
                encode(command)
            if isinstance(core, StoreCore):
                batch = core.take_unsaved()
                for unsaved in batch:
                    key = unsaved.topic, unsaved.partition
                    assert unsaved.first == saved.get(key, unsaved.first)
                    saved[key] = unsaved.first + len(unsaved.contents)
                core.on_saved(batch)
                for command in core.heads():
                    encode(command)
                while (turn := core.fetches.turn()) is not None:
                    assert turn.first < turn.end <= saved[turn.topic, turn.partition]
                    core.on_served(turn, turn.first, turn.end)
            else:
                for record in core.take_records():
                    key = record.topic, record.partition
                    assert record.sequence == read.get(key, record.sequence)
                    read[key] = record.sequence + 1
        if event is None:
            sender.tick(now)
        else:
            sender.receive(event, "key")
        while sender.has_answers:
            for command in sender.answers():
                encode(command)


def test_cores_import_nothing_that_does_io_or_tells_the_time():
    forbidden = {"os", "pathlib", "random", "socket", "sqlite3", "threading", "time", "trio", "zmq"}
    for module in (codec, reading, serving, producer_core, consumer_core, store_core):
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        names = {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        }
        names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not {name.partition(".")[0] for name in names} & forbidden


# A reader


@given(
    st.lists(st.tuples(st.sampled_from(["record", "head", "tail", "fetch"]), st.integers(0, 40))),
    st.integers(0, 20),
)
def test_a_reader_takes_each_record_once_in_order_and_gives_back_what_it_keeps(events, first):
    early = EarlyRecords(1000)
    reader = PartitionReader("t", "p", first, early)
    taken, now = first, 0.0
    for kind, number in events:
        now += 0.1
        if kind == "record" and number >= reader.next:
            found = reader.take(number, b"%d" % number, now)
            assert list(found) == [b"%d" % sequence for sequence in range(taken, reader.next)]
            taken = reader.next
        elif kind == "head":
            reader.on_head(number)
        elif kind == "tail":
            reader.on_tail(number, now)
        elif kind == "fetch" and (asked := reader.fetch(now)) is not None:
            begin, count = asked
            assert reader.next <= begin
            assert 1 <= count <= WINDOW
            assert begin + count <= reader.head + 1
    for sequence in range(reader.next, 41):
        if sequence >= reader.next:
            reader.take(sequence, b"", now)
    assert (reader.next, early.left_bytes) == (41, 1000)


def test_a_reader_keeps_no_more_than_it_may_and_fetches_the_rest():
    early = EarlyRecords(300)
    reader = PartitionReader("t", "p", 0, early)
    for sequence in (5, 6, 7, 8, 9):
        reader.take(sequence, bytes(36), NOW)
    assert early.left_bytes == 0
    assert reader.fetch(NOW) == (0, 5)
    for sequence in range(4):
        reader.take(sequence, b"", NOW)
    assert len(reader.take(4, b"", NOW)) == 4  # with 5, 6 and 7
    assert reader.fetch(NOW) == (8, 2)


def test_a_reader_fetches_again_later_and_later_and_anew_after_progress():
    reader = PartitionReader("t", "p", 0, EarlyRecords())
    reader.on_head(9)
    now, times, stalled = 0.0, [], []
    while now < 40:
        if reader.fetch(now) is not None:
            times.append(now)
            stalled.append(reader.is_stalled)
        now += 0.25
    assert stalled == [False, False, True, True, True, True, True, True]
    assert times == [0.0, 1.0, 3.0, 7.0, 15.0, 23.0, 31.0, 39.0]
    reader.take(0, b"", now)
    assert not reader.is_stalled
    assert reader.fetch(now + 0.75) is None
    assert reader.fetch(now + 1.0) == (1, 9)


def fetches(reader: PartitionReader, size: int) -> list[tuple[int, int, int]]:
    """Read to the head: what was fetched, and how many records were still on their way then."""
    asked, end = [], 0
    while True:
        if (found := reader.fetch(NOW)) is not None:
            asked.append((*found, end - reader.next))
            end = sum(found)
        if reader.next > reader.head:
            return asked
        assert reader.next < end
        reader.take(reader.next, bytes(size), NOW)


def test_a_reader_fetches_more_and_more_before_all_has_arrived():
    reader = PartitionReader("t", "p", 0, EarlyRecords())
    reader.on_head(10 * WINDOW)
    (_, first, _), *others = asked = fetches(reader, 100)
    assert first == 256
    assert [begin for begin, _, _ in others] == [begin + count for begin, count, _ in asked[:-1]]
    assert all(waiting >= 128 for _, _, waiting in others)
    assert max(count + waiting for _, count, waiting in asked) == WINDOW
    assert len(asked) < 30


def test_a_reader_asks_for_no_more_bytes_than_a_queue_should_hold():
    reader = PartitionReader("t", "p", 0, EarlyRecords())
    reader.on_head(2000)
    asked = fetches(reader, 100_000)
    assert all(count + waiting <= 41 for _, count, waiting in asked[2:])  # 4 MiB


def test_a_reader_asks_for_less_where_records_get_lost():
    reader = PartitionReader("t", "p", 0, EarlyRecords())
    reader.on_head(10 * WINDOW)
    counts, now = [], NOW
    for _ in range(6):
        counts.append(reader.fetch(now)[1])
        now += 10
    assert counts == [256, 128, 64, 32, 16, 16]
    reader.take(0, b"", now)
    assert reader.fetch(now) is None
    for sequence in range(1, 9):
        reader.take(sequence, b"", now)
    assert reader.fetch(now) == (16, 25)
    for _ in range(10):
        for sequence in range(reader.next, reader.next + 40):
            reader.take(sequence, b"", now)
        reader.fetch(now)
    assert 40 < reader.fetch(now + 10)[1] < 200  # it does not double any more


def test_a_gap_in_an_answer_is_fetched_soon_and_once():
    core = consumer()
    told(core, Head("t", "p", 99))
    assert told(core, DirectRecord("me", "t", "p", 0, b""), DirectRecord("me", "t", "p", 2, b"")) == []
    core.tick(NOW + 0.05)
    assert core.take_commands(NOW) == []
    core.tick(NOW + 0.25)
    assert core.take_commands(NOW) == [Fetch("p", "t", "me", 1, 1)]
    assert told(core, DirectRecord("me", "t", "p", 3, b""), now=NOW + 0.3) == []
    core.tick(NOW + 1.0)
    assert core.take_commands(NOW) == []
    core.tick(NOW + 2.25)
    assert core.take_commands(NOW) == [Fetch("p", "t", "me", 1, 1)]


def test_tails_of_several_sources_lose_only_what_none_has():
    reader = PartitionReader("t", "p", 0, EarlyRecords())
    reader.on_head(99)
    for now in (0.0, 1.0, 2.0):
        assert reader.missing is None
        assert reader.fetch(now)[0] == 0
        reader.on_tail(50, now)
        reader.on_tail(30, now)
        reader.on_tail(70, now)
    assert reader.missing == (0, 30)
    assert list(reader.skip(3.0)) == []
    assert reader.fetch(3.0)[0] == 30


# Whom to answer


def test_ranges_are_answered_in_turns_a_page_at_a_time():
    queue = FetchQueue()
    for sender in ("a", "b"):
        assert queue.add(Fetch("p", "t", sender, 0, MAX_COUNT), 0, 2 * PAGE_RECORDS)
    order = []
    while (turn := queue.turn()) is not None:
        order.append((turn.requester, turn.first))
        queue.advance(turn, turn.first, turn.first + PAGE_RECORDS)
    assert order == [("a", 0), ("b", 0), ("a", PAGE_RECORDS), ("b", PAGE_RECORDS)]
    assert not queue


def test_a_fetch_that_repeats_adds_nothing_and_one_that_goes_back_begins_again():
    queue = FetchQueue()
    fetch = Fetch("p", "t", "a", 0, 100)
    queue.add(fetch, 0, 100)
    queue.add(fetch, 0, 100)
    queue.add(fetch, 100, 150)
    turn = queue.turn()
    assert (turn.first, turn.end) == (0, 150)
    queue.add(fetch, 40, 100)  # while a page is being read
    queue.advance(turn, 0, 60)
    assert (queue.turn().first, queue.turn().end) == (60, 150)
    queue.add(fetch, 10, 100)
    queue.advance(turn, 60, 150)
    assert (queue.turn().first, queue.turn().end) == (10, 100)
    queue.advance(turn, 10, 10)  # nothing is there any more
    assert queue.turn() is None


def test_no_more_is_queued_than_may_be(monkeypatch):
    monkeypatch.setattr(serving, "MAX_REQUESTERS", 2)
    monkeypatch.setattr(serving, "_MAX_RANGES", 2)
    queue = FetchQueue()
    added = [
        queue.add(Fetch(partition, "t", sender, 0, 1), 0, 1)
        for sender, partition in [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("c", "1"), ("a", "2")]
    ]
    assert added == [True, True, False, True, False, True]


# A producer


def test_a_fetch_of_2_32_records_sends_what_exists_in_pages():
    core = producer(2 * PAGE_RECORDS + 1, limit_records=5000)
    core.receive(Fetch("p", "t", "you", 1, MAX_COUNT))
    assert [len(core.answers()) for _ in range(3)] == [PAGE_RECORDS, PAGE_RECORDS, 0]
    assert not core.has_answers


def test_a_fetch_of_some_records_is_told_that_there_are_more():
    core = producer(10)
    core.receive(Fetch("p", "t", "you", 0, 2))
    records = [DirectRecord("you", "t", "p", n, b"%d" % n) for n in range(2)]
    assert all_answers(core) == [*records, DirectHead("you", "t", "p", 9)]


def test_a_page_is_limited_in_bytes_too():
    core = producer(limit_bytes=1 << 30)
    for _ in range(4):
        core.append(bytes(600_000), NOW)
    core.receive(Fetch("p", "t", "you", 0, 4))
    assert [len(core.answers()) for _ in range(2)] == [2, 2]


def test_a_fetch_after_acks_returns_the_right_contents():
    core = producer(10)
    core.receive(Ack("p", "t", 4))
    core.receive(Fetch("p", "t", "you", 5, 100_000 - 5))
    assert all_answers(core) == [DirectRecord("you", "t", "p", n, b"%d" % n) for n in range(5, 10)]


def test_a_fetch_of_what_a_store_has_gets_no_answer():
    core = producer(10)
    core.receive(Ack("p", "t", 4))
    core.receive(Fetch("p", "t", "you", 4, 3))
    core.receive(Fetch("p", "t", "you", 10, 3))
    assert all_answers(core) == []
    assert core.dropped == {"FETCH of what is not there": 2}


def test_a_fetch_of_what_was_dropped_without_acks_is_told_the_tail():
    core = producer(30, acks=0, limit_records=10)
    core.receive(Fetch("p", "t", "you", 4, 3))
    assert all_answers(core) == [DirectTail("you", "t", "p", 20)]


def test_an_ack_of_what_was_never_sent_or_is_anothers_is_counted_and_frees_nothing():
    core = producer(3)
    for ack in (Ack("p", "t", 3), Ack("p", "t", MAX_SEQUENCE), Ack("p2", "t", 1), Ack("p", "t2", 1)):
        core.receive(ack)
    assert core.acked == 0
    assert core.dropped == {"ACK of what was never sent": 2, "another partition": 2}


def test_records_are_kept_until_enough_stores_have_acknowledged_them():
    core = producer(10, acks=2)
    core.receive(Ack("p", "t", 7), "one")
    core.receive(Ack("p", "t", 9), "one")
    assert core.acked == 0
    core.receive(Ack("p", "t", 3), "two")
    assert core.acked == 4
    core.receive(Ack("p", "t", 5), "three")
    assert core.acked == 6
    core.receive(Ack("p", "t", 2), "three")
    assert core.acked == 6


def questions(core: ProducerCore, first: int, end: int) -> list[int]:
    """At which of these seconds it asks the stores for their heads."""
    question = GetHeads("t", "p")
    return [second for second in range(first, end) if question in core.tick(NOW + second)]


def test_a_producer_whose_acks_do_not_come_asks_the_stores_what_they_have():
    core = producer(5)
    assert questions(core, 0, 31) == [2, 6, 14, 22, 30]
    core.receive(DirectHead("p", "t", "p", 2), "store")
    assert core.acked == 3
    assert questions(core, 31, 40) == [33, 37], "that was progress"
    core.receive(DirectHead("p", "t", "p", 4), "store")
    assert core.acked == 5
    assert questions(core, 40, 61) == []
    core.append(b"5", NOW + 60)
    assert questions(core, 61, 65) == [62]
    core.receive(Ack("p", "t", 5), "another node of the store")
    assert core.acked == 6
    assert not core.has_answers


def test_a_producer_does_not_ask_while_acks_come_or_are_not_wanted():
    core = producer(100)
    asked = []
    for second in range(100):
        asked += questions(core, second, second + 1)
        core.receive(Ack("p", "t", second))
    assert asked == []
    for each in (producer(5, acks=0), producer(5, asks_stores=False)):
        assert questions(each, 0, 60) == []
        assert subscription_prefix(DirectHead, "p") not in each.subscriptions()
        each.receive(DirectHead("p", "t", "p", 3))
        assert each.dropped == {"not for a producer": 1}


def test_the_two_nodes_of_a_c_store_do_not_count_as_two_stores():
    core = producer(10, acks=2)
    core.receive(Ack("p", "t", 9), "writer of one")
    core.receive(DirectHead("p", "t", "p", 9), "reader of one")
    assert core.acked == 0
    core.receive(DirectHead("p", "t", "p", 7), "reader of two")
    assert core.acked == 8


def test_a_head_that_is_no_answer_or_of_what_was_never_sent_frees_nothing():
    core = producer(3)
    for head in (
        DirectHead("p", "t", "p", 3),
        DirectHead("p", "t", "p2", 1),
        DirectHead("p2", "t", "p", 1),
        DirectHead("p", "t2", "p", 1),
    ):
        core.receive(head)
    assert core.acked == 0
    assert core.dropped == {
        "ACK of what was never sent": 1,
        "head of another partition": 2,
        "another partition": 1,
    }


def test_a_producer_keeps_no_more_than_it_may():
    core = producer(1000)
    assert not core.has_room(1)
    with pytest.raises(LocalProtocolError):
        core.append(b"", NOW)
    core.receive(Ack("p", "t", 0))
    assert core.has_room(1)
    small = producer(limit_bytes=1000)
    assert small.has_room(5000)  # alone
    small.append(bytes(5000), NOW)
    assert not small.has_room(0)
    free = producer(5000, acks=0)
    assert free.has_room(1)
    assert free.acked == 5000
    for first in (3999, 4000):
        free.receive(Fetch("p", "t", "you", first, 1))
    told = [DirectTail("you", "t", "p", 4000), DirectRecord("you", "t", "p", 4000, b"4000")]
    assert all_answers(free)[:2] == told


def test_heads_begin_with_the_first_record_and_repeat_each_second():
    core = producer()
    assert core.tick(NOW) == ()
    core.receive(GetHeads("t", "you"))
    assert not core.has_answers
    core.append(b"", NOW)
    assert core.tick(NOW + 0.5) == []
    assert core.tick(NOW + 1) == [Head("t", "p", 0)]
    assert core.tick(NOW + 1.5) == []
    assert core.tick(NOW + 2)[:1] == [Head("t", "p", 0)]
    core.receive(GetHeads("t", "you"))
    core.receive(GetHeads("t", "you"))
    core.receive(GetHeads("t2", "you"))
    assert all_answers(core) == [DirectHead("you", "t", "p", 0)]


def test_requests_that_wait_are_bounded(monkeypatch):
    monkeypatch.setattr(producer_core, "_MAX_WAITING", 3)
    monkeypatch.setattr(producer_core, "_MAX_STORES", 3)
    core = producer(5, acks=2)
    for number in range(5):
        core.receive(GetHeads("t", f"{number}"))
        core.receive(Ack("p", "t", 1), number)
    assert core.dropped == {"too many requests": 2, "too many stores": 2}
    assert len(all_answers(core)) == 3


# A consumer


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


def test_a_consumer_follows_no_more_partitions_than_it_may(monkeypatch):
    monkeypatch.setattr(consumer_core, "MAX_PARTITIONS", 2)
    core = consumer()
    told(core, *(Record("t", f"{number}", 0, b"") for number in range(4)))
    assert len(core.take_records()) == 2
    assert core.dropped == {"too many partitions": 2}


# A store


def saved(core: StoreCore) -> list[Command]:
    """Save all, and return what the store sends then."""
    core.on_saved(core.take_unsaved())
    return core.take_commands(NOW)


def test_a_store_acknowledges_only_what_is_saved():
    core = StoreCore("s")
    assert told(core, Record("t", "p", 0, b"a"), Record("t", "p", 1, b"b")) == []
    batch = core.take_unsaved()
    assert [(each.first, each.contents) for each in batch] == [(0, [b"a", b"b"])]
    assert told(core, Record("t", "p", 1, b"b"), Head("t", "p", 1)) == []
    core.on_saved(batch)
    assert core.take_commands(NOW) == [Ack("p", "t", 1)]
    assert told(core, Record("t", "p", 2, b"c"), Record("t", "p", 0, b"a")) == [Ack("p", "t", 1)]


def test_a_store_acknowledges_again_what_comes_again():
    core = StoreCore("s", [SavedPartition("t", "p", 0, 10)])
    assert told(core, Record("t", "p", 4, b"")) == [Ack("p", "t", 9)]
    assert told(core, Head("t", "p", 9)) == [Ack("p", "t", 9)]
    assert told(core, Head("t", "p", 4)) == [Ack("p", "t", 4)]
    assert told(core, DirectRecord("s", "t", "p", 9, b"")) == [Ack("p", "t", 9)]


def test_a_store_fetches_what_it_lacks_and_saves_without_gaps():
    core = StoreCore("s", [SavedPartition("t", "p", 0, 3)])
    assert told(core, Record("t", "p", 5, b"5")) == [Fetch("p", "t", "s", 3, 2)]
    assert core.take_unsaved() == []
    assert told(core, *(DirectRecord("s", "t", "p", n, b"%d" % n) for n in (3, 4))) == []
    (unsaved,) = core.take_unsaved()
    assert (unsaved.first, unsaved.contents) == (3, [b"3", b"4", b"5"])


def test_a_store_answers_exactly_what_was_asked_and_is_there():
    core = StoreCore("s", [SavedPartition("t", "p", 5, 100)])
    told(core, Fetch("p", "t", "a", 10, 3))
    turn = core.fetches.turn()
    assert (turn.first, turn.end) == (10, 13)
    assert core.on_served(turn, 10, 12) == []
    assert core.on_served(turn, 12, 13) == [DirectHead("a", "t", "p", 99)]  # there is more
    told(core, Fetch("p", "t", "a", 99, MAX_COUNT), Fetch("p", "t", "b", 100, 5), Fetch("p", "t2", "b", 9, 5))
    turn = core.fetches.turn()
    assert (turn.requester, turn.first, turn.end) == ("a", 99, 100)
    assert core.on_served(turn, 99, 100) == []
    assert core.fetches.turn() is None
    assert core.dropped == {"FETCH of what is not there": 2}
    assert told(core, Fetch("p", "t", "a", 4, 50)) == [DirectTail("a", "t", "p", 5)]


def test_a_store_tells_the_heads_of_exactly_the_topics_asked_for(monkeypatch):
    monkeypatch.setattr(store_core, "_HEADS_AT_ONCE", 2)
    names = [("hello", "a"), ("hello2", "b"), ("hello", "c"), ("hello", "d")]
    core = StoreCore("s", [SavedPartition(topic, partition, 0, 4) for topic, partition in names])
    told(core, Record("hello", "unsaved", 0, b""))
    told(
        core,
        GetHeads("hello", "c1"),
        ConsumerHello("s", "c2", ("hello2",)),
        ConsumerHello("s2", "c3", ("hello",)),
    )
    found = []
    while core.has_questions:
        some = core.heads()
        assert len(some) <= 4
        found += some
    assert sorted(found, key=repr) == [
        *(DirectHead("c1", "hello", partition, 3) for partition in "acd"),
        DirectHead("c2", "hello2", "b", 3),
    ]


def test_a_store_greets_consumers():
    core = StoreCore("s")
    core.on_subscription(StoreHello, "me", True)
    core.on_subscription(StoreHello, "me", False)
    core.on_subscription(StoreHello, "", True)
    assert core.take_commands(NOW) == [StoreHello("me", "s")]


def test_a_store_of_some_topics_takes_no_others():
    core = StoreCore("s", topics=["hello"])
    told(core, Record("hello2", "p", 0, b""), Head("hello2", "p", 0))
    assert core.take_unsaved() == []
    assert core.dropped == {"another topic": 2}


def test_a_store_takes_no_more_partitions_than_it_may(monkeypatch):
    monkeypatch.setattr(store_core, "MAX_PARTITIONS", 2)
    core = StoreCore("s")
    told(core, *(Record("t", f"{number}", 0, b"") for number in range(4)))
    assert len(core.take_unsaved()) == 2
    assert core.dropped == {"too many partitions": 2}


def test_a_partition_that_is_deleted_whole_is_forgotten():
    core = StoreCore("s", [SavedPartition("t", "p", 0, 4)])
    assert not core.is_live("t", "p", NOW)
    told(core, Head("t", "p", 3))
    assert core.is_live("t", "p", NOW)
    core.on_deleted("t", "p", 3)
    assert core.partitions() == [SavedPartition("t", "p", 3, 4)]
    core.on_deleted("t", "p", 4)
    assert core.partitions() == []
    told(core, GetHeads("t", "c"))
    assert core.heads() == []


# What a consumer forgets


def test_a_consumer_forgets_the_partition_that_was_silent_for_the_longest_time(monkeypatch):
    monkeypatch.setattr(consumer_core, "MAX_PARTITIONS", 2)
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
    monkeypatch.setattr(consumer_core, "MAX_PARTITIONS", 1)
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


# Contradictions


@pytest.mark.parametrize("make", [consumer, lambda: StoreCore("me")])
def test_a_record_that_contradicts_one_that_is_kept_is_told_and_not_taken(make):
    core = make()
    told(core, Record("t", "p", 1, b"first"), Record("t", "p", 1, b"first"))
    assert core.dropped == {}
    told(core, Record("t", "p", 1, b"second"))
    assert core.dropped == {"a record that contradicts another": 1}
    told(core, Record("t", "p", 0, b"zero"))
    found = core.take_records() if isinstance(core, ConsumerCore) else core.take_unsaved()
    assert b"second" not in repr(found).encode()
