"""When a member posts: every interval, and news out of turn; what may be committed is posted again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from garlicfarm.publishing.farm_queries import FarmQueries
from garlicfarm.publishing.lease import Lease
from garlicfarm.publishing.status_turns import RETRY_MS, News, StatusTurns

INTERVAL_S = 30
WITHDRAWN = ("withdrawn", 1)


class Bench:
    """A member whose figures come at once unless ``measures`` is False, and each of whose posts is committed
    at once and applied, unless ``outcomes`` says otherwise, one event for each."""

    def __init__(self, *outcomes: str) -> None:
        self.fold = SimpleNamespace(interval_ms=INTERVAL_S * 1000, R=3, last=0, has_leases=False)
        self.fold.last_sequence = lambda member: self.fold.last
        self.lease = Lease()
        self.turns = StatusTurns(cast(FarmQueries, self.fold), 1, self.lease)
        self.committed = b""  # the entry of the newest status, as the fold has it
        self.fold.newest_entry = lambda member: self.committed
        self.outcomes = list(outcomes)
        self.measures = self.is_confirmed = self.counts = True
        self.news: News = frozenset()
        self.now_ms = 0
        self.applied = 1
        self.posted: list[tuple[float, int]] = []
        self.measured: list[float] = []

    def sleep(self, seconds: float) -> None:
        end_ms = self.now_ms + round(1000 * seconds)
        while True:
            self.settle()
            if self.now_ms == end_ms:
                return
            self.now_ms = min([*(ms for ms in self.turns.wake_ms() if ms > self.now_ms), end_ms])

    def settle(self) -> None:
        turns, now_ms = self.turns, self.now_ms
        number = -1
        while True:
            event = turns.due(now_ms, self.applied, self.news, is_confirmed=self.is_confirmed)
            if event in ("confirmed", "due", "news"):
                turns.begin(now_ms, now_ms, self.applied, self.news)
            if event is not None:
                turns.go(event, now_ms)
            if turns.number == number or turns.state not in ("measuring", "posting"):
                if event is None:
                    return
                continue
            if turns.state == "measuring":
                self.measured.append(now_ms / 1000)
                if not self.measures:
                    return
                turns.go("measured", now_ms)
            number = turns.number
            self.post(number)

    def post(self, number: int) -> None:
        turns, now_ms = self.turns, self.now_ms
        sequence = turns.sequence if turns.begun is self.begun else turns.next_sequence(now_ms)
        self.begun = turns.begun
        self.posted.append((now_ms / 1000, sequence))
        match self.outcomes.pop(0) if self.outcomes else "committed":
            case "committed":
                self.applied += 1
                self.fold.last = sequence if self.counts else self.fold.last
                turns.on_committed(number, self.applied, now_ms)
            case "refused":
                turns.go("refused", now_ms)
            case _:
                turns.go("failed", now_ms)

    begun: object = None

    def times(self) -> list[float]:
        return [at for at, _ in self.posted]


def test_statuses_come_an_interval_apart() -> None:
    bench = Bench()
    bench.sleep(3 * INTERVAL_S + 1)
    assert bench.times() == bench.measured == [0, 30, 60, 90]
    assert bench.turns.turns == 4


def test_status_of_unknown_outcome_is_posted_again_until_it_is_known_and_the_next_is_not_closer() -> None:
    bench = Bench(*["failed"] * 100)  # more than an interval long
    bench.sleep(49.9)
    assert bench.lease.expires_ms is None
    bench.sleep(100)
    assert {sequence for _, sequence in bench.posted[:101]} == {bench.posted[0][1]}
    assert bench.times()[100:] == [50, 50, 80, 110, 140]  # one was due while the first was posted again
    assert bench.times()[1] == RETRY_MS / 1000


def test_refused_status_is_replaced_by_the_next_one() -> None:
    bench = Bench("refused")
    bench.sleep(1)
    assert bench.lease.expires_ms is None
    bench.sleep(INTERVAL_S)
    assert bench.times() == [0, 30]
    assert bench.lease.expires_ms is not None


def test_status_that_the_fold_skips_begins_no_lease_and_tells_nothing() -> None:
    bench = Bench()
    bench.counts, bench.news = False, frozenset({WITHDRAWN})
    bench.sleep(1)
    assert (bench.lease.expires_ms, bench.turns.told) == (None, frozenset())
    bench.counts = True
    bench.sleep(INTERVAL_S)
    assert bench.lease.expires_ms == 30_000 + 45_000  # from when the status was begun
    assert bench.turns.told == {WITHDRAWN}


def test_sequence_goes_on_from_the_log_although_the_clock_was_set_back() -> None:
    turns = Bench().turns
    assert turns.next_sequence(1000) == 1000
    assert turns.next_sequence(999) == 999  # that one was never committed: it must not be gone on from
    bench = Bench()
    bench.fold.last = 5000
    assert bench.turns.next_sequence(1000) == 5001


def test_interval_that_is_made_longer_or_shorter_leaves_no_gap_between_leases() -> None:
    bench = Bench()
    bench.sleep(INTERVAL_S + 10)
    bench.fold.interval_ms = 3_600_000  # the last status named 30 s: its lease is 45 s long
    bench.sleep(40)
    assert bench.times() == [0, 30, 60]
    assert bench.lease.expires_ms == 60_000 + 5_400_000
    bench.sleep(3600)
    assert bench.times()[3:] == [3660]
    bench.fold.interval_ms = 1_000
    bench.sleep(10)
    assert bench.times()[4:] == [3680, *range(3680, 3691)]  # one was due long before


def test_first_status_waits_for_the_farm_and_until_no_publisher_is_in_doubt() -> None:
    bench = Bench()
    bench.applied, bench.is_confirmed = 0, False
    bench.sleep(1)
    assert bench.turns.state == "alone"
    bench.applied = 1
    bench.sleep(6)
    assert bench.turns.state == "confirming"
    bench.is_confirmed = True
    bench.sleep(INTERVAL_S + 1)
    assert bench.times() == [7, 37]
    bench.is_confirmed = False  # only the first one
    bench.sleep(INTERVAL_S)
    assert bench.times() == [7, 37, 67]


def test_news_are_posted_at_once_and_once_and_leave_the_turns_alone() -> None:
    bench = Bench()
    bench.sleep(10)
    bench.news = frozenset({WITHDRAWN})
    bench.sleep(5)
    bench.news |= {("released", 1)}
    bench.sleep(2 * INTERVAL_S)
    assert bench.times() == [0, 10, 15, 30, 60]
    assert bench.measured == [0, 30, 60]
    assert bench.turns.turns == 3


def test_news_interrupt_what_is_measured() -> None:
    bench = Bench()
    bench.measures = False
    bench.sleep(1)
    assert bench.posted == []
    bench.news = frozenset({WITHDRAWN})
    bench.sleep(1)
    assert bench.times() == [1]
    assert bench.lease.expires_ms == 1000 + 45_000  # it was begun anew


def test_news_wait_for_the_outcome_of_the_status_before() -> None:
    bench = Bench(*["failed"] * 10)
    bench.sleep(1)
    bench.news = frozenset({WITHDRAWN})
    bench.sleep(20)
    assert len({sequence for _, sequence in bench.posted[:11]}) == 1
    assert bench.times()[10:] == [5, 5]


@pytest.mark.parametrize(("at_s", "next_s"), [(26.9, 30), (27, 60)])
def test_news_in_the_last_tenth_of_an_interval_take_the_place_of_the_next_status(
    at_s: float, next_s: float
) -> None:
    bench = Bench()
    bench.sleep(at_s)
    bench.news = frozenset({WITHDRAWN})
    bench.sleep(INTERVAL_S + 10)
    assert bench.times()[:3] == [0, at_s, next_s]


def test_status_of_an_earlier_process_that_has_the_same_sequence_begins_no_lease() -> None:
    bench = Bench()
    bench.committed = b"that of the process before"
    bench.news = frozenset({("released", 3)})
    bench.sleep(1)
    assert bench.fold.last == bench.turns.sequence
    assert bench.lease.expires_ms is None
    assert not bench.turns.told
