"""What a member tests of the publisher's service, and when (D25)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from garlicfarm.i2p.encoding import encode
from garlicfarm.publishing.documents import OutsideReport
from garlicfarm.publishing.outside import fails
from garlicfarm.publishing.sensing import AT_ONCE, Sensing, Turn

LEAF, OTHER, CONTROL, SECOND = (bytes([place]) * 32 for place in range(4))
ONE = Turn(publisher=2, since=7, leaves=(LEAF,), controls=(CONTROL, SECOND))
Answers = Callable[[bytes, float], bool | None]


class Bench:
    """Each test takes ``test_s``, as a number or by what is tested and when it begins; ``answers`` says what
    comes of it."""

    def __init__(
        self,
        answers: Answers,
        turn: Turn | None = ONE,
        test_s: float | Callable[[bytes, float], float] = 1,
    ) -> None:
        self.sensing = Sensing()
        self.sensing.can_judge = True
        self.answers, self.turn = answers, turn
        self.test_s = test_s if callable(test_s) else lambda hash_, now_s: test_s
        self.now_ms = 0
        self.tested: list[tuple[float, bytes]] = []
        self.ends_ms: dict[int, int] = {}
        self.most_at_once = 0

    def run(self, until_s: float) -> OutsideReport | None:
        sensing, until_ms = self.sensing, round(until_s * 1000)
        while True:
            sensing.step(self.now_ms, self.turn)
            if self.now_ms >= until_ms:
                return sensing.report()
            for probe in sensing.probes.values():
                if probe.number not in self.ends_ms:
                    begun_s = probe.begun_ms / 1000
                    self.tested.append((begun_s, probe.hash))
                    self.ends_ms[probe.number] = self.now_ms + round(self.test_s(probe.hash, begun_s) * 1000)
            self.most_at_once = max(
                self.most_at_once, sum(not each.is_control for each in sensing.probes.values())
            )
            ends = {self.ends_ms[number]: number for number in sensing.probes}
            due_ms = [ms for ms in sensing.wake_ms() if ms > self.now_ms]
            self.now_ms = min([until_ms, *due_ms, *ends])
            if (number := ends.get(self.now_ms)) is not None:
                probe = sensing.probes[number]
                sensing.on_tested(number, self.answers(probe.hash, probe.begun_ms / 1000), self.now_ms)

    def times(self, hash_: bytes) -> list[float]:
        return [time for time, tested in self.tested if tested == hash_]


def down_from(second: float, *down: bytes) -> Answers:
    return lambda hash_, now_s: hash_ not in down or now_s < second


def test_service_that_answers_is_tested_once_a_minute_and_nothing_else_is() -> None:
    bench = Bench(down_from(1000, LEAF))
    assert bench.run(300) == OutsideReport(publisher=2, since=7, failed=0)
    assert bench.tested == [(60 * minute, LEAF) for minute in range(5)]
    assert bench.sensing.changes == 0


def test_service_that_has_never_answered_is_not_judged() -> None:
    """It may be one that waits for something else than a test."""
    bench = Bench(lambda hash_, now_s: hash_ != LEAF or now_s == 300)
    bench.sensing.can_judge = False
    assert bench.run(299) is None
    assert bench.times(LEAF) == [0, 10, 20, 30, 40, 50, 60, 120, 180, 240]
    assert bench.times(CONTROL) == [1, 32]  # in the first minute only
    assert bench.run(350) == OutsideReport(publisher=2, since=7, failed=0)
    report = bench.run(400)
    assert report is not None
    assert fails(report)


def test_service_that_does_not_answer_is_tested_every_10_s_with_a_control_each_half_minute() -> None:
    bench = Bench(down_from(100, LEAF))
    report = bench.run(185)
    assert bench.times(LEAF) == [0, 60, 120, 130, 140, 150, 160, 170, 180]
    assert bench.times(CONTROL) == [121, 152, 183]
    assert report == OutsideReport(publisher=2, since=7, failed=7, control=encode(CONTROL))
    assert bench.sensing.changes == 1


def test_third_failure_with_a_control_counts_against_the_publisher_and_one_answer_ends_it() -> None:
    bench = Bench(lambda hash_, now_s: hash_ != LEAF or not 100 < now_s < 145)
    for until_s, failed, changes in ((122, 1, 0), (132, 2, 0), (142, 3, 1), (152, 0, 2)):
        report = bench.run(until_s)
        assert report is not None
        assert (report.failed, bench.sensing.changes) == (failed, changes)
        assert fails(report) == (failed == 3)


def test_failure_in_the_first_minute_of_a_turn_does_not_count() -> None:
    bench = Bench(down_from(0, LEAF))
    assert bench.run(60) is None
    report = bench.run(85)
    assert report is not None
    assert (report.failed, fails(report)) == (3, True)


def test_member_that_reaches_nothing_has_no_control() -> None:
    bench = Bench(down_from(100, LEAF, CONTROL, SECOND))
    report = bench.run(400)
    assert report is not None
    assert (report.failed > 3, report.control, bench.sensing.changes) == (True, None, 0)
    assert {hash_ for _, hash_ in bench.tested} == {LEAF, CONTROL, SECOND}
    assert max(len(bench.times(control)) for control in (CONTROL, SECOND)) <= 16  # 10 s apart, in turn


def test_control_that_dies_is_replaced_before_its_word_is_too_old() -> None:
    bench = Bench(lambda hash_, now_s: now_s < (100 if hash_ == LEAF else 160 if hash_ == CONTROL else 10**6))
    report = bench.run(300)
    assert report is not None
    assert report.control == encode(SECOND)
    assert bench.sensing.changes == 1


def test_control_that_was_reached_over_a_minute_ago_shows_nothing() -> None:
    bench = Bench(lambda hash_, now_s: now_s < (100 if hash_ == LEAF else 130))
    bench.run(150)
    assert bench.sensing.changes == 1
    report = bench.run(200)
    assert report is not None
    assert (report.control, bench.sensing.changes) == (None, 2)


@pytest.mark.parametrize(("down", "failed"), [((LEAF,), 0), ((LEAF, OTHER), 4)])
def test_publisher_of_two_leaves_fails_where_neither_answers(down: tuple[bytes, ...], failed: int) -> None:
    two = Turn(publisher=2, since=7, leaves=(LEAF, OTHER), controls=(CONTROL,))
    report = Bench(down_from(100, *down), two).run(155)
    assert report is not None
    assert report.failed == failed


def test_router_that_cannot_test_says_nothing() -> None:
    bench = Bench(lambda hash_, now_s: None)
    assert bench.run(300) is None
    assert bench.times(LEAF) == [0, 60, 120, 180, 240]


def test_router_that_can_no_longer_test_takes_its_word_back() -> None:
    bench = Bench(lambda hash_, now_s: (now_s < 100 or hash_ != LEAF) if now_s < 145 else None)
    bench.run(145)
    assert bench.sensing.changes == 1
    report = bench.run(250)
    assert report is not None
    assert (fails(report), bench.sensing.changes) == (False, 2)


def test_another_turn_begins_with_nothing_and_a_late_answer_of_the_last_one_is_none() -> None:
    bench = Bench(down_from(0, LEAF))
    bench.run(100)
    bench.sensing.step(bench.now_ms, ONE)
    (late,) = bench.sensing.probes.values()
    bench.turn = Turn(publisher=3, since=9, leaves=(OTHER,), controls=(LEAF,))
    bench.sensing.step(bench.now_ms, bench.turn)
    assert [probe.hash for probe in bench.sensing.probes.values()] == [OTHER]
    bench.sensing.on_tested(late.number, True, bench.now_ms)
    assert bench.sensing.report() is None
    assert bench.run(110) == OutsideReport(publisher=3, since=9, failed=0)


def test_publisher_that_says_now_and_then_that_it_does_not_publish_gains_no_time() -> None:
    bench = Bench(down_from(0, LEAF))
    bench.run(75)
    bench.turn = Turn(publisher=2, since=7, leaves=(), controls=(CONTROL, SECOND))
    bench.run(90)
    bench.turn = ONE
    report = bench.run(105)
    assert report is not None
    assert fails(report)


def slow_where_it_fails(fails_from: float, fails_s: float = 20, answered_s: float = 2) -> Bench:
    def test_s(hash_: bytes, now_s: float) -> float:
        return fails_s if hash_ == LEAF and now_s >= fails_from else answered_s

    return Bench(down_from(fails_from, LEAF), test_s=test_s)


@pytest.mark.parametrize(
    ("fails_s", "begun", "told_s"),
    [(14, [120, 134, 144], 158), (20, [120, 135, 145], 165), (40, [120, 135, 145], 185)],
)
def test_next_test_begins_while_one_that_will_fail_is_under_way(
    fails_s: float, begun: list[float], told_s: float
) -> None:
    """The third has failed 25 s and one test after the first began."""
    bench = slow_where_it_fails(100, fails_s)
    bench.run(told_s - 0.001)
    assert bench.sensing.changes == 0
    report = bench.run(told_s)
    assert report is not None
    assert fails(report)
    assert bench.times(LEAF)[2:5] == begun


def test_three_tests_of_the_service_are_under_way_at_most() -> None:
    bench = slow_where_it_fails(100, 50)
    bench.run(400)
    assert bench.most_at_once == AT_ONCE
    assert bench.times(LEAF)[2:8] == [120, 135, 145, 170, 185, 195]


@pytest.mark.parametrize(("answered_s", "times"), [(14, [0, 60, 120]), (18, [0, 15, 75, 90])])
def test_service_whose_answers_take_long_is_tested_seldom_nevertheless(
    answered_s: float, times: list[float]
) -> None:
    bench = slow_where_it_fails(1000, answered_s=answered_s)
    assert bench.run(140) == OutsideReport(publisher=2, since=7, failed=0)
    assert bench.times(LEAF) == times
    assert bench.sensing.changes == 0


def test_answer_ends_the_tests_that_are_under_way() -> None:
    """One test is lost, and fails slowly; the next one is answered meanwhile."""

    def test_s(hash_: bytes, now_s: float) -> float:
        return 40 if now_s == 60 else 2

    bench = Bench(lambda hash_, now_s: now_s != 60, test_s=test_s)
    bench.run(76)
    assert [probe.hash for probe in bench.sensing.probes.values()] == [LEAF, CONTROL, LEAF]
    bench.run(78)
    assert [*bench.sensing.probes] == []
    assert bench.run(300) == OutsideReport(publisher=2, since=7, failed=0)
    assert bench.times(LEAF) == [0, 60, 75, 135, 195, 255]


def test_late_answer_of_an_older_test_ends_the_row() -> None:
    def test_s(hash_: bytes, now_s: float) -> float:
        return 30 if now_s == 60 else 2

    bench = Bench(lambda hash_, now_s: hash_ != LEAF or now_s <= 60, test_s=test_s)
    report = bench.run(89)
    assert (report.failed, bench.run(91).failed) == (2, 0)


def test_control_is_tested_beside_a_slow_test_of_the_service_one_at_a_time() -> None:
    bench = slow_where_it_fails(100, 40, answered_s=12)
    bench.answers = down_from(100, LEAF, CONTROL)
    report = bench.run(190)
    assert bench.times(CONTROL) == [135]
    assert bench.times(SECOND) == [147, 189]
    assert report is not None
    assert fails(report)
