"""Leases on heartbeats: the schedules that broke an earlier draft (D24), and each class by itself."""

from __future__ import annotations

import pytest

from garlicfarm.leases import Holding, LeaseGranter, LeaseHolder
from garlicfarm.wire.messages import Grant

A, B, C = ALL = (1, 2, 3)
LASTS = 10
NAMED = Holding(B, 5, is_named=True)


def leader(
    node_id: int = A, term: int = 1, now: int = 0, *holdings: Holding, waits: int = LASTS
) -> LeaseGranter:
    granter = LeaseGranter(node_id, term, now)
    granter.on_applied(holdings or (NAMED,), lasts_ms=LASTS, waits_ms=waits, now_ms=now)
    return granter


def reach(granter: LeaseGranter, member: int, now: int) -> None:
    granter.on_sent(member, 1, now)
    granter.on_answered(member, 1, granter.term)


def send(granter: LeaseGranter, now: int) -> Grant:
    grant = granter.grant(ALL, now)
    assert grant is not None
    assert granter.named == B
    return grant


def exchange(granter: LeaseGranter, holder: LeaseHolder, now: int) -> None:
    """C answers a heartbeat, and B a grant, all at once."""
    reach(granter, C, now)
    grant = send(granter, now)
    holder.on_grant(grant, now)
    granter.on_grant_answered(B, grant.number, now)


# ---------------------------------------------------------------------- schedules of D24


def test_schedule_a_answers_are_lost_while_grants_arrive() -> None:
    a, b = leader(), LeaseHolder()
    exchange(a, b, 0)
    for now in range(1, LASTS):
        reach(a, C, now)
        grant = send(a, now)
        b.on_grant(grant, now)  # its answer is lost
        a.on_grant_unanswered(B, grant.number)
    assert b.end_ms(NAMED.index) == LASTS  # from the arrival of the one that was answered
    assert a.lost(LASTS - 1) == []
    assert a.lost(LASTS) == [NAMED]


def test_schedule_b_partition_heals_after_lost_was_appended() -> None:
    a, b = leader(), LeaseHolder()
    exchange(a, b, 0)
    exchange(a, b, 0)
    a.on_lost(NAMED)  # at LASTS; B has not applied it, and is reached again
    reach(a, B, LASTS)
    assert a.grant(ALL, LASTS) is None
    assert a.lost(10 * LASTS) == []  # once is enough
    assert b.end_ms(NAMED.index) == LASTS


def test_schedule_c_answers_are_under_way_when_the_next_leader_is_elected() -> None:
    a, b = leader(), LeaseHolder()
    exchange(a, b, 0)
    a.on_sent(C, 2, 1)  # C answers, votes for itself, and leads
    c = leader(C, 2, 1)
    a.on_answered(C, 2, 1)  # is read at last at 7
    b.on_grant(send(a, 7), 7)
    end_ms = b.end_ms(NAMED.index)
    assert end_ms is not None
    assert end_ms <= 1 + LASTS
    assert c.lost(end_ms - 1) == []
    assert c.lost(1 + LASTS) == [NAMED]


def test_schedule_d_a_grant_dates_its_age_by_the_time_at_which_it_is_sent() -> None:
    a, b = leader(), LeaseHolder()
    exchange(a, b, 3)
    b.on_grant(send(a, 9), 9)
    assert b.end_ms(NAMED.index) == 3 + LASTS - 6


def test_schedule_f_new_leader_waits_for_the_longer_of_two_lengths() -> None:
    a, b = leader(), LeaseHolder()
    exchange(a, b, 0)
    exchange(a, b, 1)
    a.on_applied((NAMED,), lasts_ms=LASTS // 2, waits_ms=LASTS, now_ms=1)  # it is lowered
    c = LeaseGranter(C, 2, 1)
    c.on_applied((NAMED,), lasts_ms=LASTS // 2, waits_ms=LASTS, now_ms=1)
    assert b.end_ms(NAMED.index) == LASTS
    assert c.lost(LASTS) == []
    assert c.wake_ms() == 1 + LASTS


# ---------------------------------------------------------------------- the leader's side


@pytest.mark.parametrize(
    ("members", "needs"), [((1, 2), 1), ((1, 2, 3), 1), ((1, 2, 3, 4, 5), 2), ((2, 3, 4), 2)]
)
def test_quorum_of_members_is_reached_by_the_majority_and_no_fewer(
    members: tuple[int, ...], needs: int
) -> None:
    a = leader()
    others = [member for member in members if member != A]
    for member in others[: needs - 1]:
        reach(a, member, 4)
    assert a.grant(members, 4) is None
    reach(a, others[needs - 1], 4)
    assert a.grant(members, 4) is not None


def test_quorum_of_a_single_member_is_now() -> None:
    assert leader(A, 1, 0, Holding(A, 5, is_named=True)).own((A,), 7) == (5, 7 + LASTS)


def test_grant_of_a_leader_without_members_is_none() -> None:
    assert leader().grant((), 0) is None


def test_own_lease_of_a_leader_that_is_not_named_is_none() -> None:
    a = leader()
    reach(a, C, 0)
    assert a.own(ALL, 0) is None


def test_member_named_now_has_the_time_of_a_lease_to_answer() -> None:
    a = leader()
    named = Holding(C, 8, is_named=True)
    a.on_applied((named,), lasts_ms=LASTS, waits_ms=LASTS, now_ms=50)
    assert a.wake_ms() == 50 + LASTS
    assert a.lost(50 + LASTS - 1) == []
    assert a.lost(50 + LASTS) == [named]


def test_former_holder_is_lost_once_a_lease_has_passed_since_the_election() -> None:
    former = Holding(B, 8, is_named=False)
    a = leader(A, 1, 3, former)
    assert a.lost(3 + LASTS - 1) == []
    assert a.lost(3 + LASTS) == [former]


def test_second_grant_waits_for_the_answer_to_the_first_or_its_loss() -> None:
    a = leader()
    reach(a, C, 0)
    first = send(a, 0)
    assert a.grant(ALL, 0) is None
    a.on_grant_answered(C, first.number, 0)
    a.on_grant_unanswered(B, first.number + 1)
    assert a.grant(ALL, 0) is None  # neither is about it
    a.on_grant_unanswered(B, first.number)
    assert (send(a, 0).number, first.answered) == (2, 0)


def test_heartbeat_that_is_not_answered_makes_room_for_the_next_one() -> None:
    a = leader()
    a.on_sent(C, 1, 0)
    a.on_unreachable(C, 1)
    a.on_sent(C, 2, 4)
    a.on_answered(C, 1, 1)  # late, and known to be lost
    assert a.grant(ALL, 5) is None
    a.on_answered(C, 2, 1)
    assert send(a, 5).age_ms == 1


# ---------------------------------------------------------------------- the member's side


def grant(number: int, answered: int, *, term: int = 1, age: int = 0, index: int = 5) -> Grant:
    return Grant(term=term, number=number, answered=answered, age_ms=age, lasts_ms=LASTS, index=index)


@pytest.mark.parametrize("answered", [0, 1, 2, 3, 2**63])
def test_first_grant_makes_no_lease_whatever_it_says_was_answered(answered: int) -> None:
    b = LeaseHolder()
    b.on_grant(grant(2, answered), 100)
    assert b.end_ms(5) is None


def test_grant_number_0_changes_nothing() -> None:
    b = LeaseHolder()
    b.on_grant(grant(0, 0), 100)
    b.on_grant(grant(1, 0), 100)
    assert b.end_ms(5) is None


def test_lease_by_a_very_old_majority_is_over_before_it_begins() -> None:
    b = LeaseHolder()
    b.on_grant(grant(1, 0), 100)
    b.on_grant(grant(2, 1, age=2**63), 101)
    end_ms = b.end_ms(5)
    assert end_ms is not None
    assert end_ms < 100


def test_lease_is_for_one_naming_and_never_gets_shorter() -> None:
    b = LeaseHolder()
    for number in range(1, 4):
        b.on_grant(grant(number, number - 1, age=number), 100)
    assert (b.end_ms(5), b.end_ms(4), b.end_ms(6), b.end_ms(0)) == (100 + LASTS - 2, None, None, None)
    b.on_grant(grant(4, 3, index=9), 101)
    assert (b.end_ms(5), b.end_ms(9)) == (None, 100 + LASTS)


def test_grant_of_a_later_term_begins_anew_and_of_an_earlier_one_changes_nothing() -> None:
    b = LeaseHolder()
    b.on_grant(grant(7, 0), 100)
    b.on_grant(grant(1, 0, term=2), 102)
    b.on_grant(grant(8, 7), 103)
    assert b.end_ms(5) is None
    b.on_grant(grant(2, 1, term=2), 104)
    assert b.end_ms(5) == 102 + LASTS


def test_new_process_has_no_lease_until_it_has_answered() -> None:
    b = LeaseHolder()
    b.on_grant(grant(5, 4), 100)
    assert b.end_ms(5) is None
    b.on_grant(grant(6, 5), 101)
    assert b.end_ms(5) == 100 + LASTS


def test_leader_that_is_no_longer_named_finds_itself_lost_after_its_own_lease() -> None:
    """Its statuses may be refused, as those of a member whose clock is years ahead."""
    a = leader(A, 1, 0, Holding(A, 5, is_named=True))
    assert a.wake_ms() is None
    former = Holding(A, 9, is_named=False)
    a.on_applied((former,), lasts_ms=LASTS, waits_ms=LASTS, now_ms=50)
    assert a.own(ALL, 50) is None
    assert (a.lost(50 + LASTS - 1), a.lost(50 + LASTS)) == ([], [former])


# ------------------------------------------------------------------ another length


def test_nobody_is_lost_and_nothing_settled_until_the_longer_leases_of_before_are_over() -> None:
    former = Holding(B, 8, is_named=False)
    a = leader(A, 1, 0, former)
    for now in (50, 60):
        a.on_applied((former,), lasts_ms=1, waits_ms=4 * LASTS, now_ms=now, unsettled=9)
    assert a.wake_ms() == 50 + 4 * LASTS
    assert (a.lost(50 + 4 * LASTS - 1), a.settled(50 + 4 * LASTS - 1)) == ([], 0)
    assert (a.lost(50 + 4 * LASTS), a.settled(50 + 4 * LASTS)) == ([former], 9)
    a.on_settled()
    assert a.settled(10**6) == 0  # once is enough
    a.on_applied((former,), lasts_ms=1, waits_ms=4 * LASTS, now_ms=10**6, unsettled=11)
    assert a.settled(10**6 + 4 * LASTS) == 11


def test_grant_is_urgent_until_the_named_member_has_a_lease() -> None:
    a, b = leader(), LeaseHolder()
    assert a.is_urgent
    exchange(a, b, 0)
    assert a.is_urgent  # its answer is known; the next grant gives the lease
    exchange(a, b, 0)
    assert not a.is_urgent
    a.on_applied((Holding(C, 9, is_named=True),), lasts_ms=LASTS, waits_ms=LASTS, now_ms=1)
    assert (a.named, a.is_urgent) == (C, True)
    a.on_applied((Holding(A, 10, is_named=True),), lasts_ms=LASTS, waits_ms=LASTS, now_ms=1)
    assert (a.named, a.is_urgent) == (0, False)
