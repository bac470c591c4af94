"""What the index of a log knows of its entries' types."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from garlicfarm.errors import Compacted
from garlicfarm.storage import log_index
from garlicfarm.storage.log_index import LogIndex, Positions
from garlicfarm.wire.messages import ValueType


@pytest.mark.parametrize("seed", range(20))
def test_application_entries_are_counted_and_found_as_one_by_one(seed: int) -> None:
    rnd = random.Random(seed)
    first, length, share = rnd.randint(1, 5), rnd.randint(1, 60), rnd.random()
    is_application = {index: rnd.random() < share for index in range(first, first + length)}
    index, places = LogIndex(first), Positions()
    for number, yes in is_application.items():
        places.add(number, number << 8, 10, ValueType.APPLICATION if yes else ValueType.CONFIGURATION)
    index.append(places)
    last = first + length - 1
    for after in range(first - 1, last + 1):
        number = 0
        for upto in range(after, last + 1):
            if upto > after and is_application[upto]:
                number += 1
                assert index.application_entry(after, number) == upto
            assert index.application_entries(after, upto) == number
    index.drop(first)
    with pytest.raises(Compacted):
        index.application_entries(first - 1, last)
    with pytest.raises(Compacted):
        index.application_entry(first - 1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_surplus_is_that_of_a_naive_count_whatever_was_appended_truncated_and_dropped(seed: int) -> None:
    rnd = random.Random(seed)
    first = rnd.randint(1, 5)
    index, sizes = LogIndex(first), dict[int, int]()
    following = first
    for _ in range(60):
        kind = rnd.choice(("append", "append", "append", "truncate", "drop"))
        if kind == "append":
            places = Positions()
            for number in range(following, following + rnd.randint(1, 9)):
                sizes[number] = rnd.choice((0, 1, 10, 200))
                places.add(number, number << 8, sizes[number], ValueType.APPLICATION)
            index.append(places)
            following = max(sizes) + 1
        elif kind == "truncate" and sizes:
            following = rnd.randint(min(sizes), following)
            index.truncate(following)
            sizes = {number: size for number, size in sizes.items() if number < following}
        elif kind == "drop" and sizes:
            upto = rnd.randint(min(sizes), max(sizes))
            index.drop(upto)
            sizes = {number: size for number, size in sizes.items() if number > upto}
        if not sizes:
            continue
        upto, keep = rnd.randint(min(sizes), max(sizes)), rnd.randint(0, 30)
        keep_bytes = rnd.choice((0, 100, 1000, 10_000))
        kept = max(0, upto - keep)
        while sum(size for number, size in sizes.items() if kept < number <= upto) > keep_bytes:
            kept += 1
        found = index.surplus(upto, keep, keep_bytes)
        assert max(found, min(sizes) - 1) == max(kept, min(sizes) - 1)


class CountedSizes(array):  # type: ignore[type-arg]
    """Sizes of entries that count how many of them are read."""

    read = 0

    def __getitem__(self, which: Any) -> Any:
        found = super().__getitem__(which)
        self.read += len(found) if isinstance(which, slice) else 1
        return found


def test_surplus_reads_only_what_is_deleted_and_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    places, counted = Positions(), CountedSizes("I")
    for number in range(1, 10_011):
        places.add(number, number << 8, 10, ValueType.APPLICATION)

    class Counted(Positions):
        def __init__(self) -> None:
            super().__init__()
            self.sizes = counted

    monkeypatch.setattr(log_index, "Positions", Counted)
    index = LogIndex(1)
    index.append(places)
    assert index.surplus(10_005, 10_000, 1 << 30) == 5
    assert 0 < counted.read <= 10
