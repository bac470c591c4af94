"""The arithmetic of a history: flaps, hand-overs, periods, percentiles. Needs no Spark."""

from __future__ import annotations

import pytest

from garlicfarm_plugin_spark.period import FLAP_INTERVALS, Roles, date_of, percentiles, pieces

INTERVAL_MS = 1000


def followed(*states: tuple[int, int | None, set[int]]) -> list[tuple[bool, int | None]]:
    roles = Roles()
    return [roles.follow(time_ms, publisher, holders, INTERVAL_MS) for time_ms, publisher, holders in states]


def test_roles_of_a_handover_last_until_the_publisher_holds_alone() -> None:
    found = followed((0, 1, {1}), (500, 2, {1, 2}), (600, 2, {1, 2}), (2500, 2, {2}), (2600, 2, {2}))
    assert found == [(False, None), (False, None), (False, None), (False, 2000), (False, None)]


def test_roles_of_a_vacant_role_are_handed_over_at_once() -> None:
    assert followed((0, None, set()), (500, 2, {2}), (900, None, set()))[1:] == [(False, 0), (False, None)]


def test_roles_of_the_first_state_are_no_handover() -> None:
    """Nothing says when its publisher was named."""
    assert followed((0, 1, {1}), (100, 1, {1})) == [(False, None), (False, None)]


@pytest.mark.parametrize(
    ("held_ms", "is_flap"), [(FLAP_INTERVALS * INTERVAL_MS - 1, True), (FLAP_INTERVALS * INTERVAL_MS, False)]
)
def test_roles_back_after_fewer_intervals_than_ten_are_a_flap(held_ms: int, is_flap: bool) -> None:
    states = followed((0, 1, {1}), (50_000, 2, {2}), (50_000 + held_ms, 1, {1}))
    assert [flap for flap, _ in states] == [False, False, is_flap]


def test_roles_over_a_third_member_or_a_vacancy_are_no_flap() -> None:
    assert not any(flap for flap, _ in followed((0, 1, {1}), (1, 2, {2}), (2, 3, {3}), (3, 1, {1})))
    assert not any(flap for flap, _ in followed((0, 1, {1}), (1, None, set()), (2, 1, {1})))


def test_roles_stay_in_time_where_farm_time_goes_back() -> None:
    assert followed((0, 1, {1}), (5000, 2, {1, 2}), (1000, 2, {2}))[2] == (False, 0)


def test_pieces_are_cut_at_the_bounds_of_periods() -> None:
    assert list(pieces(5, 5, 10)) == []
    assert list(pieces(5, 9, 10)) == [(5, 4)]
    assert list(pieces(5, 30, 10)) == [(5, 5), (10, 10), (20, 10)]
    assert list(pieces(10, 31, 10)) == [(10, 10), (20, 10), (30, 1)]


def test_date_of_farm_time_is_in_utc() -> None:
    assert date_of(0) == "1970-01-01"
    assert date_of(1_800_000_000_000) == "2027-01-15"


def test_percentiles_count_each_value_by_its_weight() -> None:
    assert percentiles({5: 1}, (0, 0.5, 1)) == [5, 5, 5]
    assert percentiles({10: 1, 20: 1}, (0, 0.25, 0.5, 1)) == [10, 12.5, 15, 20]
    assert percentiles({10: 98, 20: 1, 30: 1}, (0.5, 0.99, 1)) == [10, pytest.approx(20.1), 30]
