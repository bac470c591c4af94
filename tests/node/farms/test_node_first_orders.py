"""A new farm's own interval and R: in force once the first leader commits them, and never again after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.cli.exits import Exit
from garlicfarm.durations import format_ms
from garlicfarm.levels import LEASES
from garlicfarm.node.publisher.application import PublisherApplication
from garlicfarm.wire.messages import ValueType
from tests.node.membership.test_node_administration import command, policy, same_bytes
from tests.node.support.cluster import ALONE, THREE, Cluster, cluster
from tests.running import wait_until


def orders_in_log(nodes: Cluster, node_id: int) -> list[tuple[str, str]]:
    """Action and author of every order in a node's log."""
    store = nodes.replica(node_id).store
    entries = store.entries(1, store.last_index() + 1, 10**9)
    values = [json.loads(each.value) for each in entries if each.value_type is ValueType.APPLICATION]
    admins = [value["config"]["admin"] for value in values if "admin" in value["config"]]
    return [(admin["action"], admin["by"]) for admin in admins]


def values(nodes: Cluster, node_id: int) -> tuple[int, int, list[int]]:
    told: dict[str, Any] = policy(nodes, node_id)
    return told["interval_ms"], told["R"], [order["index"] for order in told["orders"].values()]


async def test_first_orders_are_in_force_once_whichever_member_leads_and_however_often_it_changes(
    tmp_path: Path,
) -> None:
    plan: dict[str, Any] = {"application": "publisher", "interval_ms": 5_000, "lease_ms": 9_000}
    async with cluster(tmp_path, 3, **plan, start=False) as nodes:
        await nodes.start(2, 3)  # one founding member is late
        killed = await nodes.leader()
        running = nodes.running[killed]
        running.scope.cancel()  # before or after it has committed them
        await running.ended.wait()
        await nodes.start(1)
        await nodes.leader()
        await nodes.applied(4)
        assert values(nodes, 1) == (5_000, 4, [1, 2, 4])
        await nodes.start(killed)
        await nodes.leader()
        assert await command(nodes, 1, "farm", "set", "interval=7s", "R=9") == 0
        for _ in range(2):
            leader = await nodes.leader()
            await nodes.stop(leader)
            await nodes.leader()
            await nodes.start(leader)
        await nodes.leader()
        await same_bytes(nodes)
        once = [(action, "farm create") for action in ("staleness", "interval", "lease")]
        for node_id in nodes.running:
            assert values(nodes, node_id)[:2] == (7_000, 9)
            assert orders_in_log(nodes, node_id) == [*once, ("interval", "local"), ("staleness", "local")]


async def test_command_and_log_warn_of_a_lease_that_a_slow_election_would_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    plan: dict[str, Any] = {"application": "publisher", "interval_ms": 5_000, "raft": THREE}
    async with cluster(tmp_path, 1, **plan) as nodes:
        await nodes.applied(2)
        told = policy(nodes, 1)
        assert told["lease_ms"] >= told["least_lease_ms"]
        assert await command(nodes, 1, "farm", "set", "R=3") == 0  # on which no lease rests
        assert capsys.readouterr().err == ""
        assert "lease-too-short" not in caplog.text
        assert await command(nodes, 1, "farm", "set", "lease=1s") == 0
        assert capsys.readouterr().err == (
            "warning: with a lease of 1s a slow change of the leader ends a healthy publisher: "
            f"`garlicfarm farm set lease={format_ms(told['least_lease_ms'])}` or more outlasts it\n"
        )
        await wait_until(lambda: "lease-too-short" in caplog.text)
    assert PublisherApplication("farm").policy().keys() >= {"interval_ms", "R"}  # before it runs


async def test_below_level_2_the_lease_follows_from_interval_and_r_and_cannot_be_set(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("garlicfarm.setup.provision.HIGHEST", LEASES - 1)
    plan: dict[str, Any] = {
        "application": "publisher",
        "interval_ms": 5_000,
        "raft": {**ALONE, "rpc_timeout_s": 4.0},
    }
    async with cluster(tmp_path, 1, **plan) as nodes:
        await nodes.applied(2)
        told = policy(nodes, 1)
        assert told["R"] == told["least_R"]
        assert told.keys() & {"lease_ms", "least_lease_ms"} == set()
        assert await command(nodes, 1, "farm", "set", "R=9", "lease=5s") == Exit.ERROR
        assert capsys.readouterr().err == (
            "error: nothing was changed: lease can be set from level 2 on, and the farm is at level 1: "
            "`garlicfarm farm level raise` raises it, once the programs of all members can that\n"
        )
        assert policy(nodes, 1) == told | {"index": policy(nodes, 1)["index"]}
        assert await command(nodes, 1, "farm", "set", "R=9") == 0
        assert capsys.readouterr().err == ""
        assert "lease-too-short" not in caplog.text
        assert await command(nodes, 1, "farm", "set", "R=3") == 0
        assert capsys.readouterr().err == (
            "warning: with an interval of 5s and R=3 a slow change of the leader ends a healthy publisher: "
            f"`garlicfarm farm set R={told['least_R']}` or more outlasts it\n"
        )
        await wait_until(lambda: "lease-too-short" in caplog.text)
