"""Whether a node's wall clock is right, by what the statuses, logins and routers of a farm have shown."""

from __future__ import annotations

import random

import pytest

from garlicfarm.publishing.orders import ClockReading
from garlicfarm.publishing.own_clock import OwnClock, rough_time

EPOCH_MS = 1_800_000_000_000
INTERVAL_MS = 30_000
HOUR_MS = 3_600_000


class Bench:
    """Member 1 among others, each of which posts once an interval, in turn. All times are ms of the true
    time since ``EPOCH_MS``; ``off``: by how much each member's clock is ahead of that."""

    def __init__(self, others: int = 2, delay_ms: int = 500, interval_ms: int = INTERVAL_MS) -> None:
        self.clock = OwnClock()
        self.off = dict.fromkeys(range(1, others + 2), 0)
        self.delay_ms = delay_ms
        self.interval_ms = interval_ms
        self.now_ms = 0
        self.recent = [*range(2, others + 2)]
        self.index = 0

    def post(self, member: int, applied: int | None = None, late_ms: int = 0) -> None:
        """It begins a status now, which is applied here a delay later, or even later."""
        self.index += 1
        begun_ms, applied = self.now_ms, self.index - 1 if applied is None else applied
        self.now_ms += self.delay_ms + late_ms
        if member == 1:
            self.clock.on_own_status(self.index, begun_ms)
        else:
            date_ms = EPOCH_MS + begun_ms + self.off[member]
            self.clock.on_status(member, self.index, date_ms, applied, self.now_ms)
        self.step()

    def step(self) -> bool:
        wall_ms = EPOCH_MS + self.now_ms + self.off[1]
        was_off = self.clock.is_off
        has_changed = self.clock.step(self.now_ms, wall_ms, self.recent)
        assert has_changed == (self.clock.is_off != was_off)
        return self.clock.is_off

    def turn(self, count: int = 1) -> bool:
        for _ in range(count):
            began_ms = self.now_ms
            for position, member in enumerate(self.off):
                self.now_ms = max(self.now_ms, began_ms + position * self.interval_ms // (len(self.off) + 1))
                self.post(member)
            self.now_ms = max(self.now_ms, began_ms + self.interval_ms)
        return self.step()

    def ask_router(self, off_ms: int, took_ms: int = 2, publisher: int = 0) -> None:
        asked_ms = EPOCH_MS + self.now_ms + self.off[1]
        date_ms = max(0, EPOCH_MS + self.now_ms + off_ms)
        self.now_ms += took_ms
        wall_ms = EPOCH_MS + self.now_ms + self.off[1]
        told = ClockReading(date_ms=date_ms, asked_ms=asked_ms, answered_ms=wall_ms)
        self.clock.on_router(publisher, told, self.now_ms, wall_ms)


@pytest.mark.parametrize("hours", [-7, -2, 2, 7, 24 * 365 * 30])
@pytest.mark.parametrize("others", [2, 3, 4])
def test_clock_that_is_set_by_hours_is_off_at_once_until_it_is_set_back(others: int, hours: int) -> None:
    bench = Bench(others)
    assert not bench.turn(3)
    bench.off[1] = hours * HOUR_MS
    assert bench.step()  # no status has come since
    assert abs(bench.clock.farm_ms - hours * HOUR_MS) < INTERVAL_MS
    assert bench.turn(3)
    bench.off[1] = 0
    assert not bench.step()
    assert not bench.turn(3)


@pytest.mark.parametrize(("off_ms", "word"), [(180_000, "ahead of"), (-180_000, "behind")])
def test_new_process_finds_that_its_clock_is_off_within_two_intervals(off_ms: int, word: str) -> None:
    bench = Bench()
    bench.off[1] = off_ms
    assert bench.turn(2)
    text = rough_time(abs(bench.clock.farm_ms))
    assert bench.clock.problem == f"is at least {text} {word} the farm's: correct it"
    assert text in ("2 min", "3 min")


def test_clock_that_is_behind_by_little_more_than_the_limit_is_off_one_below_is_not() -> None:
    for off_ms, expected in ((-61_000, True), (-59_000, False)):
        bench = Bench()
        bench.off[1] = off_ms
        assert bench.turn(3) is expected


def test_clock_that_is_ahead_is_off_by_the_limit_and_an_interval() -> None:
    for off_ms, expected in ((60_000 + INTERVAL_MS, True), (59_000, False)):
        bench = Bench()
        bench.off[1] = off_ms
        assert bench.turn(3) is expected


@pytest.mark.parametrize("interval_ms", [INTERVAL_MS, HOUR_MS])
def test_statuses_that_come_late_say_nothing_however_late(interval_ms: int) -> None:
    """A member that was cut off, asleep or behind applies old statuses, and farm time lags with them."""
    bench = Bench(interval_ms=interval_ms)
    bench.turn(2)
    index = bench.index
    for late_ms in (10 * HOUR_MS, HOUR_MS, 90_000, 0):
        for member in bench.recent:
            bench.post(member, applied=index, late_ms=late_ms)
            assert (bench.clock.is_off, bench.clock.farm_ms) == (False, 0)


@pytest.mark.parametrize("seed", range(300))
def test_right_clock_is_never_off_and_a_wrong_one_soon(seed: int) -> None:
    """With any delays, phases and losses; one member's clock, not always this one's, shows anything."""
    rng = random.Random(seed)
    bench = Bench(rng.randint(2, 5), interval_ms=rng.choice((5_000, 30_000, 300_000)))
    liar = rng.choice([*bench.off])
    off_ms = rng.choice((-1, 1)) * (61_000 + bench.interval_ms + rng.randint(0, 10 ** rng.randint(1, 13)))
    applied = 0
    for turn in range(12):
        bench.delay_ms = rng.choice((0, 100, 3_000))
        if turn == 3:
            bench.off[liar] = off_ms
        for member in rng.sample([*bench.off], len(bench.off)):
            bench.now_ms += bench.interval_ms // len(bench.off)
            if rng.random() < 0.2 and turn < 9:
                bench.now_ms += rng.randint(0, 10 * bench.interval_ms)
            late_ms = rng.choice((0, 0, 5_000, 500_000)) if turn < 9 else 0
            applied = max(applied, bench.index - rng.choice((0, 1, 5)))
            bench.post(member, applied if rng.random() < 0.9 or turn >= 9 else 0, late_ms)
            assert liar == 1 or not bench.clock.is_off
            assert turn < 5 or liar != 1 or off_ms > 0 or bench.clock.is_off
    assert bench.turn(2) is (liar == 1)


@pytest.mark.parametrize("others", [2, 3, 4, 5])
def test_clock_is_off_if_more_than_half_of_all_clocks_say_so(others: int) -> None:
    """So a majority of wrong clocks keeps right ones from being offered, and no minority does."""
    for wrong in range(others + 1):
        bench = Bench(others)
        for member in bench.recent[:wrong]:
            bench.off[member] = 10 * HOUR_MS
        assert bench.turn(2) is (2 * wrong > others + 1)


def test_wrong_clocks_that_disagree_do_not_outvote_a_right_one() -> None:
    bench = Bench(4)
    bench.off |= {2: HOUR_MS, 3: -HOUR_MS, 4: 2 * HOUR_MS, 5: -7 * HOUR_MS}
    assert not bench.turn(3)


def test_clock_that_was_off_agrees_again_below_half_of_the_limit() -> None:
    bench = Bench()
    bench.off[1] = -70_000
    assert bench.turn(2)
    for off_ms, expected in ((-58_000, True), (-32_000, True), (-28_000, False), (-58_000, False)):
        bench.off[1] = off_ms
        assert bench.step() is expected
        assert bench.turn(3) is expected


def test_another_member_whose_clock_is_corrected_is_believed_again_soon() -> None:
    bench = Bench()
    bench.off |= {2: 180_000, 3: 180_000}
    assert bench.turn(2)
    bench.off |= {2: 0, 3: 0}
    assert not bench.turn(2)


def test_others_that_are_silent_or_gone_say_nothing() -> None:
    bench = Bench()
    bench.off[1] = HOUR_MS
    assert bench.turn(2)
    bench.recent = []
    assert not bench.step()
    bench.recent = [2, 3]
    assert bench.step()
    bench.clock.retain({1})
    assert not bench.step()


# Two members, or one


@pytest.mark.parametrize("off", [1, 2])
def test_of_two_clocks_neither_is_trusted_where_no_router_tells_a_date(off: int) -> None:
    bench = Bench(1)
    bench.off[off] = 3 * 60_000 + INTERVAL_MS
    assert bench.turn(2)
    word = "ahead of" if off == 1 else "behind"
    assert bench.clock.problem.endswith(f" {word} member 2's: correct the wrong one")


def test_router_shows_which_of_two_clocks_is_wrong() -> None:
    bench = Bench(1)
    bench.off[2] = HOUR_MS
    bench.ask_router(0)
    assert not bench.turn(2)
    assert bench.clock.farm_ms == 0
    bench.off |= {1: HOUR_MS, 2: 0}
    bench.ask_router(0)
    assert bench.turn(2)


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("off_ms", [61_000, -61_000, -(10**13), 10**18])
def test_router_whose_clock_differs_is_enough(others: int, off_ms: int) -> None:
    """Whichever is wrong, what this member publishes through it may be refused."""
    bench = Bench(others)
    bench.ask_router(off_ms)
    assert bench.turn(3)
    word = "behind" if off_ms > 0 else "ahead of"
    assert f" {word} its router's: correct the wrong one" in bench.clock.problem
    bench.ask_router(0)
    assert not bench.step()


def test_router_that_answers_late_or_while_the_clock_is_set_says_nothing() -> None:
    bench = Bench(0)
    bench.ask_router(200_000, took_ms=150_000)
    assert not bench.step()
    told = ClockReading(date_ms=EPOCH_MS + HOUR_MS, asked_ms=EPOCH_MS + HOUR_MS, answered_ms=EPOCH_MS)
    bench.clock.on_router(0, told, bench.now_ms, EPOCH_MS)
    assert not bench.step()


def test_router_that_is_gone_says_nothing() -> None:
    bench = Bench(0)
    bench.ask_router(HOUR_MS)
    assert bench.step()
    bench.clock.on_router(0, None, bench.now_ms, EPOCH_MS)
    assert not bench.step()


def test_same_difference_told_after_both_clocks_were_set_is_of_now() -> None:
    bench = Bench(0)
    bench.ask_router(0)
    bench.off[1] = HOUR_MS  # and so is the router's, which runs on the same machine
    assert bench.step()
    bench.now_ms += 10_000
    bench.ask_router(HOUR_MS)
    assert not bench.step()


def test_worst_of_several_routers_counts() -> None:
    bench = Bench(0)
    bench.ask_router(0, publisher=0)
    bench.ask_router(-HOUR_MS, publisher=1)
    assert bench.step()


# Dates in logins


def test_date_of_a_login_is_as_good_as_a_status() -> None:
    bench = Bench(1)
    bench.off[1] = 61_000
    wall_ms = EPOCH_MS + bench.off[1]
    told = ClockReading(date_ms=EPOCH_MS + 100, asked_ms=wall_ms, answered_ms=wall_ms + 300)
    bench.now_ms = 300
    bench.clock.on_login(2, told, 300, wall_ms + 300)
    assert bench.step()
    assert bench.clock.farm_ms == 60_900
    bench.now_ms, bench.off[1] = 400, -61_000
    bench.clock.on_login(2, told, 400, EPOCH_MS + 400 - 61_000)  # the same login as before
    assert bench.step()
    assert bench.clock.farm_ms == -60_800
    bench.off[1] = 0
    assert not bench.step()


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (1999, "1999 ms"), (61_000, "61 s"), (180_000, "3 min"), (10**13, "115741 days")],
)
def test_times_are_told_roughly(ms: int, text: str) -> None:
    assert rough_time(ms) == text
