"""A member that can no longer publish is withdrawn, until it could publish for a while."""

from __future__ import annotations

from garlicfarm.node.publisher.withdrawal import Withdrawal

PAUSE_S = 90.0


def observe(withdrawal: Withdrawal, now_s: float, *, able: bool, others: bool = True) -> bool:
    return withdrawal.observe(now_s, can_publish=able, others_can=others, pause_s=PAUSE_S)


def test_member_that_could_not_publish_yet_has_not_withdrawn() -> None:
    withdrawal = Withdrawal()
    assert not observe(withdrawal, 0, able=False)
    assert not observe(withdrawal, 1, able=True)
    assert (withdrawal.is_withdrawn, withdrawal.count) == (False, 0)


def test_withdrawn_member_offers_itself_after_a_pause_in_which_it_could_publish() -> None:
    withdrawal = Withdrawal()
    observe(withdrawal, 0, able=True)
    assert observe(withdrawal, 10, able=False)
    assert withdrawal.left_s(10, PAUSE_S) == PAUSE_S
    assert not observe(withdrawal, 20, able=True)
    assert not observe(withdrawal, 100, able=False)  # a break: it begins anew, and is no new withdrawal
    assert not observe(withdrawal, 101, able=True)
    assert not observe(withdrawal, 190.9, able=True)
    assert withdrawal.is_withdrawn
    assert observe(withdrawal, 191, able=True)
    assert (withdrawal.is_withdrawn, withdrawal.count) == (False, 1)
    assert observe(withdrawal, 200, able=False)
    assert withdrawal.count == 2


def test_withdrawn_member_does_not_wait_where_no_other_can_publish() -> None:
    withdrawal = Withdrawal()
    observe(withdrawal, 0, able=True)
    observe(withdrawal, 10, able=False, others=False)
    assert withdrawal.is_withdrawn
    assert observe(withdrawal, 11, able=True, others=False)
    observe(withdrawal, 12, able=False)
    observe(withdrawal, 13, able=True)
    assert withdrawal.is_withdrawn
    assert observe(withdrawal, 14, able=True, others=False)  # the other one is gone meanwhile
