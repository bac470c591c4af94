"""Never two: LeaseSets at floodfills while the publisher of a service changes (make test-i2p)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from tests.i2p.never_two import Naming, Seen, judge
from tests.i2p.script import over_i2p, run_script

CHANGES = 20
WAYS = ("stop", "override", "kill", "clock", "partition")
TIMEOUT_S = 240 * (CHANGES + 2)

pytestmark = over_i2p(TIMEOUT_S, pytest.mark.tun)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What came about, in order, by its kind."""
    found: dict[str, list[dict[str, Any]]] = {"change": [], "seen": [], "naming": [], "looks": []}
    directory = tmp_path_factory.mktemp("changes")
    for each in run_script("changes_over_i2cp", directory, str(CHANGES), timeout_s=TIMEOUT_S):
        found[each.pop("what")].append(each)
    return found


def test_publisher_changes_in_every_way(told: dict[str, list[dict[str, Any]]]) -> None:
    changes = told["change"]
    assert Counter(each["way"] for each in changes) == dict.fromkeys(WAYS, CHANGES // len(WAYS))
    assert all(each["after"] == later["before"] for each, later in pairwise(changes))


def test_floodfills_never_have_a_lease_set_of_a_member_whose_term_has_ended(told) -> None:
    verdict = judge([Seen(**each) for each in told["seen"]], [Naming(**each) for each in told["naming"]])
    print(verdict, told["looks"])
    assert not verdict.violations
    assert len(verdict.owners) > CHANGES


def test_clients_are_answered_by_every_member_that_published(told) -> None:
    [looks] = told["looks"]
    assert set(looks["answers"]) == {f"node {each['owner']}" for each in told["seen"]}
