"""A service over I2CP, on a private network of real routers (make test-i2p)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.i2p.script import over_i2p, run_script

TIMEOUT_S = 1000
ASKS_AGAIN_S = 51

pytestmark = over_i2p(TIMEOUT_S + 60)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came about, in order."""
    told = run_script("service_over_i2cp", tmp_path_factory.mktemp("service"), timeout_s=TIMEOUT_S)
    return {each.pop("what"): each for each in told}


def test_service_is_fetched_from_one_publisher_after_another(told: dict[str, dict[str, Any]]) -> None:
    """The run waits for the answers of the right one; so it has ended well if it told everything."""
    assert list(told) == [
        *("standby", "unpublished", "elected", "figures", "moved", "drained", "stays"),
        *("gone", "survived", "restarted", "back"),
    ]


def test_no_floodfill_has_the_lease_set_of_a_session_on_standby(told: dict[str, dict[str, Any]]) -> None:
    assert told["unpublished"]["counts"] == [0, 0, 0, 0]


def test_leaf_has_the_figures_of_its_session_and_streams(told: dict[str, dict[str, Any]]) -> None:
    publishes, stands_by = told["figures"]["publishes"], told["figures"]["stands_by"]
    for leaf in (publishes, stands_by):
        assert leaf["currentTunnels"].keys() == {"in"}
        assert leaf["currentTunnels"]["in"] >= len(leaf["leaseEnds"]) >= 1
        assert leaf["leaseSetExpires"] == max(leaf["leaseEnds"])
        assert "configuredBandwidth" not in leaf  # i2pd tells no limits
        assert leaf["currentConnections"] <= leaf["configuredConnections"]
    assert publishes["currentConnections"] >= 1
    assert publishes["currentBandwidth"]["out"] > 0
    assert publishes["streams"]["roundTripMs"] >= 0
    assert publishes["streams"]["sentPackets"] > publishes["streams"]["resentPackets"]
    assert stands_by["currentConnections"] == stands_by["streams"]["sentPackets"] == 0


def test_client_stays_with_the_successor_and_loses_at_most_one_request(told):
    assert told["moved"]["problems"] == []
    assert told["moved"]["text"] == "node 2"
    assert told["stays"]["text"] == "node 2"
    assert told["stays"]["lost"] <= 1


def test_client_moves_before_it_would_ask_for_a_lease_set_again(told: dict[str, dict[str, Any]]) -> None:
    """So it was handed over: i2pd asks again once the leases that it knows last 51 s or less."""
    assert told["moved"]["left_s"] > ASKS_AGAIN_S


def test_download_that_is_open_at_a_move_ends_soon(told: dict[str, dict[str, Any]]) -> None:
    """Without a reset i2pd ends it after 140 s."""
    assert told["drained"]["has_ended"]


def test_router_that_dies_is_noticed_by_the_end_of_its_connection(told: dict[str, dict[str, Any]]) -> None:
    (problem,) = told["gone"]["problems"]
    assert problem.endswith("has closed the connection")
