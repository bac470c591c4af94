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
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.setup.add_farm import add_farm
from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_farm, create_joining_node, create_node
from garlicfarm.storage import LogStore
from tests.setup.test_add_farm import TOKEN

MEMBERS = {i: MemberPlan(endpoint=f"ssl://{i}.example:1") for i in (2, 3, 5)}


def first_entries(node: Path, farm: str = "farm") -> list[dict[str, Any]]:
    with closing(LogStore.open(node / "data" / "farms" / farm, farm=farm)) as store:
        last = store.last_index()
        return [json.loads(entry.value) for entry in (store.entries(1, last + 1, 10**6) if last else ())]


def orders(node: Path, farm: str = "farm") -> list[tuple[str, dict[str, int]]]:
    admins = [entry["config"]["admin"] for entry in first_entries(node, farm)]
    return [(admin["action"], admin["args"]) for admin in admins]


def test_orders_are_in_force_also_where_no_configuration_was_known_before_them(tmp_path: Path) -> None:
    """At a member that joined, and in Spark: they fold the log from its beginning."""
    create_farm(tmp_path / "new", MEMBERS, FarmPlan(interval_ms=5_000))
    with closing(
        LogStore.open(tmp_path / "new" / "node-2" / "data" / "farms" / "farm", farm="farm")
    ) as store:
        founded, joined = PublisherFold("farm"), PublisherFold("farm")
        _, configuration = store.initial_state()
        founded.configure(0, configuration)
        for fold in (founded, joined):
            for entry in store.entries(1, 3, 10**6):
                fold.apply(entry.index, entry.term, entry.value)
            fold.configure(3, configuration)
    assert (joined.R, joined.interval_ms) == (5, 5_000)
    assert joined.ranking() == founded.ranking()
    assert joined.snapshot() == founded.snapshot()


@pytest.mark.parametrize(("preset", "interval_ms", "R"), [("clearnet", 5_000, 5), ("i2p", 30_000, 7)])
def test_every_founding_member_s_log_begins_with_the_preset_s_orders(
    tmp_path: Path, preset: str, interval_ms: int, R: int
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


def test_node_init_and_farm_add_give_their_farms_orders(tmp_path: Path) -> None:
    node = tmp_path / "node"
    assert run(["node", "init", str(node), "--host", "a.example"]) == 0
    assert run(["farm", "add", "barn", "--config", str(node / "garlicfarm.toml")]) == 0
    expected = [("staleness", {"R": 5}), ("interval", {"ms": 5_000})]
    assert orders(node) == orders(node, "barn") == expected


def test_farm_of_another_application_begins_with_an_empty_log(tmp_path: Path) -> None:
    plan = FarmPlan(application="log", interval_ms=5_000)
    create_node(tmp_path / "node", 1, MemberPlan(endpoint="ssl://a.example:1"), plan)
    assert first_entries(tmp_path / "node") == []
    config = load(tmp_path / "node" / "garlicfarm.toml", {})
    add_farm(config, "", FarmPlan(name="second", application="log", interval_ms=5_000))
    assert first_entries(tmp_path / "node", "second") == []


def test_joining_node_begins_with_an_empty_log(tmp_path: Path) -> None:
    token = replace(TOKEN, farm="farm", application="publisher")
    create_joining_node(tmp_path / "new", MemberPlan(endpoint="ssl://d.example:5"), token)
    assert first_entries(tmp_path / "new") == []
