"""Silences against their definition: a look at every member for every status."""

from __future__ import annotations

import random
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.publishing.fold_state import MemberRecord
from garlicfarm.publishing.silences import Silences

MEMBERS = 40


class Definition:
    """Point 1 as it is written."""

    def __init__(self) -> None:
        self.records: dict[int, MemberRecord] = {}

    def configure(self, members: set[int]) -> None:
        self.records = {member: self.records.get(member) or MemberRecord() for member in members}
        for record in self.records.values():
            record.silences = {id_: n for id_, n in record.silences.items() if id_ in members}
            record.against = sum(n >= record.R for n in record.silences.values())

    def status(self, author: int, index: int, applied: int, interval_ms: int, R: int) -> set[int]:
        """All statuses are counted, for every interval in use."""
        record = self.records[author]
        record.index, record.interval_ms, record.R = index, interval_ms, R
        record.silences, record.against = {}, 0
        reached = set()
        for member, other in self.records.items():
            if other is not record and 0 < other.index <= applied:
                silent = other.silences.get(author, 0) + 1
                if silent <= other.R:
                    other.silences[author] = silent
                if silent == other.R:
                    other.against += 1
                    reached.add(member)
        return reached


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(2, MEMBERS), st.floats(0.01, 1))
def test_silences_are_those_of_the_definition(seed: int, members: int, activity: float) -> None:
    """Of logs in which a share of the members, ``activity``, posts most of the statuses."""
    chance = random.Random(seed)
    definition, silences = Definition(), Silences()
    definition.configure({*range(1, members + 1)})
    for index in range(1, 200):
        if chance.random() < 0.02:
            definition.configure({*definition.records} ^ {chance.randint(1, MEMBERS)})
            silences.retain(definition.records.keys(), definition.records.keys())
        elif definition.records:
            posting = sorted(definition.records)
            if index > members and chance.random() < 0.9:
                posting = posting[: max(round(activity * len(posting)), 1)]
            author = chance.choice(posting)
            applied = max(index - chance.choice([1, 1, 1, 2, 3, 10, 100, -30]), 0)
            interval_ms, R = chance.choice([1000, 1000, 1000, 3000]), chance.choice([3, 3, 3, 4, 5])
            reached = definition.status(author, index, applied, interval_ms, R)
            silences.on_newest(author, definition.records[author])
            found = silences.on_counted(author, min(applied, index - 1), [*silences.intervals])
            assert sorted(found) == sorted(reached)
        if chance.random() < 0.05:
            silences = Silences()
            assert silences.restore(definition.records, definition.records.keys())
        for member, record in definition.records.items():
            assert silences.against(member) == record.silences
            assert silences.judges(member) == record.against


def test_snapshot_that_no_log_leads_to_is_noticed() -> None:
    # What is said after the newest status of member 2 is also said after that of member 1.
    records = {1: MemberRecord(index=1), 2: MemberRecord(index=2, silences={3: 2}), 3: MemberRecord(index=9)}
    assert not Silences().restore(records, [1, 2, 3])
    records[1].silences = {3: 2}
    assert Silences().restore(records, [1, 2, 3])
    records[1].against = 1
    assert not Silences().restore(records, [1, 2, 3])
    records[1] = MemberRecord(index=1, silences={3: 2**62})
    assert not Silences().restore(records, [1, 2, 3])


def test_only_what_counts_is_kept_however_many_statuses_there_are() -> None:
    silences, record = Silences(), MemberRecord(R=1000)
    silences.on_newest(2, MemberRecord(R=1000, index=1))
    tracemalloc.start()
    try:
        for index in range(2, 10_000):
            record.index = index
            silences.on_newest(1, record)
            silences.on_counted(1, index - 1, [record.interval_ms])
        assert silences.against(2) == {1: 1000}
        assert tracemalloc.get_traced_memory()[1] < 100_000, "a thousand numbers, not ten thousand"
        silences.on_newest(2, MemberRecord(R=1000, index=10_000))
        silences.on_counted(1, 9_999, [record.interval_ms])
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()
