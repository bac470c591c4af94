"""Never do two routers serve one service: sessions seen by witnesses while the publisher changes.

``CHANGES=20 make test-i2p`` makes more changes than the three of continuous integration.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import pytest

from tests.i2p.script import over_i2p, run_script

CHANGES = int(os.environ.get("CHANGES", "3"))
TIMEOUT_S = 240 * (CHANGES + 2)
RESUMED_S = 1.0

pytestmark = over_i2p(TIMEOUT_S, pytest.mark.tun)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came about, in order."""
    return run_script("one_publisher", tmp_path_factory.mktemp("one"), str(CHANGES), timeout_s=TIMEOUT_S)


def test_publisher_changes_in_order_by_a_partition_and_by_a_crash(told: list[dict[str, Any]]) -> None:
    changes = [each for each in told if "way" in each]
    assert len(changes) == CHANGES
    assert {each["way"] for each in changes[:3]} == {"override", "partition", "kill"}
    assert all(after["from"] == before["to"] for before, after in pairwise(changes))


def test_no_session_of_the_service_is_opened_before_every_other_one_has_ended(told):
    [sessions] = [each["sessions"] for each in told if "sessions" in each]
    assert len(sessions) > CHANGES
    for (before, _, ended_s), (after, opened_s, _) in pairwise(sessions):
        assert ended_s <= opened_s, f"node {after} opened before node {before} had ended: {sessions}"


def test_session_of_a_node_that_was_stopped_ends_within_a_second_of_its_resuming(told):
    [resumed_s] = [each["resumed_s"] for each in told if "resumed_s" in each]
    assert resumed_s <= RESUMED_S
