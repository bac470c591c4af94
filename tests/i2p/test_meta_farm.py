"""The Meta LeaseSet of a farm on real routers, whichever node or router dies (make test-i2p).

``KEYS=long-term make test-i2p`` has the nodes sign with the long-term key, not with bundles.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import pytest

from tests.i2p.script import over_i2p, run_script

KEYS = os.environ.get("KEYS", "bundle")
TIMEOUT_S = 900

pytestmark = over_i2p(TIMEOUT_S)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came about, in order."""
    return run_script("meta_farm", tmp_path_factory.mktemp("meta"), KEYS, timeout_s=TIMEOUT_S)


def only(told: list[dict[str, Any]], what: str) -> dict[str, Any]:
    (found,) = [each for each in told if each["what"] == what]
    return found


def test_next_publishers_newer_lease_set_is_stored_after_the_death_of_a_node_and_of_a_router(told):
    """Its signature was verified, as was that its date is later."""
    published = [each for each in told if each["what"] == "published"]
    assert len(published) == 3
    assert all(before["by"] != after["by"] for before, after in pairwise(published))
    assert all(each["offline"] is (KEYS == "bundle") for each in published)


def test_order_to_publish_is_obeyed_once_and_shown(told: list[dict[str, Any]]) -> None:
    ordered = only(told, "ordered")
    (row,), shown = ordered["ordered"], ordered["shown"]
    assert shown["last_published_ms"] == row["last_published_ms"]
    assert shown["order"]["index"] == row["index"]
    assert (shown["publisher"], shown["publishing"]) == (row["publisher"], True)
    assert shown["problems"] == []
    (publisher,) = shown["publishers"]
    assert (publisher["plugin"], publisher["state"], publisher["problems"]) == ("i2cp", "publishing", [])


def test_restarted_node_reports_what_it_published_before(told: list[dict[str, Any]]) -> None:
    before, after = only(told, "restarted")["kept"]
    assert all(before)
    assert after == before


def test_member_whose_router_is_dead_is_not_named_again(told: list[dict[str, Any]]) -> None:
    end = only(told, "end")
    _, second, third = end["turns"]
    assert end["names"][-1] == end["shown"]["publisher"] == third
    assert second not in end["shown"]["can_publish"]
    (publisher,) = end["shown"]["publishers"]
    assert publisher["state"] == "not ready"
    assert "cannot be reached: Connection refused" in publisher["problems"][0]
