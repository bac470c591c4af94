"""`garlicfarm health`: its word and exit code, from a node in memory and from real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.cli import run
from garlicfarm.setup.provision import MemberPlan, create_node
from tests.cli.served import Cli, Served, serving

RAISABLE = {"in_force": 0, "highest": 1, "brings": {"1": "more"}, "hindered_by": []}
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with serving(tmp_path, monkeypatch, "farm", "other") as served:
        yield served


SERVING = {
    "plugin": "i2cp",
    "streams": {"open": 3, "most": 256},
    "refused": {"too many streams": 7, "unsigned": 1200},
}


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"fault_tolerance": 1}, 0, "farm farm: healthy, leader 1, can lose 1 more"),
        ({"fault_tolerance": 0}, 6, "farm farm: degraded, leader 1, can lose 0 more"),
        (
            {"quorum": False, "needed": 2, "leader": None},
            5,
            "farm farm: no-quorum, leader none, no leader seen yet, 2 more needed",
        ),
        ({"quorum": False, "leader": None}, 5, "farm farm: no-quorum, leader none, no leader seen yet"),
        (
            {"fault_tolerance": 1, "disk_hangs_s": 7.4},
            6,
            "farm farm: degraded, leader 1, can lose 1 more, the disk of this node has not answered for 7 s",
        ),
        (
            {
                "fault_tolerance": 1,
                "feeds": [
                    {"name": "idle", "state": "running", "problem": None},
                    {"name": "files", "state": "failed", "problem": "/x: No space left on device"},
                    {"name": "dafka", "state": "running", "problem": "no tower answers"},
                ],
            },
            0,
            "farm farm: healthy, leader 1, can lose 1 more"
            "; feed files failed: /x: No space left on device"
            "; fix that; the node restarts the feed by itself"
            "; feed dafka blocked: no tower answers"
            "; check its destination and the node's log; the feed continues by itself",
        ),
        (
            {
                "fault_tolerance": 1,
                "problems": [
                    "no member publishes: no member is eligible; `garlicfarm farm show` says why",
                    "the clock of member 3 is 60 min behind the farm's: correct it",
                ],
            },
            6,
            "farm farm: degraded, leader 1, can lose 1 more"
            "; no member publishes: no member is eligible; `garlicfarm farm show` says why"
            "; the clock of member 3 is 60 min behind the farm's: correct it",
        ),
        (
            {
                "fault_tolerance": 1,
                "key_expiries": {"2": 1},
                "problems": [
                    "keys of member 2 have expired: make new bundles with `garlicfarm keys offline`"
                ],
            },
            6,
            "farm farm: degraded, leader 1, can lose 1 more"
            "; keys of member 2 have expired: make new bundles with `garlicfarm keys offline`",
        ),
        (
            {"fault_tolerance": 1, "level": RAISABLE},
            0,
            "farm farm: healthy, leader 1, can lose 1 more"
            "; level 0; level 1 can be raised: `garlicfarm farm level raise` (it brings: more)",
        ),
        (
            {"members": [{}, {}, {"id": 3, "trouble": "it is stuck", "trouble_since_ms": 50_524_000}]},
            6,
            "farm farm: degraded, leader 1, can lose 0 more"
            "; member 3 does not keep up since 14:02:04 UTC: it is stuck",
        ),
        (
            {"fault_tolerance": 1, "publishers": [SERVING, {"plugin": "hooks"}]},
            0,
            "farm farm: healthy, leader 1, can lose 1 more; publisher i2cp of this node: 3 of 256 streams, "
            "refused: unsigned 1,200, too many streams 7",
        ),
        # Two of two: none can be lost, and none is missing.
        ({"members": [{}, {}]}, 0, "farm farm: healthy, leader 1, can lose 0 more"),
    ],
)
def test_health_of_a_farm_is_one_line_and_a_code(served, cli, changes, code, text):
    served.say(**changes)
    assert cli("health", "--farm", "farm", exits=code).out == text + "\n"


def test_health_as_json_names_its_schema(served: Served, cli: Cli) -> None:
    whole: dict[str, Any] = {
        "leader": 1,
        "fault_tolerance": 0,
        "disk_hangs_s": None,
        "key_problems": {},
        "feed_problems": {},
    }
    whole |= {
        "problems": [],
        "publishers": [],
        "troubles": {},
        "troubles_since_ms": {},
        "level": served.node.farm.level,
    }
    expected = {"farm": "farm", "health": "degraded", **whole}
    assert json.loads(cli("health", "--farm", "farm", "-o", "json", exits=6).out) == {
        "schema": "garlicfarm.health/1",
        **expected,
    }
    found = {"leaders": {"farm": 1, "other": 1}, "disk_hangs_s": {}}
    told = json.loads(cli("health", "--local", "-o", "jsonl").out)
    assert told == {"schema": "garlicfarm.health-local/1", **found}


def test_health_local_wants_a_leader_in_every_farm(served: Served, cli: Cli) -> None:
    cli("health", "--local")
    served.node.farms["other"].leader = lambda: None  # type: ignore[method-assign]
    said = cli("health", "--local", exits=5).out
    assert said == "farm farm: leader 1, farm other: leader none\n"
    cli("health", "--local", "--farm", "farm")


def test_health_local_wants_a_disk_that_answers(served: Served, capsys: Capture) -> None:
    served.node.farms["other"].disk_hangs_s = 61.0
    assert run(["health", "--local"]) == 6
    silent = "farm other: leader 1, the disk of this node has not answered for 61 s"
    assert capsys.readouterr().out == f"farm farm: leader 1, {silent}\n"
    assert run(["health", "--local", "--farm", "farm"]) == 0


def test_health_local_of_a_farm_that_is_not_there_is_not_healthy(served: Served, cli: Cli) -> None:
    assert "this node has no such farm" in cli("health", "--local", "--farm", "missing", exits=2).err


@pytest.mark.parametrize("arguments", [["health"], ["health", "--local"]])
def test_health_of_a_node_that_does_not_run_is_unreachable(tmp_path, cli, arguments):
    member = MemberPlan(endpoint="ssl://127.0.0.1:27150", admin_url="https://127.0.0.1:1")
    create_node(tmp_path, 1, member)
    assert cli(*arguments, "--config", str(tmp_path / "garlicfarm.toml"), exits=3).out == ""
