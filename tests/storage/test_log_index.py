"""What the index of a log knows of its entries' types."""

from __future__ import annotations

import random

import pytest

from garlicfarm.errors import Compacted
from garlicfarm.storage.log_index import LogIndex, Places
from garlicfarm.wire.messages import ValueType


@pytest.mark.parametrize("seed", range(20))
def test_application_entries_are_counted_and_found_as_one_by_one(seed: int) -> None:
    rnd = random.Random(seed)
    first, length, share = rnd.randint(1, 5), rnd.randint(1, 60), rnd.random()
    is_application = {index: rnd.random() < share for index in range(first, first + length)}
    index, places = LogIndex(first), Places()
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
