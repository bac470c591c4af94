"""Whom to answer next: the FETCHes that a producer, a store or a member has accepted, in turns.

One range of each partition is kept for a requester. A FETCH that continues it extends it; one that asks for
the same again changes nothing; any other takes its place, because the requester has lost what it asked for
before. So a FETCH of 2^32 records costs no more than what exists, and a requester that asks for much does
not hold up the others.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from garlicfarm_plugin_dafka.codec import Fetch
from garlicfarm_plugin_dafka.reading import Partition

PAGE_RECORDS = 512
PAGE_BYTES = 1 << 20
"""How much is read and sent in one turn; one record at least."""
MAX_REQUESTERS = 1024
_MAX_RANGES = 4096
"""Of one requester."""


class Range(msgspec.Struct):
    """Records of a partition that ``requester`` waits for: from ``first`` up to ``end``, excluding it."""

    requester: str
    topic: str
    partition: str
    first: int
    end: int


class FetchQueue:
    """Ranges to answer, a page at a time: `turn`, then read and send a page, then `advance`."""

    def __init__(self) -> None:
        self._requesters: OrderedDict[str, OrderedDict[Partition, Range]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._requesters)

    def add(self, fetch: Fetch, first: int, end: int) -> bool:
        """Queue what exists of ``fetch``: from ``first`` up to ``end``, excluding it. False: too much is
        queued."""
        ranges = self._requesters.get(fetch.sender)
        if ranges is None:
            if len(self._requesters) >= MAX_REQUESTERS:
                return False
            ranges = self._requesters[fetch.sender] = OrderedDict()
        key = fetch.topic, fetch.partition
        queued = ranges.get(key)
        if queued is None:
            if len(ranges) >= _MAX_RANGES:
                return False
            ranges[key] = Range(fetch.sender, fetch.topic, fetch.partition, first, end)
        elif queued.first <= first <= queued.end:
            queued.end = max(queued.end, end)
        else:
            queued.first, queued.end = first, end
        return True

    def turn(self) -> Range | None:
        """The range that is to be answered next. It stays queued until `advance`."""
        if not self._requesters:
            return None
        requester, ranges = next(iter(self._requesters.items()))
        self._requesters.move_to_end(requester)
        key, found = next(iter(ranges.items()))
        ranges.move_to_end(key)
        return found

    def advance(self, turn: Range, first: int, upto: int) -> bool:
        """The records from ``first`` up to ``upto``, excluding it, were sent for ``turn``; none: there are
        no more.

        Returns whether that was all that the requester had asked for. It should be told the head then: C
        consumers fetch up to 100,000 records, and wait for a head before they fetch more.
        """
        if turn.first != first:  # another FETCH has moved it meanwhile
            return False
        turn.first = upto
        if first < upto < turn.end:
            return False
        ranges = self._requesters[turn.requester]
        del ranges[turn.topic, turn.partition]
        if not ranges:
            del self._requesters[turn.requester]
        return True
