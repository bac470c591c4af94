"""What counts in the score since level 3: a figure that no recent member reports is left out for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from garlicfarm.publishing.documents import RouterStatus, StatusDocument
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.policy import CONSECUTIVE_LEADS
from garlicfarm.publishing.scoring import FULL, MIDDLE
from tests.mutants import Mutant, planted, read_mutants
from tests.publishing.scripted_log import status
from tests.publishing.test_fold_leases import LeaseLog

RULE = "what counts in the score"
MUTANTS = [one for one in read_mutants("publishing").values() if one.rule == RULE]
DAY_MS = 86_400_000


class FigureLog(LeaseLog):
    """A farm at level 3 whose members report only what a test gives them."""

    restores = False

    def __init__(self, *members: int, level: int = 3) -> None:
        super().__init__(*members, level=level)

    def report(self, member: int, second: float, **figures: Any) -> int:
        """A status with only these figures of the router, and without leaves' tunnels."""
        leaf: StatusDocument = status(member, 0)
        leaves = tuple(type(one)(destination=one.destination) for one in leaf.destinations or ())
        known = {"publishing": member == self.farm.publisher, "destinations": leaves}
        return self.post(member, second, router=RouterStatus(**figures), **known)

    @property
    def scores(self) -> dict[int, int]:
        return self.farm.scores()

    @property
    def counted(self) -> Any:
        return self.farm.ranking()["counted"]


def test_part_that_no_member_reports_is_left_out_and_the_others_share_its_weight() -> None:
    log = FigureLog(1, 2)
    log.report(1, 0, uptime=DAY_MS)
    assert log.counted == ["router.uptime"]
    assert log.scores == {1: 800_000}
    log.report(2, 0, uptime=DAY_MS, participating_tunnels=150)
    assert log.counted == ["router.uptime", "router.participatingTunnels"]
    # weights 20 and 15 of 35; whoever does not report what counts has its middle
    assert log.scores == {1: (20 * 800_000 + 15 * MIDDLE) // 35, 2: (20 * 800_000 + 15 * 750_000) // 35}
    log.report(2, 1, uptime=DAY_MS)
    assert log.scores == {1: 800_000, 2: 800_000}


def test_below_level_3_a_part_that_no_member_reports_counts_as_its_middle() -> None:
    log = FigureLog(1, 2, level=2)
    log.report(1, 0, uptime=DAY_MS)
    assert log.scores == {1: (20 * 800_000 + 80 * MIDDLE) // 100}
    assert "counted" not in log.farm.ranking()
    log.configure(1, 2, level=3)
    assert log.scores == {1: 800_000}


def test_level_3_counts_anew_also_where_everything_is_reported() -> None:
    log = FigureLog(1, level=2)
    tests: Any = {"config": {"node": {"applied": 1, "boot": 1, "tests": [[2, 5]]}}}
    log.post(1, 0, **tests)
    before = log.scores[1]
    log.configure(1, level=3)
    assert len(log.counted) == 8
    assert abs(log.scores[1] - before) <= 1
    assert log.farm.statuses[1].parts.keys() == log.farm.policy.weights.keys()


def test_silent_member_takes_its_figures_along() -> None:
    log = FigureLog(1, 2, 3)
    for member in (1, 2):
        log.report(member, 0, uptime=DAY_MS)
    log.report(3, 0, uptime=DAY_MS, job_lag=0)
    assert "router.jobLag" in log.counted
    assert log.scores == {1: (20 * 800_000 + 15 * MIDDLE) // 35, 2: log.scores[1], 3: 885_714}
    for second in (1, 2, 3):
        for member in (1, 2):
            log.report(member, second, uptime=DAY_MS)
    assert not log.farm.is_recent(3)
    assert log.counted == ["router.uptime"]
    assert set(log.scores.values()) == {800_000}


def test_member_that_was_removed_takes_its_figures_along_at_once() -> None:
    log = FigureLog(1, 2)
    log.report(1, 0, uptime=DAY_MS)
    log.report(2, 0, job_lag=0)
    log.configure(1)
    assert log.counted == ["router.uptime"]
    assert log.scores == {1: 800_000}


def test_half_a_part_that_no_member_reports_is_left_out_of_it() -> None:
    log = FigureLog(1, 2)
    log.report(1, 0, participating_tunnels=150)
    assert log.scores == {1: 750_000}
    log.report(2, 0, exploratory_tunnels=4)
    assert log.scores == {1: (MIDDLE + 750_000) // 2, 2: (FULL + MIDDLE) // 2}


def test_without_any_figure_all_are_equal_and_the_lowest_id_is_named() -> None:
    log = FigureLog(1, 2, 3)
    for member in (3, 2, 1):
        log.report(member, 0)
    assert (log.counted, set(log.scores.values())) == ([], {MIDDLE})
    assert log.farm.publisher == 3  # it was the first, and nobody is ahead


def test_weights_that_only_count_what_is_left_out_make_all_equal() -> None:
    log = FigureLog(1, 2)
    log.report(1, 0, uptime=DAY_MS)
    weights = dict.fromkeys(log.farm.policy.weights, 0) | {"job_lag": 100}
    log.order("weights", weights)
    assert log.scores == {1: MIDDLE}


def test_part_that_comes_and_goes_moves_nobody_before_three_leads_in_a_row() -> None:
    """The member that reports it first is ahead at once, and needs the margin three times as always; another
    one reports it at every other status, which changes all scores each time."""
    log = FigureLog(1, 2, 3)
    log.report(1, 0, uptime=DAY_MS)
    log.report(2, 0, uptime=DAY_MS)
    assert log.farm.publisher == 1
    for second in range(1, 9):
        log.report(1, second, uptime=DAY_MS)
        log.report(2, second, uptime=DAY_MS, job_lag=0 if second % 2 else None)
        log.report(3, second, uptime=DAY_MS)
        assert log.farm.state.records[2].lead == second % 2
        assert log.farm.publisher == 1
    for second in range(9, 9 + CONSECUTIVE_LEADS):
        assert log.farm.publisher == 1
        log.report(1, second, uptime=DAY_MS)
        log.report(2, second, uptime=DAY_MS, job_lag=0)
    assert (log.farm.publisher, log.farm.state.because) == (2, "margin")


def test_member_that_follows_is_the_best_by_what_counts_then() -> None:
    log = FigureLog(1, 2, 3)
    log.report(1, 0, uptime=DAY_MS)
    log.report(2, 0, uptime=DAY_MS)
    log.report(3, 0, uptime=DAY_MS // 2, job_lag=0)  # behind, but for its job lag
    log.lost(1, log.farm.state.since)
    assert log.farm.publisher == 3


def test_absurd_figure_of_one_member_only_brings_the_others_closer_together() -> None:
    log = FigureLog(1, 2, 3)
    log.report(1, 0, uptime=DAY_MS)
    log.report(2, 0, uptime=0)
    apart = log.scores[1] - log.scores[2]
    log.report(3, 0, uptime=2**63 - 1, job_lag=0, exploratory_tunnels=2**63 - 1)
    assert 0 < log.scores[1] - log.scores[2] < apart
    assert log.scores[3] <= FULL


def test_costs_change_with_statuses_of_their_member_only() -> None:
    log = FigureLog(1, 2)
    log.report(1, 0, uptime=DAY_MS)
    before = log.farm.state.records[1].cost
    log.report(2, 0, uptime=DAY_MS, job_lag=0)
    log.report(2, 1, uptime=DAY_MS, job_lag=2**63 - 1)
    assert log.farm.state.records[1].cost == before == 3
    log.report(1, 2, uptime=DAY_MS)
    assert log.farm.state.records[1].cost == 5


def test_ranking_names_what_is_left_out_and_what_is_missing() -> None:
    log = FigureLog(1, 2)
    log.report(1, 0, uptime=DAY_MS)
    log.report(2, 0, uptime=DAY_MS, participating_tunnels=5)
    rows: Any = {row["id"]: row for row in log.farm.ranking()["members"]}  # type: ignore[attr-defined]
    assert rows[1]["parts"]["job_lag"] == {"value": MIDDLE, "weight": 15, "reported": False, "left_out": True}
    assert rows[1]["parts"]["tunnel_health"] == {"value": MIDDLE, "weight": 15, "reported": False}
    assert "job_lag: left out, no recent member reports it" in rows[1]["why"]
    assert "tunnel_health: not reported" in rows[1]["why"]
    assert "tunnel_health: not reported" not in rows[2]["why"]


def test_measured_is_the_weight_of_what_a_member_reports() -> None:
    log = FigureLog(1, 2)
    assert log.farm.measured() == {}
    log.report(1, 0, uptime=DAY_MS, participating_tunnels=5)
    assert log.farm.measured() == {1: 35}
    log.report(2, 0, exploratory_tunnels=2, job_lag=1)
    assert log.farm.measured() == {1: 27, 2: 22}  # each has half of the tunnels' 15 %
    rows: Any = log.farm.ranking()["members"]
    assert {row["id"]: row["measured"] for row in rows} == {1: 27, 2: 22}
    below = FigureLog(1, level=2)
    below.report(1, 0, uptime=DAY_MS, participating_tunnels=5)
    assert below.farm.measured() == {1: 27}


def test_restored_state_counts_the_same_figures() -> None:
    log = FigureLog(1, 2)
    log.report(1, 0, uptime=DAY_MS)
    log.report(2, 0, uptime=DAY_MS, job_lag=3)
    again = PublisherFold("farm")
    again.restore(log.farm.snapshot())
    assert again.ranking() == log.farm.ranking()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_broken_rule_of_what_counts_fails_its_test(mutant: Mutant) -> None:
    file, _, name = mutant.found_by.partition("::")
    assert file == Path(__file__).name
    with planted(mutant), pytest.raises(AssertionError):
        globals()[name]()
