"""What a member tests of the publisher's service, and when (D25)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from garlicfarm.i2p.encoding import encode
from garlicfarm.publishing.documents import OutsideReport
from garlicfarm.publishing.outside import fails
from garlicfarm.publishing.sensing import Sensing, Turn

LEAF, OTHER, CONTROL, SECOND = (bytes([place]) * 32 for place in range(4))
ONE = Turn(publisher=2, since=7, leaves=(LEAF,), controls=(CONTROL, SECOND))
Answers = Callable[[bytes, float], bool | None]


class Bench:
    """Each test takes ``test_s``; ``answers`` says what comes of it."""

    def __init__(self, answers: Answers, turn: Turn | None = ONE, test_s: float = 1) -> None:
        self.sensing = Sensing()
        self.sensing.can_judge = True
        self.answers, self.turn, self.test_s = answers, turn, test_s
        self.now_ms = 0
        self.tested: list[tuple[float, bytes]] = []

    def run(self, until_s: float) -> OutsideReport | None:
        while self.now_ms < until_s * 1000:
            self.sensing.step(self.now_ms, self.turn)
            if (probe := self.sensing.probe) is not None:
                self.tested.append((self.now_ms / 1000, probe.hash))
                self.now_ms += round(self.test_s * 1000)
                answered = self.answers(probe.hash, probe.begun_ms / 1000)
                self.sensing.on_tested(probe.number, answered, self.now_ms)
            else:
                due = [due_ms for due_ms in self.sensing.wake_ms() if due_ms > self.now_ms]
                self.now_ms = min([round(until_s * 1000), *due])
        self.sensing.step(self.now_ms, self.turn)
        return self.sensing.report()

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
    assert bench.tested == [(60 * minute, LEAF) for minute in range(5)]
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
    late = bench.sensing.probe
    assert late is not None
    bench.turn = Turn(publisher=3, since=9, leaves=(OTHER,), controls=(LEAF,))
    bench.sensing.step(bench.now_ms, bench.turn)
    assert bench.sensing.probe is not None
    assert bench.sensing.probe.hash == OTHER
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


def test_slow_tests_still_have_a_control() -> None:
    bench = Bench(down_from(100, LEAF), test_s=20)
    report = bench.run(240)
    assert report is not None
    assert fails(report)
    assert bench.sensing.changes == 1
