"""What an entry costs does not grow with the farm: counted in calls, not in time."""

from __future__ import annotations

import sys

from garlicfarm.publishing.fold import PublisherFold
from tests.publishing.posting import Posting
from tests.publishing.scripted_log import configuration


def calls_per_entry(members: int) -> float:
    """Of the last two statuses of each."""
    posting = Posting(range(1, members + 1), 1, keep=True)
    while len(posting.entries) < 5 * members:
        posting.step()
    farm = PublisherFold("farm")
    farm.configure(0, configuration(*range(1, members + 1)))
    calls, begin = 0, 3 * members

    def count(frame: object, event: str, function: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    for index, entry in enumerate(posting.entries, 1):
        if index > begin:
            sys.setprofile(count)
        farm.apply(index, 1, entry)
        sys.setprofile(before)
    assert farm.skipped == {}
    return calls / (len(posting.entries) - begin)


def test_entry_takes_as_many_calls_in_a_large_farm_as_in_a_small_one() -> None:
    assert calls_per_entry(128) < 1.1 * calls_per_entry(4)
