"""The recent members in the order in which they may be named (points 2 to 5 of `application`), kept while one
after the other changes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter

import msgspec

_GROUPS = 4
"""Of point 5. Those of members that report ``meta.publishing`` come before those of the others."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A recent member, by its newest status and the policy."""

    date: int
    has_leaves: bool
    is_willing: bool
    """its mode is not ``off``"""
    can_publish: bool
    """it reports ``meta.publishing``"""
    group: tuple[bool, bool]
    score: int
    reported: int
    """the set of its figures (`scoring`)"""

    @property
    def rank(self) -> int | None:
        """The rank of its group; None: it is not willing."""
        if not self.is_willing:
            return None
        return _GROUPS * (not self.can_publish) + 2 * self.group[0] + self.group[1]


class Candidates:
    """The recent members. ``recent``: their ids, ascending; another list after each change."""

    def __init__(self) -> None:
        self.recent: list[int] = []
        self._known: dict[int, tuple[Candidate, int | None]] = {}
        """member → what is known of it, and the rank of its group"""
        self._dates: list[int] = []
        self._with_leaves = 0
        self._reported: Counter[int] = Counter()
        """each set of figures, and how many report it"""
        self._fronts: list[list[tuple[int, int]]] = [[] for _ in range(2 * _GROUPS)]
        """(−score, id) of the willing, ascending"""

    def set(self, member: int, candidate: Candidate | None) -> None:
        """None: the member is not recent."""
        known = self._known.pop(member, None)
        if known is not None:
            before, rank = known
            del self._dates[bisect_left(self._dates, before.date)]
            self._with_leaves -= before.has_leaves
            self._reported -= Counter([before.reported])
            if rank is not None:
                front = self._fronts[rank]
                del front[bisect_left(front, (-before.score, member))]
        if candidate is not None:
            rank = candidate.rank
            self._known[member] = candidate, rank
            insort(self._dates, candidate.date)
            self._with_leaves += candidate.has_leaves
            self._reported[candidate.reported] += 1
            if rank is not None:
                insort(self._fronts[rank], (-candidate.score, member))
        if (known is None) != (candidate is None):
            self.recent = sorted(self._known)

    def reported(self) -> int:
        """The set of the figures that any of them reports."""
        figures = 0
        for each in self._reported:
            figures |= each
        return figures

    def middle_date(self) -> int | None:
        """The lower median of their dates, None if there are none."""
        return self._dates[(len(self._dates) - 1) // 2] if self._dates else None

    def best(self) -> int | None:
        """The eligible member of the foremost group with the highest score, the lowest id among equals."""
        foremost = self._foremost
        return None if foremost is None else self._fronts[foremost][0][1]

    def is_in_front(self, member: int | None) -> bool:
        """Whether it is eligible and of the foremost group."""
        return member in self._known and self._foremost == self._known[member][1] is not None

    def is_eligible(self, member: int | None) -> bool:
        foremost = self._foremost
        if foremost is None or member not in self._known:
            return False
        rank = self._known[member][1]
        return rank is not None and rank // _GROUPS == foremost // _GROUPS

    def has_other_unsanctioned(self, member: int) -> bool:
        """Whether another eligible member than this one is not sanctioned."""
        foremost = self._foremost
        if foremost is None:
            return False
        first = foremost - foremost % _GROUPS
        fronts = self._fronts[first : first + _GROUPS // 2]
        return any(other != member for front in fronts for _, other in front[:2])

    def eligible(self) -> list[int]:
        """The eligible members, ascending."""
        return [member for member in self.recent if self.is_eligible(member)]

    def best_first(self) -> list[int]:
        """The eligible members: by group, score (highest first) and id."""
        foremost = self._foremost
        if foremost is None:
            return []
        first = foremost - foremost % _GROUPS
        return [member for front in self._fronts[first : first + _GROUPS] for _, member in front]

    @property
    def _foremost(self) -> int | None:
        if not self._with_leaves:
            return None
        for rank, front in enumerate(self._fronts):
            if front:
                return rank
        return None
