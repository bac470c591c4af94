"""The cores of all roles: hostile input, what they import, contradictions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm_plugin_dafka import codec, reading, reading_core, serving
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
)
from garlicfarm_plugin_dafka.consumer_core import ConsumerCore
from garlicfarm_plugin_dafka.reading import LAST_SEQUENCE
from garlicfarm_plugin_dafka.store_core import SavedPartition, StoreCore
from tests.dafka.cores import NOW, consumer, producer, told

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
                for command in core.answers():
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
    pure = [Path(module.__file__) for module in (codec, reading, serving)]
    for path in [*pure, *pure[0].parent.glob("*_core.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        }
        names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not {name.partition(".")[0] for name in names} & forbidden


@pytest.mark.parametrize("make", [consumer, lambda: StoreCore("me")])
def test_a_core_follows_no_more_partitions_than_it_may(monkeypatch, make):
    monkeypatch.setattr(reading_core, "MAX_PARTITIONS", 2)
    core = make()
    told(core, *(Record("t", f"{number}", 0, b"") for number in range(4)))
    assert len(core.take_records() if isinstance(core, ConsumerCore) else core.take_unsaved()) == 2
    assert core.dropped == {"too many partitions": 2}


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
