"""Violations that are planted are seen by the judge of "never two"; what is right passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.i2p.never_two import Naming, Seen, Verdict, judge

A, B = 1, 2
NAMINGS = (Naming(10, A, 0.0), Naming(20, B, 30.0), Naming(30, A, 60.0))
FAIR = (
    Seen(1.0, 5, 101, A),
    Seen(1.2, 6, 101, A),
    Seen(26.0, 5, 126, A),
    Seen(31.0, 5, 131, B),
    Seen(31.5, 6, 131, B),
    Seen(61.0, 6, 161, A),
    Seen(61.5, 5, 161, A),
)


def violations(*seen: Seen, namings: tuple[Naming, ...] = NAMINGS) -> tuple[str, ...]:
    return judge(seen, namings).violations


def test_publishers_that_take_turns_as_they_are_named_pass() -> None:
    assert judge(reversed(FAIR), reversed(NAMINGS)) == Verdict((A, B, A), 4, 0, ())


def test_member_that_publishes_again_without_being_named_again_is_seen() -> None:
    [found] = violations(*FAIR[:5], Seen(40.0, 6, 140, A), namings=NAMINGS[:2])
    assert "was not named since" in found


def test_member_that_publishes_before_it_has_applied_its_naming_is_seen() -> None:
    assert violations(*FAIR[:5], Seen(59.0, 6, 159, A))


def test_member_that_was_never_named_is_seen() -> None:
    assert violations(*FAIR, Seen(70.0, 5, 170, 3))


def test_lease_set_dated_within_the_term_of_another_member_is_seen_at_another_floodfill() -> None:
    [found] = violations(*FAIR[:4], Seen(32.0, 5, 140, B), Seen(33.0, 6, 135, A))
    assert "within the term of member 2" in found


def test_two_lease_sets_of_one_date_are_seen() -> None:
    assert violations(*FAIR[:4], Seen(32.0, 6, 131, A))


def test_older_lease_set_that_comes_late_to_another_floodfill_is_only_counted() -> None:
    verdict = judge([*FAIR[:2], FAIR[3], Seen(32.0, 6, 126, A)], NAMINGS)
    assert (verdict.late, verdict.violations) == (1, ())


def test_floodfill_that_goes_back_to_an_older_lease_set_is_seen() -> None:
    assert violations(*FAIR, Seen(63.0, 5, 126, A))


@pytest.mark.parametrize("missed", range(len(FAIR)))
def test_look_that_was_missed_makes_no_violation(missed: int) -> None:
    assert not violations(*FAIR[:missed], *FAIR[missed + 1 :])


def test_members_that_were_named_and_never_published_are_passed_over() -> None:
    namings = (NAMINGS[0], Naming(15, 3, 20.0), *NAMINGS[1:])
    assert not violations(*FAIR, namings=namings)
    assert violations(
        *(replace(each, owner=3) if each.owner == A else each for each in FAIR), namings=namings
    )
