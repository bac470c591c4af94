"""Farms and services at Java I2P routers, on private networks with i2pd (make test-java)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.i2p.script import run_script

TIMEOUT_S = 1800

pytestmark = [
    pytest.mark.javai2p,
    pytest.mark.i2pd,
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(TIMEOUT_S + 60),
]

CLIENTS = pytest.mark.parametrize("clients", ["java", "i2pd"])
HOPS = pytest.mark.parametrize("hops", ["0", "1"])
MOVE_LOSES_AT_MOST = 3


def told_by(script: str, *arguments: str | Path) -> dict[str, dict[str, Any]]:
    """What came about, by its name; of what comes about twice, the last."""
    told = run_script(script, *arguments, "--servers", "java", timeout_s=TIMEOUT_S)
    return {each.pop("what"): each for each in told}


def test_farm_inside_i2p_lives_behind_proxies_and_tunnels_of_java_routers(tmp_path: Path) -> None:
    told = told_by("farm_over_i2p", tmp_path)
    assert list(told) == [
        *("routers", "election", "replication", "publisher", "join"),
        *("restart", "hand-over", "leader-change"),
    ]


@HOPS
@CLIENTS
def test_service_is_published_moved_and_survives_the_death_of_its_router(
    tmp_path: Path, clients: str, hops: str
) -> None:
    """The run waits for the answers of the right one; so it has ended well if it told everything."""
    told = told_by("service_over_i2cp", tmp_path, "--clients", clients, "--hops", hops)
    assert list(told) == [
        *("standby", "unpublished", "elected", "figures", "moved", "drained", "stays"),
        *("gone", "survived", "restarted", "back"),
    ]
    assert told["unpublished"]["counts"] == [0, 0, 0, 0]
    assert told["moved"]["text"] == told["stays"]["text"] == "node 2"
    assert told["stays"]["lost"] <= MOVE_LOSES_AT_MOST
    assert told["drained"]["has_ended"]


@HOPS
@CLIENTS
def test_much_is_carried_both_ways_unchanged(tmp_path: Path, clients: str, hops: str) -> None:
    told = told_by("transfers_over_i2cp", tmp_path, "--clients", clients, "--hops", hops)
    assert {name: each["failed"] for name, each in told.items()} == {"down": 0, "up": 0, "many": 0}


@CLIENTS
def test_new_bundles_are_used_without_a_restart(tmp_path: Path, clients: str) -> None:
    told = told_by("keys_over_i2cp", tmp_path, "--clients", clients)
    assert told["standby"] == {"is_ready": True, "is_new": True}
    assert "holds new keys" in told["moved"]["problems"][0]
    assert told["moved"]["text"] == "node 2"
    assert told["moved"]["lost"] <= MOVE_LOSES_AT_MOST
    assert told["back"]["is_new"]
    assert told["back"]["text"] == "node 1"
    assert told["alone"]["is_new"]
    assert told["alone"]["is_ready"]


@CLIENTS
def test_sam_publishes_at_one_router_after_another(tmp_path: Path, clients: str) -> None:
    arguments = [tmp_path, "--servers", "java", "--clients", clients]
    told = run_script("sam_over_i2p", *arguments, timeout_s=2 * TIMEOUT_S)
    assert [each["what"] for each in told] == [
        *("no-sam", "no-sam"),
        *("published", "fetched") * 2,
        "killed",
        *("published", "fetched"),
        *("hangs", "published"),
        *("published", "fetched"),
    ]


def test_meta_lease_set_is_taken_and_stored_by_all_floodfills(tmp_path: Path) -> None:
    told = run_script("meta_over_i2cp", tmp_path, "--servers", "java", timeout_s=TIMEOUT_S)
    assert [each["counts"] for each in told if each["what"] == "stored"] == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert told[-1] == {"what": "retired", "is_publishing": False}
