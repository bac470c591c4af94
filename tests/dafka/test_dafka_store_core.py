"""A store's core: what it acknowledges, fetches and answers."""

from __future__ import annotations

from garlicfarm_plugin_dafka import store_core
from garlicfarm_plugin_dafka.codec import (
    MAX_COUNT,
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
)
from garlicfarm_plugin_dafka.store_core import SavedPartition, StoreCore
from tests.dafka.cores import NOW, told


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
    while core.has_answers:
        some = core.answers()
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
    assert core.answers() == []
