"""Farms and services at Java I2P routers, on private networks with i2pd (make test-java)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.i2p import verdicts
from tests.i2p.script import run_script

TIMEOUT_S = 3600
MOVE_LOSES_AT_MOST = {"i2pd": 3, "java": 135}
"""Requests of a client that sends one each second. A router of Java I2P asks for an acknowledgement once a
minute, and only when that has not come for 60 s sends its client's LeaseSet along again: until then the
successor cannot answer."""

pytestmark = [
    pytest.mark.javai2p,
    pytest.mark.i2pd,
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(TIMEOUT_S + 60),
]

CLIENTS = pytest.mark.parametrize("clients", ["java", "i2pd"])
HOPS = pytest.mark.parametrize("hops", [(), ("--hops", "1", "--carriers", "4")], ids=["0", "1"])
"""At the outer end of its inbound tunnels Java I2P has only routers that say that they are reachable. Its own
do; i2pd does after a peer test, for which a small network often has no third router that is not connected."""


def run(script: str, *arguments: str | Path) -> verdicts.Told:
    return run_script(script, *arguments, "--servers", "java", timeout_s=TIMEOUT_S)


def test_farm_inside_i2p_lives_behind_proxies_and_tunnels_of_java_routers(tmp_path: Path) -> None:
    assert [each["what"] for each in run("farm_over_i2p", tmp_path)] == [
        *("routers", "election", "replication", "publisher", "join"),
        *("restart", "hand-over", "leader-change"),
    ]


def test_tunnel_takes_more_connections_than_java_i2p_allows_by_itself(tmp_path: Path) -> None:
    (told,) = run("often_over_i2p", tmp_path)
    assert told["answered"] > 240


@HOPS
@CLIENTS
def test_service_is_published_moved_and_survives_the_death_of_its_router(
    tmp_path: Path, clients: str, hops: tuple[str, ...]
) -> None:
    told = run("service_over_i2cp", tmp_path, "--clients", clients, *hops)
    verdicts.service_was_served(told, lost_at_most=MOVE_LOSES_AT_MOST[clients])


@HOPS
@CLIENTS
def test_much_is_carried_both_ways_unchanged(tmp_path: Path, clients: str, hops: tuple[str, ...]) -> None:
    told = run("transfers_over_i2cp", tmp_path, "--clients", clients, *hops)
    assert {each["what"]: each["failed"] for each in told} == {"down": 0, "up": 0, "many": 0}


@CLIENTS
def test_new_bundles_are_used_without_a_restart(tmp_path: Path, clients: str) -> None:
    told = run("keys_over_i2cp", tmp_path, "--clients", clients)
    verdicts.bundles_were_replaced(told, lost_at_most=MOVE_LOSES_AT_MOST[clients])


@CLIENTS
def test_sam_publishes_at_one_router_after_another(tmp_path: Path, clients: str) -> None:
    verdicts.sam_was_fetched(run("sam_over_i2p", tmp_path / "routers", "--clients", clients))


def test_meta_lease_set_is_stored_by_all_floodfills(tmp_path: Path) -> None:
    verdicts.meta_was_stored(run("meta_over_i2cp", tmp_path / "routers"))
