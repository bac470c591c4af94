"""The judge of "never two": from what floodfills had, and whom the farm named, whether two members published.

A LeaseSet belongs to the term of a member: from the entry that names it to the next naming. A floodfill keeps
the LeaseSet with the newest date, so the newest ones, in the order in which they were first seen, must be of
terms in the order of the log. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """A look at a floodfill at ``at_s``, when its answer had come: it had the LeaseSet of ``owner`` that is
    dated ``published_s``, s since 1970."""

    at_s: float
    floodfill: int
    published_s: int
    owner: int


@dataclass(frozen=True, slots=True)
class Naming:
    """The entry at ``index`` named ``member``, which had not yet applied it at ``not_before_s``, on the clock
    of `Seen.at_s`: so what it published by then was of an earlier term."""

    index: int
    member: int
    not_before_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """``owners``: of the newest LeaseSets, in order, each once a term. ``publications``: how many LeaseSets
    there were. ``late``: how many of them were seen only after a newer one of another member: such a one is
    of no effect. ``violations``: a sentence for each."""

    owners: tuple[int, ...]
    publications: int
    late: int
    violations: tuple[str, ...]


def judge(seen: Iterable[Seen], namings: Iterable[Naming]) -> Verdict:
    """Each LeaseSet counts when it is first seen at any floodfill, and when a floodfill that had a newer one
    has it again. A violation is one of

    * a LeaseSet newer than all that were seen, of a member that was not named since the one before it;
    * two members' LeaseSets of which neither is the newer one, or whose dates overlap: one of an earlier term
      is dated within those of the later one, although it was not the newest when it was seen;
    * a floodfill that goes back to an older LeaseSet: its look-ups cannot be judged.
    """
    terms = sorted(namings, key=lambda each: each.index)
    first_date: dict[int, int] = {}  # by place in `owners`
    owners: list[int] = []
    violations: list[str] = []
    index = newest_s = late = 0
    at: dict[int, int] = {}  # the newest date at each floodfill
    known: set[tuple[int, int]] = set()
    for each in sorted(seen, key=lambda each: (each.at_s, each.published_s)):
        if each.published_s < at.get(each.floodfill, 0):
            violations.append(f"floodfill {each.floodfill} went back to an older LeaseSet: {each}")
        at[each.floodfill] = each.published_s
        if (each.owner, each.published_s) in known:
            continue
        known.add((each.owner, each.published_s))
        owner = owners[-1] if owners else None
        if each.published_s <= newest_s:
            if each.owner != owner:
                late += 1
                if each.published_s >= first_date[len(owners) - 1]:
                    violations.append(f"{each} is dated within the term of member {owner}")
            continue
        newest_s = each.published_s
        if each.owner == owner:
            continue
        term = _next_term(terms, index, each)
        if term is None:
            violations.append(f"{each} is newer than member {owner}'s, and its member was not named since")
        else:
            index = term.index
        first_date[len(owners)] = each.published_s
        owners.append(each.owner)
    return Verdict(tuple(owners), len(known), late, tuple(violations))


def _next_term(terms: Sequence[Naming], after: int, seen: Seen) -> Naming | None:
    """The first one after the index ``after`` to which a LeaseSet can belong."""
    return next(
        (
            term
            for term in terms
            if term.index > after and term.member == seen.owner and term.not_before_s <= seen.at_s
        ),
        None,
    )
