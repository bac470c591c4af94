"""A member that can no longer publish is withdrawn, until it could publish for a while."""

from __future__ import annotations

from garlicfarm.publishing.offer import Offer

PAUSE_MS = 90_000


def step(offer: Offer, now_s: float, *, able: bool, others: bool = True) -> bool:
    return offer.step(round(1000 * now_s), can_publish=able, others_can=others, pause_ms=PAUSE_MS)


def test_member_that_could_not_publish_yet_has_not_withdrawn() -> None:
    offer = Offer()
    assert not step(offer, 0, able=False)
    assert not step(offer, 1, able=True)
    assert (offer.is_withdrawn, offer.count) == (False, 0)


def test_withdrawn_member_offers_itself_after_a_pause_in_which_it_could_publish() -> None:
    offer = Offer()
    step(offer, 0, able=True)
    assert step(offer, 10, able=False)
    assert offer.left_ms(10_000, PAUSE_MS) == PAUSE_MS
    assert not step(offer, 20, able=True)
    assert not step(offer, 100, able=False)  # a break: it begins anew, and is no new withdrawal
    assert not step(offer, 101, able=True)
    assert not step(offer, 190.9, able=True)
    assert offer.is_withdrawn
    assert step(offer, 191, able=True)
    assert (offer.is_withdrawn, offer.count) == (False, 1)
    assert step(offer, 200, able=False)
    assert offer.count == 2


def test_withdrawn_member_does_not_wait_where_no_other_can_publish() -> None:
    offer = Offer()
    step(offer, 0, able=True)
    step(offer, 10, able=False, others=False)
    assert offer.is_withdrawn
    assert step(offer, 11, able=True, others=False)
    step(offer, 12, able=False)
    step(offer, 13, able=True)
    assert offer.is_withdrawn
    assert step(offer, 14, able=True, others=False)  # the other one is gone meanwhile
