"""All that three members can do with leases on heartbeats, within bounds smaller than `make explore` has."""

from __future__ import annotations

import pytest

from garlicfarm.wire.messages import Grant
from tests.raft.explore_leases import Explored, explore
from tests.raft.lease_model import NOW, Bounds, Model

OWN = Bounds(entries=3, messages=0)
HEARTBEATS = Bounds(moves=0, messages=0, beats=1)
FIVE = Bounds(moves=0, of_five=True)
FEW = 100_000


def assert_never_two(found: Explored) -> None:
    assert not found.counterexample, "\n".join(["two members publish at once:", *found.counterexample])


@pytest.mark.parametrize("bounds", [OWN, HEARTBEATS], ids=["own", "heartbeats"])
def test_leader_and_its_successor_never_publish_at_once(bounds: Bounds) -> None:
    found = explore(Model(bounds))
    assert_never_two(found)
    assert found.is_exhausted


@pytest.mark.slow
def test_heartbeats_that_overtake_each_other_make_no_majority_newer() -> None:
    assert_never_two(explore(Model(HEARTBEATS._replace(beats=2)), FEW))


@pytest.mark.slow
def test_named_member_and_its_successor_never_publish_at_once() -> None:
    assert_never_two(explore(Model(Bounds(moves=0)), FEW))


@pytest.mark.slow
def test_late_and_repeated_grants_make_no_lease_longer() -> None:
    assert_never_two(explore(Model(Bounds(elections=0, entries=1, moves=0, messages=2)), FEW))


@pytest.mark.slow
def test_member_named_again_has_no_lease_for_its_former_naming() -> None:
    assert_never_two(explore(Model(Bounds(elections=0, entries=3)), FEW))


@pytest.mark.slow
def test_leader_that_reaches_only_the_named_member_of_five_extends_nothing() -> None:
    assert_never_two(explore(Model(FIVE), FEW))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounds", "read", "off"),
    [
        (OWN, "elected", -1),
        (HEARTBEATS, "sent", 1),
        (HEARTBEATS, "lost", 1),
        (FIVE, "age", -1),
        (FIVE, "heard", -1),
        (FIVE, "arrived", 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_clock_read_at_another_time_lets_two_publish(bounds: Bounds, read: str, off: int) -> None:
    """Schedule (d) of D24: what a driver may not do with the time."""
    model = Model(bounds)
    model.now[read] = NOW + off
    assert explore(model, FEW).counterexample


def test_leader_told_before_it_has_applied_its_first_entry_lets_two_publish() -> None:
    model = Model(Bounds(moves=0))
    model.has_caught_up = lambda node: True
    assert explore(model, FEW).counterexample


def test_counterexample_is_told_step_by_step() -> None:
    model = Model(HEARTBEATS)
    model.now["sent"] = NOW + 1
    told = explore(model).counterexample
    assert any("is elected with the vote of" in step for step in told)
    assert Grant.__name__ not in told[-1]
