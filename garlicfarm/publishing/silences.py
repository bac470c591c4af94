"""Whose statuses count against whom (point 1 of `application`), without a look at all members for each one.

A counted status at index i that names ``applied`` counts against the members whose newest status is at an
index up to its *reach*, the smaller of ``applied`` and i − 1; no status after it has such an index. So what
counts against a member, of one other's statuses, is how many of their reaches are not below the index of the
member's newest. Only reaches up to the oldest of these matter, and as many as the highest R in use.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping

from garlicfarm.publishing.fold_state import MemberRecord


class Silences:
    """Of the members that have posted: where their newest statuses are, and how far those of others reach."""

    def __init__(self) -> None:
        self._newest: dict[int, dict[int, list[tuple[int, int]]]] = {}
        """interval → R → (index of the newest status, member), ascending"""
        self._places: dict[int, tuple[int, int, int]] = {}
        """member → interval, R and index of its newest status"""
        self._reaches: dict[int, dict[int, list[int]]] = {}
        """member → interval → the highest reaches of its statuses that are counted for it, ascending"""

    @property
    def intervals(self) -> Collection[int]:
        """The intervals in use."""
        return self._newest.keys()

    def restore(self, records: Mapping[int, MemberRecord], members: Iterable[int]) -> bool:
        """Begin with what a snapshot says; False if no log leads to its ``silences`` and ``against``."""
        for member, record in records.items():
            if record.index:
                self.on_newest(member, record)
        for judge in members:
            own = self._reaches[judge] = {}
            # The later the newest status, the fewer statuses reach it.
            for member in sorted(self._places, key=lambda member: -self._places[member][2]):
                interval_ms, R, index = self._places[member]
                reaches = own.setdefault(interval_ms, [])
                reaches[:0] = [index] * (min(records[member].silences.get(judge, 0), R) - len(reaches))
        return all(
            record.silences == self.against(member) and record.against == self.judges(member)
            for member, record in records.items()
        )

    def on_newest(self, member: int, record: MemberRecord) -> None:
        """The member has a newer status; no other's counts against it now."""
        self.forget(member)
        place = self._places[member] = (record.interval_ms, record.R, record.index)
        insort(self._newest.setdefault(place[0], {}).setdefault(place[1], []), (record.index, member))

    def on_counted(self, judge: int, reach: int, intervals: Iterable[int]) -> list[int]:
        """A status of ``judge`` is counted for these intervals. Returns the members against which R of its
        statuses count now, and did not before."""
        own = self._reaches.setdefault(judge, {})
        if len(own) > len(self._newest):
            own = self._reaches[judge] = {each: own[each] for each in own.keys() & self._newest.keys()}
        found: list[int] = []
        for interval_ms in intervals:
            reaches, newest_by_R = own.setdefault(interval_ms, []), self._newest[interval_ms]
            place = bisect_right(reaches, reach)
            reaches.insert(place, reach)
            for R, newest in newest_by_R.items():
                first = len(reaches) - R  # of the R highest
                if 0 <= first <= place:
                    before = reaches[first - 1] if first else -1
                    begin, end = (
                        bisect_left(newest, (before + 1,)),
                        bisect_left(newest, (reaches[first] + 1,)),
                    )
                    found += [member for _, member in newest[begin:end] if member != judge]
            oldest = min(newest[0][0] for newest in newest_by_R.values())
            del reaches[: max(bisect_left(reaches, oldest), len(reaches) - max(newest_by_R))]
        return found

    def against(self, member: int) -> dict[int, int]:
        """Other member → its statuses that count against this one, at most R."""
        if member not in self._places:
            return {}
        interval_ms, R, index = self._places[member]
        counts: dict[int, int] = {}
        for judge, own in self._reaches.items():
            reaches = own.get(interval_ms, ())
            count = len(reaches) - bisect_left(reaches, index)
            if count and judge != member:
                counts[judge] = min(count, R)
        return counts

    def judges(self, member: int) -> int:
        """How many other members have R statuses that count against this one."""
        counts = self.against(member)
        return sum(count >= self._places[member][1] for count in counts.values())

    def retain(self, members: Collection[int], kept: Collection[int]) -> None:
        """The statuses of ``members`` alone count, and only against those ``kept``."""
        self._reaches = {judge: own for judge, own in self._reaches.items() if judge in members}
        for member in [member for member in self._places if member not in kept]:
            self.forget(member)

    def forget(self, member: int) -> None:
        """The member has no status."""
        if member in self._places:
            interval_ms, R, index = self._places.pop(member)
            newest_by_R = self._newest[interval_ms]
            newest = newest_by_R[R]
            del newest[bisect_left(newest, (index, member))]
            if not newest:
                del newest_by_R[R]
            if not newest_by_R:
                del self._newest[interval_ms]
