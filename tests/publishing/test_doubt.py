"""What may have been left published: others wait for a lease, once."""

from __future__ import annotations

import pytest

from garlicfarm.publishing.doubt import Doubt

LEASE_MS = 45_000


def raised() -> Doubt:
    doubt = Doubt(0)
    doubt.confirm()
    doubt.leave(0)
    return doubt


@pytest.mark.parametrize("is_own", [False, True])
def test_others_wait_for_a_lease_and_not_again_when_leases_become_longer(is_own: bool) -> None:
    doubt = raised() if is_own else Doubt(0)
    doubt.step(LEASE_MS - 1, LEASE_MS)
    assert doubt.row.is_waited_for
    doubt.step(LEASE_MS - 1, 2 * LEASE_MS)
    doubt.step(LEASE_MS, LEASE_MS)
    assert not doubt.row.is_waited_for
    doubt.step(LEASE_MS, 2 * LEASE_MS)
    assert not doubt.row.is_waited_for
    assert doubt.state != "none"  # nothing has confirmed it


def test_lease_of_a_doubt_begins_when_the_plugin_is_left_and_not_anew_when_it_is_left_again() -> None:
    doubt = Doubt(0)
    doubt.confirm()
    assert doubt.wake_ms(LEASE_MS) == []
    doubt.leave(7)
    doubt.leave(9)
    assert doubt.wake_ms(LEASE_MS) == [LEASE_MS + 7]
    doubt.step(LEASE_MS + 6, LEASE_MS)
    assert doubt.row.is_waited_for
    doubt.step(LEASE_MS + 7, LEASE_MS)
    doubt.leave(LEASE_MS + 8)
    assert not doubt.row.is_waited_for


def test_only_what_this_process_may_have_published_is_its_own() -> None:
    doubt = Doubt(0)
    assert not doubt.row.is_own
    doubt.leave(1)  # no other one: what an earlier process published is still doubted
    assert not doubt.row.is_own
    doubt.confirm()
    assert (doubt.state, doubt.row.is_own) == ("none", False)
    doubt.leave(2)
    assert doubt.row.is_own
    doubt.step(LEASE_MS + 2, LEASE_MS)
    assert doubt.row.is_own
    doubt.confirm()
    assert doubt.state == "none"
