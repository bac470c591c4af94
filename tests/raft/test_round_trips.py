"""What a leader measures of round trips, and the election time-out that it tells, in the preset ``i2p``."""

from __future__ import annotations

import pytest

from garlicfarm.round_trips import SLOT_MS, STEPS, WINDOW_MS, RoundTrips, Timeouts

LEAST, LONGEST = 20_000, 40_000
MIDDLE = LONGEST * STEPS[1] // 1000
A, B = 1, 2
MINUTE = 60_000


class Leader:
    """Sends to members A and B every 5 s, and tells what it finds as soon as it finds it."""

    def __init__(self, least: int = LEAST, longest: int = LONGEST, in_force: int = 0) -> None:
        self.now = 7_000_000
        self.trips = RoundTrips(least, longest, self.now)
        self.in_force = in_force
        self.told: list[tuple[float, int]] = []  # minutes since the election
        self._begun, self._seq = self.now, 0

    def send(self, member: int) -> int:
        self._seq += 1
        self.trips.on_sent(member, self._seq, self.now)
        return self._seq

    def trip(self, member: int, took_ms: int) -> None:
        self.trips.on_answered(member, self.send(member), self.now + took_ms)

    def look(self) -> None:
        wanted = self.trips.wanted_ms(self.in_force, self.now)
        if wanted:
            self.trips.on_told(wanted, self.now)
            self.in_force = wanted
            self.told.append(((self.now - self._begun) / MINUTE, wanted))

    def pass_minutes(self, minutes: float, **took_ms: int) -> None:
        """``A`` and ``B``: how long their round trips take; without, they do not answer."""
        end = self.now + round(minutes * MINUTE)
        while self.now < end:
            for name, member in (("A", A), ("B", B)):
                if name in took_ms:
                    self.trip(member, took_ms[name])
            self.now += SLOT_MS
            self.look()


def test_quick_round_trips_lower_it_by_a_step_each_ten_minutes() -> None:
    leader = Leader()
    leader.pass_minutes(60, A=100, B=1_000)
    assert leader.told == [(10, MIDDLE), (20, LEAST)]


@pytest.mark.parametrize(
    ("took_ms", "lowest"),
    [(3_000, LEAST), (3_001, MIDDLE), (4_242, MIDDLE), (4_243, LONGEST), (9_000, LONGEST)],
)
def test_slowest_member_decides_how_far_it_goes(took_ms: int, lowest: int) -> None:
    leader = Leader()
    leader.pass_minutes(40, A=500, B=took_ms)
    assert (leader.in_force or LONGEST) == lowest
    assert leader.trips.p99_ms(leader.now) == took_ms


def test_slow_round_trips_raise_it_at_once_and_by_all_that_is_needed() -> None:
    leader = Leader()
    leader.pass_minutes(30, A=1_000, B=1_000)
    leader.trip(A, 8_000)
    leader.now += SLOT_MS
    leader.look()
    assert leader.in_force == LEAST  # one is not yet a slow path
    leader.trip(A, 6_500)
    leader.look()
    assert leader.told[2:] == [(pytest.approx(30, abs=0.1), LONGEST)]


def test_raised_it_stays_until_ten_minutes_would_have_done_with_less() -> None:
    leader = Leader()
    leader.pass_minutes(30, A=1_000, B=1_000)
    leader.pass_minutes(1, A=8_000, B=1_000)
    leader.pass_minutes(5, A=1_000, B=1_000)
    leader.pass_minutes(0.2, A=8_000, B=1_000)
    leader.pass_minutes(40, A=1_000, B=1_000)
    _, _, raised, *lowered = leader.told
    assert raised[1] == LONGEST
    assert [ms for _, ms in lowered] == [MIDDLE, LEAST]
    first, second = [at for at, _ in lowered]
    assert first >= 46
    assert second == pytest.approx(first + 10)


def test_request_that_is_lost_counts_until_the_member_answers_another_one() -> None:
    leader = Leader()
    leader.pass_minutes(30, A=1_000, B=1_000)
    for _ in range(2):
        leader.send(A)
        leader.now += 8_000
        leader.trip(A, 500)  # on its next connection
        leader.now += SLOT_MS
    assert leader.trips.p99_ms(leader.now) == 8_500
    leader.look()
    assert leader.in_force == LONGEST


def test_late_answers_of_before_are_no_sample() -> None:
    leader = Leader()
    for _ in range(3):
        sent = leader.send(B)
        leader.now += SLOT_MS
        leader.trips.on_answered(B, sent - 1, leader.now)
        leader.trips.on_answered(9, sent, leader.now)
    assert leader.trips.p99_ms(leader.now) is None


def test_dead_member_is_not_a_slow_one_neither_while_it_is_dead_nor_when_it_is_back() -> None:
    leader = Leader()
    leader.pass_minutes(25, A=1_000, B=1_000)
    leader.send(B)
    leader.pass_minutes(30, A=1_000)
    assert leader.told[-1] == (20, LEAST)
    leader.trip(B, 500)
    leader.pass_minutes(30, A=1_000, B=1_000)
    assert leader.told[-1] == (20, LEAST)


def test_many_quick_answers_do_not_hide_two_slow_ones_of_five_seconds_each() -> None:
    leader = Leader()
    leader.pass_minutes(10, A=1_000)
    for slot in range(2):
        leader.trip(A, 4_900)
        for _ in range(500):
            leader.trip(A, 1)
        leader.now += (slot + 1) * SLOT_MS
    assert leader.trips.p99_ms(leader.now) == 4_900
    leader.pass_minutes(10.1, A=1_000)
    assert leader.trips.p99_ms(leader.now) == 1_000


def test_what_is_told_is_not_told_again_before_it_is_applied() -> None:
    leader = Leader()
    leader.trip(A, 1_000)
    leader.pass_minutes(10, A=1_000)
    assert leader.told == [(10, MIDDLE)]
    assert leader.trips.wanted_ms(0, leader.now) == 0
    leader.trip(A, 9_000)
    leader.now += SLOT_MS
    leader.trip(A, 9_000)
    leader.look()
    assert leader.trips.wanted_ms(MIDDLE, leader.now) == 0


def test_new_leader_keeps_what_is_in_force_until_it_has_measured() -> None:
    for in_force in (LEAST, MIDDLE, LONGEST):
        leader = Leader(in_force=in_force)
        leader.look()
        leader.pass_minutes(9.9, A=4_000, B=1_000)
        assert leader.told == ([] if in_force > LEAST else [(pytest.approx(0.2, abs=0.2), MIDDLE)])
    leader = Leader(in_force=LONGEST)
    leader.pass_minutes(60)
    assert leader.told == []


def test_bounds_of_the_leader_are_kept_whatever_the_log_says() -> None:
    too_low = Leader(in_force=5_000)
    too_low.look()
    assert too_low.told == [(0, LEAST)]
    too_high = Leader(in_force=90_000)
    too_high.pass_minutes(60, A=10, B=10)
    assert [ms for _, ms in too_high.told] == [MIDDLE, LEAST]
    between = Leader(in_force=30_000)
    between.pass_minutes(60, A=10, B=10)
    assert [ms for _, ms in between.told] == [MIDDLE, LEAST]


def test_where_the_bounds_are_the_same_nothing_is_measured_and_it_is_told_only_to_restore_it() -> None:
    fixed = Leader(least=1_500, longest=1_500)
    fixed.pass_minutes(60, A=1, B=9_000)
    assert (fixed.told, fixed.trips.p99_ms(fixed.now)) == ([], None)
    fixed = Leader(least=LONGEST, in_force=LEAST)
    fixed.pass_minutes(1, A=1)
    assert fixed.told == [(pytest.approx(0, abs=0.1), LONGEST)]


@pytest.mark.parametrize(
    ("told_ms", "least_ms", "upper_ms"),
    [
        (0, LEAST, LONGEST),
        (MIDDLE, LEAST, MIDDLE),
        (LEAST, LEAST, LEAST),
        (1, LEAST, LEAST),
        (3_600_000, LEAST, LONGEST),
        (LEAST, LONGEST, LONGEST),
    ],
)
def test_member_shortens_all_by_one_ratio_within_its_own_bounds(
    told_ms: int, least_ms: int, upper_ms: int
) -> None:
    timeouts = Timeouts(20_000, LONGEST, 12_000).shortened(told_ms, least_ms)
    assert timeouts == (upper_ms // 2, upper_ms, 12_000 * upper_ms // LONGEST)


def test_samples_are_of_a_bounded_time() -> None:
    leader = Leader()
    leader.trip(A, 9_000)
    leader.trip(A, 1)
    leader.now += SLOT_MS
    leader.trip(A, 9_000)
    assert leader.trips.p99_ms(leader.now) == 9_000
    assert leader.trips.p99_ms(leader.now + WINDOW_MS + 2 * SLOT_MS) is None
