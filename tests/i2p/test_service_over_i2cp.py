"""A service over I2CP, on a private network of real routers (make test-i2p)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1000
ASKS_AGAIN_S = 51

pytestmark = [
    pytest.mark.i2p,
    pytest.mark.i2pd,
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(TIMEOUT_S + 60),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came about, in order."""
    ended = subprocess.run(
        [
            *("unshare", "--map-root-user", "--net", sys.executable, "-m", "tests.i2p.service_over_i2cp"),
            str(tmp_path_factory.mktemp("service")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return {each.pop("what"): each for each in map(json.loads, ended.stdout.splitlines())}


def test_service_is_fetched_from_one_publisher_after_another(told: dict[str, dict[str, Any]]) -> None:
    """The run waits for the answers of the right one; so it has ended well if it told everything."""
    assert list(told) == [
        *("standby", "unpublished", "elected", "moved", "stays"),
        *("gone", "survived", "restarted", "back"),
    ]


def test_no_floodfill_has_the_lease_set_of_a_session_on_standby(told: dict[str, dict[str, Any]]) -> None:
    assert told["unpublished"]["counts"] == [0, 0, 0, 0]


def test_client_stays_with_the_successor_and_loses_at_most_one_request(
    told: dict[str, dict[str, Any]],
) -> None:
    assert told["moved"]["problems"] == []
    assert told["moved"]["text"] == "node 2"
    assert told["stays"]["text"] == "node 2"
    assert told["stays"]["lost"] <= 1


def test_client_moves_before_it_would_ask_for_a_lease_set_again(told: dict[str, dict[str, Any]]) -> None:
    """So it was handed over: i2pd asks again once the leases that it knows last 51 s or less."""
    assert told["moved"]["left_s"] > ASKS_AGAIN_S


def test_router_that_dies_is_noticed_by_the_end_of_its_connection(told: dict[str, dict[str, Any]]) -> None:
    (problem,) = told["gone"]["problems"]
    assert problem.endswith("has closed the connection")
