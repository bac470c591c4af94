"""`node upgrade-check` against served nodes: what it asks whom, prints, and exits with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from garlicfarm import __version__
from garlicfarm.cli.exits import Exit
from tests.admin.fake_node import FakeFarm
from tests.cli.served import Cli, Served

OLD = {"role": "follower", "version": "0.2.0", "lag": 0, "error": None}


@pytest.fixture
def farm(served: Served) -> FakeFarm:
    """A farm of three, led by member 1, whose members run 0.2.0."""
    body = served.say(fault_tolerance=1)
    for row in body["members"]:
        row |= OLD
    body["members"][0]["role"] = "leader"
    return served.node.farm


def test_check_names_the_next_node_and_what_to_do_there(farm: FakeFarm, cli: Cli) -> None:
    out = cli("node", "upgrade-check").out.splitlines()
    assert [" ".join(line.split()) for line in out] == [
        "FARM ID ROLE VERSION REVISION LEVELS STATE",
        "farm 1 leader, publisher 0.2.0 - - to do",
        "farm 2 follower 0.2.0 - - next",
        "farm 3 follower 0.2.0 - - to do",
        "next: member 2",
        f"safe: stop node 2, install garlicfarm {__version__} there, start it, and run this again",
    ]


def test_check_says_why_not_now_and_exits_with_6(served: Served, farm: FakeFarm, cli: Cli) -> None:
    served.say(fault_tolerance=0)
    out = cli("node", "upgrade-check", exits=Exit.DEGRADED).out.splitlines()
    assert out[-2:] == [
        "next: member 2",
        "not now: farm farm can lose no member now: wait until `garlicfarm health` says that it can",
    ]
    farm.joining = {"id": 4, "endpoint": "ssl://d.example:1", "match": 1, "last_index": 2}
    told = json.loads(cli("node", "upgrade-check", "-o", "json", exits=Exit.DEGRADED).out)
    assert (told["schema"], told["version"]) == ("garlicfarm.node-upgrade-check/1", __version__)
    assert (told["next"], told["safe"]) == (2, False)
    assert told["holds"][1] == "member 4 is joining farm farm: wait until it has caught up"
    assert [row["state"] for row in told["members"]] == ["to do", "next", "to do"]


def test_check_after_the_last_node_says_which_level_can_be_raised(farm: FakeFarm, cli: Cli) -> None:
    for row in farm.status()["members"]:
        row |= {"version": __version__, "levels": [0, 1]}
    farm.status()["level"] = {"in_force": 0, "highest": 1, "brings": {"1": "more"}, "hindered_by": []}
    assert cli("node", "upgrade-check").out.splitlines()[-2:] == [
        f"nothing to do: all members run garlicfarm {__version__}",
        "farm farm: level 0; level 1 can be raised: `garlicfarm farm level raise` (it brings: more)",
    ]
    assert cli("node", "upgrade-check", "--to", "0.2.0").out.splitlines()[-2:-1] == ["next: member 2"]


def test_check_asks_all_named_nodes_and_believes_the_leader(served: Served, farm: FakeFarm, cli: Cli) -> None:
    password = served.node.data_dir / "local.password"
    login = ("--user", "local", "--password-file", str(password), "--pin", served.node.pin)
    nodes = ("--node", "https://127.0.0.1:9", "--node", served.url)
    assert "safe: stop node 2" in cli("node", "upgrade-check", *nodes, *login).out
    asked: list[int] = []
    leads = farm.status()

    def status() -> dict[str, Any]:
        """A follower the first time, the leader the second."""
        asked.append(1)
        return {**leads, "node": 2} if len(asked) == 1 else leads

    farm.status = status  # type: ignore[method-assign]
    farm.members = lambda: {"joining": None}  # type: ignore[method-assign]
    twice = ("--node", served.url, "--node", served.url)
    assert "safe: stop node 2" in cli("node", "upgrade-check", *twice, *login).out
    farm.status = lambda: {**leads, "node": 2}  # type: ignore[method-assign]
    said = cli("node", "upgrade-check", *twice, *login, exits=Exit.DEGRADED).out
    assert "not now: only member 1, which leads farm farm, knows how far the others are" in said


def test_check_where_no_node_answers_or_none_has_the_farm_is_an_error(
    served: Served, farm: FakeFarm, cli: Cli
) -> None:
    said = cli("node", "upgrade-check", "--farm", "missing", exits=Exit.USAGE).err
    assert "this node has no such farm" in said
    (served.node.data_dir / "admin.url").write_text("https://127.0.0.1:9\n")
    cli("node", "upgrade-check", exits=Exit.UNREACHABLE)
