"""The orders that a new farm's log begins with: how often its members post, and R."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from garlicfarm.cli import run
from garlicfarm.config import load
from garlicfarm.levels import HIGHEST, LOWEST
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.raft.types import Entry
from garlicfarm.setup.add_farm import add_farm
from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_farm, create_joining_node, create_node
from garlicfarm.storage import LogStore
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import ValueType
from tests.setup.test_add_farm import TOKEN

MEMBERS = {i: MemberPlan(endpoint=f"ssl://{i}.example:1") for i in (2, 3, 5)}


def entries(node: Path, farm: str = "farm") -> list[Entry]:
    with closing(LogStore.open(node / "data" / "farms" / farm, farm=farm)) as store:
        last = store.last_index()
        return [*store.entries(1, last + 1, 10**6)] if last else []


def first_entries(node: Path, farm: str = "farm") -> list[dict[str, Any]]:
    """The Application entries."""
    kind = ValueType.APPLICATION
    return [json.loads(entry.value) for entry in entries(node, farm) if entry.value_type is kind]


def orders(node: Path, farm: str = "farm") -> list[tuple[str, dict[str, int]]]:
    admins = [entry["config"]["admin"] for entry in first_entries(node, farm)]
    return [(admin["action"], admin["args"]) for admin in admins]


def test_orders_are_in_force_also_where_no_configuration_was_known_before_them(tmp_path: Path) -> None:
    """At a member that joined, and in Spark: they fold the log from its beginning."""
    made = create_farm(tmp_path / "new", MEMBERS, FarmPlan(interval_ms=5_000, lease_ms=20_000))
    founded, joined = PublisherFold("farm"), PublisherFold("farm")
    founded.configure(0, made.configuration)
    for fold in (founded, joined):
        for entry in entries(made.directories[2]):
            if entry.value_type is ValueType.CONFIGURATION:
                fold.configure(entry.index, decode_configuration(entry.value))
            else:
                fold.apply(entry.index, entry.term, entry.value)
    assert (joined.R, joined.interval_ms, joined.lease_lasts_ms, joined.level) == (5, 5_000, 20_000, HIGHEST)
    assert joined.skipped == {}
    assert joined.ranking() == founded.ranking()
    assert joined.snapshot() == founded.snapshot()


@pytest.mark.parametrize(
    ("preset", "interval_ms", "R", "lease_ms"), [("clearnet", 5_000, 5, 5_000), ("i2p", 30_000, 7, 120_000)]
)
def test_every_founding_member_s_log_begins_with_the_preset_s_orders(
    tmp_path: Path, preset: str, interval_ms: int, R: int, lease_ms: int
) -> None:
    command = ["farm", "create", "--preset", preset, "--out", str(tmp_path / "farm")]
    for node_id, member in MEMBERS.items():
        command += ["--member", f"{node_id}={member.endpoint}"]
    assert run(command) == 0
    of_two, of_three, of_five = (first_entries(tmp_path / "farm" / f"node-{i}") for i in (2, 3, 5))
    assert of_two == of_three == of_five
    assert orders(tmp_path / "farm" / "node-2") == [
        ("staleness", {"R": R}),
        ("interval", {"ms": interval_ms}),
        ("lease", {"ms": lease_ms}),
    ]
    assert {(entry["id"], entry["config"]["admin"]["by"]) for entry in of_two} == {(2, "farm create")}


def test_r_follows_the_farm_s_own_timings_and_the_slowest_publisher(tmp_path: Path) -> None:
    slow = MemberPlan(
        endpoint="ssl://9.example:1",
        publishers=({"plugin": "simulated"}, {"plugin": "simulated", "retire_timeout_s": 11}),
    )
    raft = {"election_timeout_max_s": 4.0, "rpc_timeout_s": 1.0}
    made = create_farm(tmp_path / "farm", MEMBERS | {9: slow}, FarmPlan(raft=raft, interval_ms=4_000))
    # 4 + 2 × 4 + 1 s without a commit, and a quarter of the lease, which is less than 11 s, to stop
    assert orders(made.directories[9])[0] == ("staleness", {"R": 7})


def test_lease_is_longer_where_the_farm_s_own_timings_ask_for_that(tmp_path: Path) -> None:
    raft = {"election_timeout_max_s": 7.0, "heartbeat_s": 0.6}
    plan = FarmPlan(raft=raft, lease_ms=6_000)
    made = create_farm(tmp_path / "farm", MEMBERS, plan)
    # 2 × 7 + 3 × 0.6 s without a grant, and 1 s to stop
    assert orders(made.directories[2]) == [("lease", {"ms": 17_000})]
    assert entries(made.directories[2])[0].value_type is ValueType.CONFIGURATION


def test_farm_with_jraft_among_its_first_members_has_no_order_of_a_level_that_it_has_not(
    tmp_path: Path,
) -> None:
    members = {1: MEMBERS[2], 2: MemberPlan(endpoint="jraft://b.example:1")}
    made = create_farm(tmp_path / "farm", members, FarmPlan(interval_ms=5_000, lease_ms=6_000))
    assert made.configuration.level == LOWEST
    assert [action for action, _ in orders(made.directories[1])] == ["staleness", "interval"]
    assert len(entries(made.directories[1])) == 2


def test_node_init_and_farm_add_give_their_farms_orders(tmp_path: Path) -> None:
    node = tmp_path / "node"
    assert run(["node", "init", str(node), "--host", "a.example"]) == 0
    assert run(["farm", "add", "barn", "--config", str(node / "garlicfarm.toml")]) == 0
    expected = [("staleness", {"R": 5}), ("interval", {"ms": 5_000}), ("lease", {"ms": 5_000})]
    assert orders(node) == orders(node, "barn") == expected


def test_farm_of_another_application_begins_with_an_empty_log(tmp_path: Path) -> None:
    plan = FarmPlan(application="log", interval_ms=5_000, lease_ms=6_000)
    create_node(tmp_path / "node", 1, MemberPlan(endpoint="ssl://a.example:1"), plan)
    assert entries(tmp_path / "node") == []
    config = load(tmp_path / "node" / "garlicfarm.toml", {})
    add_farm(config, "", FarmPlan(name="second", application="log", interval_ms=5_000))
    assert entries(tmp_path / "node", "second") == []


def test_joining_node_begins_with_an_empty_log(tmp_path: Path) -> None:
    token = replace(TOKEN, farm="farm", application="publisher")
    create_joining_node(tmp_path / "new", MemberPlan(endpoint="ssl://d.example:5"), token)
    assert entries(tmp_path / "new") == []
