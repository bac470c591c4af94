"""The fold, point by point of "The common algorithm" in docs/reference/protocol.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from garlicfarm.i2p.encoding import encode
from garlicfarm.publishing.documents import MetaStatus
from garlicfarm.publishing.entries import encode_admin
from garlicfarm.publishing.scoring import WEIGHTS
from tests.publishing.dated_log import Log, due_member_1, leaf_hash
from tests.publishing.scripted_log import T0, Author, configuration

# 1. recent


def test_recent_member_without_status_is_not() -> None:
    log = Log(1, 2, 3)
    assert not log.farm.is_recent(1)
    log.post(1, 0)
    assert log.farm.is_recent(1)
    assert not log.farm.is_recent(9)


def test_recent_alone_is_for_ever() -> None:
    log = Log(1)
    log.post(1, 0)
    log.post(1, 10_000)
    assert log.farm.is_recent(1)


def test_recent_silent_member_is_until_more_than_half_of_the_others_counted_R() -> None:
    log = Log(1, 2, 3)
    log.post(1, 0)
    for second in range(1, 10):
        log.post(2, second)
    assert log.farm.is_recent(1)  # one of two others is not more than half
    log.post(3, 1)
    log.post(3, 2)
    assert log.farm.is_recent(1)
    log.post(3, 3)
    assert not log.farm.is_recent(1)
    log.post(1, 4)
    assert log.farm.is_recent(1)


def test_recent_of_two_needs_the_other_alone() -> None:
    log = Log(1, 2)
    log.post(1, 0)
    for second in (1, 2, 3):
        assert log.farm.is_recent(1)
        log.post(2, second)
    assert not log.farm.is_recent(1)


@pytest.mark.parametrize("applied", [None, 0])
def test_recent_statuses_begun_before_the_newest_was_seen_never_count(applied: int | None) -> None:
    log = Log(1, 2)
    log.post(1, 0)
    for second in range(1, 10):
        log.post(2, second, applied=applied)
    assert log.farm.is_recent(1)


def test_recent_counts_only_statuses_nine_tenths_of_an_interval_apart_in_either_direction() -> None:
    log = Log(1, 2)
    log.post(2, 0)
    log.post(1, 0)
    for second in (0.5, 0.899, 0.9, 1, 1.799):  # counted: 0.9
        log.post(2, second)
    assert log.farm.is_recent(1)
    log.post(2, 1.8)
    assert log.farm.is_recent(1)
    log.post(2, 0.9)  # its clock was set back
    assert not log.farm.is_recent(1)


def test_recent_judges_by_interval_and_R_of_the_silent_members_own_newest_status() -> None:
    log = Log(1, 2)
    log.post(1, 0, interval_ms=10_000, R=4)
    for second in range(1, 31):  # counted for 10 s: 1, 10, 19, 28
        assert log.farm.is_recent(1) == (second <= 28)
        log.post(2, second, interval_ms=1000, R=3)
    assert not log.farm.is_recent(1)


def test_recent_status_naming_no_interval_has_the_one_in_force_then() -> None:
    log = Log(1, 2)
    log.post(1, 0, interval_ms=None, R=None)  # 30 s
    log.append(encode_admin("farm", T0, 2, None, "interval", "alice", {"ms": 1000}))
    assert log.farm.interval_ms == 1000
    for second in range(1, 54):
        log.post(2, second)
        assert log.farm.is_recent(1)  # counted for 30 s: 1, 28
    log.post(2, 55)
    assert not log.farm.is_recent(1)


def test_recent_others_are_the_current_members() -> None:
    log = Log(1, 2, 3, 4)
    log.post(1, 0)
    for second in (1, 2, 3):
        log.post(2, second)
    log.farm.configure(log.index, configuration(1, 2, 3))
    assert log.farm.is_recent(1)
    log.farm.configure(log.index, configuration(2, 1))
    assert not log.farm.is_recent(1)


def test_recent_removed_members_count_against_nobody() -> None:
    log = Log(1, 2, 3, 4, 5)
    log.post(1, 0)
    for second in (1, 2, 3):
        log.post(2, second)
        log.post(3, second)
    log.farm.configure(log.index, configuration(1, 4, 5))
    assert log.farm.is_recent(1)


# 2. farm time


def test_farm_time_is_the_lower_median_of_recent_members_and_stays_without_any() -> None:
    log = Log(1, 2, 3, 4)
    expected = [10, 10, 10, 9]  # of {10}, {10, 99}, {9, 10, 99}, {0, 9, 10, 99}
    for member, second, median in zip((1, 2, 3, 4), (10, 99, 9, 0), expected, strict=True):
        log.post(member, second)
        assert log.farm.farm_time_ms == T0 + median * 1000
    log.farm.configure(log.index, configuration(5, 6))
    assert log.farm.farm_time_ms == T0 + 9000


# 3. eligible


def test_eligible_needs_a_usable_leaf_somewhere_in_the_farm() -> None:
    log = Log(1, 2)
    log.post(1, 0, leaves=())
    assert log.farm.publisher is None
    log.post(2, 0, mode="off")
    assert log.farm.eligible() == [1]
    assert log.farm.publisher == 1


def test_eligible_mode_is_the_override_else_what_the_member_says() -> None:
    log = Log(1, 2)
    log.post(1, 0, mode="off")
    assert log.farm.eligible() == []
    log.override(1, "auto")
    assert log.farm.eligible() == [1]
    log.post(1, 1, mode="on")
    log.override(1, "off")
    assert (log.farm.eligible(), log.farm.publisher) == ([], None)
    log.override(1, None)
    assert (log.farm.mode(1), log.farm.publisher) == ("on", 1)


def test_eligible_without_the_key_only_while_no_eligible_member_has_it() -> None:
    log = Log(1, 2)
    log.post(1, 0, publishing=None, headroom=100)
    assert log.farm.publisher == 1
    log.post(2, 0, publishing=False, headroom=0)
    assert (log.farm.eligible(), log.farm.publisher) == ([2], 2)
    log.post(2, 1, publishing=False, mode="off")
    assert log.farm.publisher == 1


# 5. publisher


def test_publisher_among_equals_is_the_lowest_id_and_the_first_stays() -> None:
    log = Log(3, 2, 1)
    log.post(3, 0, leaves=())
    log.post(2, 0, leaves=())
    assert log.farm.publisher is None
    log.post(1, 0, mode="off")
    assert log.farm.publisher == 2
    log.post(1, 1, mode="auto")
    assert log.farm.publisher == 2


def test_publisher_class_on_goes_before_auto_at_once() -> None:
    log = Log(1, 2)
    log.post(1, 0, headroom=100)
    log.post(2, 0, headroom=0, mode="on")
    assert log.farm.publisher == 2
    log.post(1, 1, headroom=100)
    assert log.farm.publisher == 2


def test_publisher_yields_to_a_margin_at_three_consecutive_counted_statuses() -> None:
    log = Log(1, 2, 3)
    log.post(1, 0, headroom=50)
    for second, headroom in [(0, 70), (1, 70), (2, 69), (3, 70), (3.5, 70), (4, 70)]:  # 70 is 50,000 ahead
        log.post(2, second, headroom=headroom)
    assert log.farm.publisher == 1  # counted in a row since 2: 3 and 4
    log.post(2, 5, headroom=70)
    assert log.farm.publisher == 2
    assert log.farm.ranking()["because"] == "margin"


def test_publisher_at_margin_zero_does_not_lead_over_itself_and_yields_to_equals() -> None:
    log = Log(1, 2, 3)
    log.order("publisher", {"margin": 0})
    for second in range(3):
        log.post(1, second)
    members: Any = log.farm.ranking()["members"]
    assert [(one["id"], one["lead"]) for one in members] == [(1, 0), (2, 0), (3, 0)]
    for second in range(3):
        assert log.farm.publisher == 1
        log.post(2, second)
    assert log.farm.publisher == 2


def test_publisher_leads_over_one_incumbent_do_not_count_against_the_next() -> None:
    log = Log(1, 2, 3)
    log.post(1, 0, headroom=50)
    for second in (0, 1):
        log.post(3, second, headroom=90)
    log.post(2, 1, headroom=50, mode="on")
    log.post(2, 2, headroom=50, mode="on")
    log.post(1, 2, mode="on")
    log.override(3, "on")
    for second in (2, 3):
        log.post(3, second, headroom=90)
        assert log.farm.publisher == 2
    log.post(3, 4, headroom=90)
    assert log.farm.publisher == 3


def test_publisher_that_stops_being_eligible_is_replaced_by_the_best() -> None:
    log = Log(1, 2, 3)
    log.post(1, 0, headroom=90)
    log.post(2, 0, headroom=50)
    log.post(3, 0, headroom=60)
    log.post(1, 1, mode="off")
    assert log.farm.publisher == 3


def test_publisher_that_does_not_publish_R_times_ranks_behind_for_ten_R_statuses() -> None:
    log = due_member_1()
    log.post(1, 1, headroom=90, applied=0)  # begun before it could know
    log.post(1, 2, headroom=90)
    log.post(1, 3, headroom=90)
    assert log.farm.publisher == 1
    log.post(1, 4, headroom=90)
    assert (log.farm.publisher, log.farm.ranking()["because"]) == (2, "group")
    for second in range(5, 34):
        log.post(1, second, headroom=90)
        log.post(2, second, headroom=10, publishing=True)
        assert log.farm.publisher == 2
    log.post(2, 34, headroom=10, publishing=True)
    for second in range(34, 37):
        assert log.farm.publisher == 2
        log.post(1, second, headroom=90)
    assert log.farm.publisher == 1


def test_publisher_is_judged_by_statuses_begun_at_the_index_it_was_due_from() -> None:
    log = due_member_1()
    for second in (1, 2, 3):
        assert log.farm.publisher == 1
        log.post(1, second, headroom=90, applied=1)
    assert log.farm.publisher == 2


def test_publisher_that_publishes_in_between_is_not_sanctioned() -> None:
    log = due_member_1()
    for second in range(1, 20):
        log.post(1, second, publishing=second % 3 == 0)
    assert log.farm.publisher == 1


def test_publisher_without_the_key_is_not_sanctioned() -> None:
    log = Log(1, 2, 3)
    log.post(1, 0, publishing=None)
    log.post(2, 0, publishing=None)
    for second in range(1, 20):
        log.post(1, second, publishing=None)
    assert log.farm.publisher == 1


def test_publisher_sanctioned_is_still_named_where_nobody_else_is_eligible() -> None:
    log = Log(1, 2)
    for second in range(10):
        log.post(1, second)
    assert log.farm.publisher == 1


def test_dead_publisher_is_replaced_within_R_plus_one_intervals() -> None:
    author = Author((1, 2, 3, 4, 5))
    author.farm.apply(2, 1, encode_admin("farm", T0, 1, None, "interval", "alice", {"ms": 1000}))
    author.index = 2
    for _ in range(3):
        author.round({3: 90, 1: 50, 2: 50, 4: 50, 5: 50})
    assert (author.farm.publisher, author.farm.due_since) == (3, 3)
    for _ in range(author.farm.R + 1):
        author.round({1: 50, 2: 50, 4: 50, 5: 50})
    assert (author.farm.publisher, author.farm.holders) == (1, (1,))


# 6. holders


def named_2_after_1() -> Log:
    log = due_member_1()
    log.post(1, 1, headroom=90, publishing=True)
    log.override(2, "on")
    assert (log.index, log.farm.publisher, log.farm.holders, log.farm.due_since) == (4, 2, (1, 2), None)
    return log


def test_holder_is_released_by_its_own_status_that_knows_and_does_not_publish() -> None:
    log = named_2_after_1()
    log.post(1, 2, applied=3, publishing=False)
    log.post(1, 3, applied=None, publishing=False)
    log.post(1, 4, applied=4, publishing=True)
    log.post(2, 4, applied=4)
    assert log.farm.holders == (1, 2)
    at = log.post(1, 5, applied=4, publishing=False)
    assert (log.farm.holders, log.farm.due_since) == ((2,), at)


def test_holder_that_no_longer_says_whether_it_publishes_is_released() -> None:
    log = named_2_after_1()
    log.post(1, 2, publishing=None)
    assert log.farm.holders == (2,)


def test_holder_is_released_by_not_being_recent() -> None:
    log = named_2_after_1()
    for second in range(5, 8):
        log.post(3, second, mode="off")
    for second in range(5, 8):
        assert log.farm.due_since is None
        log.post(2, second)
    assert (log.farm.holders, log.farm.due_since) == ((2,), log.index)


def test_holder_removed_from_the_farm_is_judged_on_by_the_current_members() -> None:
    log = due_member_1()
    log.post(1, 1, publishing=True)
    log.index += 1
    log.farm.configure(log.index, configuration(2, 3))
    assert (log.farm.publisher, log.farm.holders) == (2, (1, 2))
    before = log.farm.newest(1)
    log.post(1, 2)
    assert log.farm.skipped == {"not a member": 1}
    assert log.farm.newest(1) == before
    for second in range(5, 8):
        log.post(2, second)
        log.post(3, second)
    assert log.farm.holders == (2,)
    assert (log.farm.newest(1), log.farm.is_recent(1)) == (None, False)


def test_interval_of_a_removed_holder_is_in_use_until_it_is_released() -> None:
    log = due_member_1()
    log.post(1, 1, publishing=True, interval_ms=3000)
    log.index += 1
    log.farm.configure(log.index, configuration(2, 3))

    def counted(second: int) -> set[str]:
        log.post(2, second)
        log.post(3, second)
        return {*json.loads(log.farm.snapshot())["records"]["3"]["counted"]}

    assert [counted(second) for second in (5, 9)] == [{"1000", "3000"}] * 2
    counted(13)
    assert log.farm.holders == (2,)
    assert [counted(second) for second in range(17, 40, 4)] == [{"1000"}] * 6


def test_holder_named_again_before_it_let_go_is_due_once_it_is_alone() -> None:
    log = named_2_after_1()
    log.override(2, "off")
    assert (log.farm.publisher, log.farm.holders) == (1, (1, 2))
    log.post(1, 2, publishing=False)
    assert log.farm.holders == (1, 2)
    at = log.post(2, 2)
    assert (log.farm.holders, log.farm.due_since) == ((1,), at)


def test_published_follows_what_members_published_unless_it_is_far_ahead() -> None:
    log = Log(1, 2)

    def published(last_s: int) -> MetaStatus:
        return MetaStatus(publishing=True, last_published_time=T0 + last_s * 1000)

    log.post(1, 0, meta=published(300))
    log.post(2, 0, meta=published(601))
    assert log.farm.published_ms(T0) == T0 + 301_000
    assert log.farm.published_ms(T0 + 400_000) == T0 + 400_000
    log.post(2, 1, meta=published(600))
    assert log.farm.published_ms(T0) == T0 + 601_000


# 7. contents


def test_contents_list_the_usable_leaves_of_recent_members() -> None:
    log = Log(1, 2)
    log.post(1, 0, leaves=(1, 2))
    log.post(2, 0, leaves=(2, 3))
    assert len(log.farm.leases()) == 3
    assert len(log.farm.contents()) == 1 + 3 * 40
    for second in range(1, 4):
        log.post(2, second, leaves=(2, 3))
    assert len(log.farm.leases()) == 2


def test_contents_cost_follows_the_score_of_the_best_member_that_reports_the_leaf() -> None:
    log = Log(1, 2, 3)
    log.order("weights", dict.fromkeys(WEIGHTS, 0) | {"bandwidth_headroom": 100})

    def costs() -> dict[str, int]:
        return {encode(one.hash): one.cost for one in log.farm.leases()}

    log.post(1, 0, leaves=(1,), headroom=100)
    log.post(2, 0, leaves=(1, 2), headroom=85)
    assert costs() == {leaf_hash(1): 0, leaf_hash(2): 2}
    log.post(2, 1, leaves=(1, 2), headroom=90)  # half a step above the upper end of its step is 906,250
    assert costs() == {leaf_hash(1): 0, leaf_hash(2): 2}
    log.post(2, 2, leaves=(1, 2), headroom=91)
    assert costs() == {leaf_hash(1): 0, leaf_hash(2): 1}
