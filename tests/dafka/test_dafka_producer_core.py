"""A producer's core: what it answers, keeps and asks."""

from __future__ import annotations

import pytest

from garlicfarm.errors import LocalProtocolError
from garlicfarm_plugin_dafka import producer_core, serving_core
from garlicfarm_plugin_dafka.codec import (
    MAX_COUNT,
    MAX_SEQUENCE,
    Ack,
    DirectHead,
    DirectRecord,
    DirectTail,
    Fetch,
    GetHeads,
    Head,
    subscription_prefix,
)
from garlicfarm_plugin_dafka.producer_core import ProducerCore
from garlicfarm_plugin_dafka.serving import PAGE_RECORDS
from tests.dafka.cores import NOW, all_answers, producer


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
    monkeypatch.setattr(serving_core, "_MAX_WAITING", 3)
    monkeypatch.setattr(producer_core, "_MAX_STORES", 3)
    core = producer(5, acks=2)
    for number in range(5):
        core.receive(GetHeads("t", f"{number}"))
        core.receive(Ack("p", "t", 1), number)
    assert core.dropped == {"too many requests": 2, "too many stores": 2}
    assert len(all_answers(core)) == 3
