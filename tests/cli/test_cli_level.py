"""`farm level` against a served node: what it shows, what it asks before it raises, and what it says of a
refusal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from garlicfarm.cli.exits import Exit
from garlicfarm.errors import NotLeader, ProposalDropped
from garlicfarm.refusals import Refusal
from tests.admin.fake_node import FakeFarm
from tests.cli.served import Cli, Served
from tests.running import Terminal

POSSIBLE = {"in_force": 0, "highest": 1, "brings": {"1": "more"}, "hindered_by": []}
HINDERED = POSSIBLE | {"hindered_by": ["member 3 is not connected: bring it back, or remove it"]}


@pytest.fixture
def farm(served: Served) -> FakeFarm:
    served.node.farm.level = POSSIBLE
    return served.node.farm


def with_rows(farm: FakeFarm, **known: Any) -> dict[str, Any]:
    """Have each member's row hold this too."""
    body = farm.status()
    body["members"] = [row | known for row in body["members"]]
    farm.status = lambda: body  # type: ignore[method-assign]
    return body


def test_level_show_says_who_can_what_and_what_could_be_raised(farm: FakeFarm, cli: Cli) -> None:
    with_rows(farm, version="0.3.0", revision="0123456789ab", levels=[0, 1])
    assert cli("farm", "level", "show").out.splitlines() == [
        "farm farm: level 0; level 1 can be raised: `garlicfarm farm level raise` (it brings: more)",
        "ID  ROLE         VERSION  REVISION      LEVELS",
        "1   leader       0.3.0    0123456789ab  0 to 1",
        "2   follower     0.3.0    0123456789ab  0 to 1",
        "3   unreachable  0.3.0    0123456789ab  0 to 1",
    ]
    told = json.loads(cli("farm", "level", "show", "-o", "json").out)
    assert (told["schema"], told["farm"], told["leader"]) == ("garlicfarm.farm-level/1", "farm", 1)
    assert {key: told[key] for key in POSSIBLE} == POSSIBLE
    assert told["members"][0]["levels"] == [0, 1]


def test_level_show_names_who_hinders_a_higher_one(farm: FakeFarm, cli: Cli) -> None:
    farm.level = HINDERED
    first, *_, last = cli("farm", "level", "show").out.splitlines()
    assert first == "farm farm: level 0; level 1 cannot be raised now"
    assert last == "member 3 is not connected: bring it back, or remove it"


def test_level_show_of_the_highest_level_and_of_an_older_node(farm: FakeFarm, cli: Cli) -> None:
    farm.level = POSSIBLE | {"in_force": 1, "brings": {}}
    highest = "the highest that the program of node 1 can"
    assert cli("farm", "level", "show").out.splitlines()[0] == f"farm farm: level 1, {highest}"
    body = with_rows(farm)
    del body["level"]
    for row in body["members"]:
        del row["revision"], row["levels"]
    assert cli("farm", "level", "show").out.splitlines()[0] == f"farm farm: level 0, {highest}"
    said = cli("farm", "level", "raise", "--yes", exits=Exit.ERROR).err
    assert said == "error: node 1 runs a program that knows no levels: upgrade it first\n"


@pytest.mark.parametrize("wanted", [[], ["1"]])
def test_level_is_raised_in_the_name_of_the_user(farm: FakeFarm, cli: Cli, wanted: list[str]) -> None:
    told, said = cli("farm", "level", "raise", *wanted, "--yes", "-o", "json")
    assert json.loads(told) == {
        "schema": "garlicfarm.farm-level-raise/1",
        "farm": "farm",
        "before": 0,
        "level": 1,
        "index": 1,
        "term": 3,
    }
    assert said == ""
    assert farm.raised == [(1, "local")]


def test_level_is_raised_to_what_the_leader_can_and_not_to_what_the_asked_node_can(
    farm: FakeFarm, cli: Cli
) -> None:
    body = with_rows(farm, levels=[0, 1])
    body["leader"] = 2
    body["members"][1]["levels"] = [0, 4]
    cli("farm", "level", "raise", "--yes")
    assert farm.raised == [(4, "local")]


@pytest.mark.parametrize("wanted", [[], ["1"]])
def test_level_that_is_reached_already_is_no_error(farm: FakeFarm, cli: Cli, wanted: list[str]) -> None:
    farm.level = POSSIBLE | {"in_force": 1, "brings": {}}
    told, said = cli("farm", "level", "raise", *wanted, "-o", "json")
    assert json.loads(told)["index"] is None
    assert said == "the farm farm is at level 1 already\n"
    assert farm.raised == []


def test_level_that_another_administrator_has_raised_meanwhile_is_no_error(farm: FakeFarm, cli: Cli) -> None:
    farm.post_error = ProposalDropped(Refusal.LEVEL_REACHED)
    assert cli("farm", "level", "raise", "--yes").err == "the farm farm is at level 1 already\n"


def test_lower_level_than_the_one_in_force_is_refused(farm: FakeFarm, cli: Cli) -> None:
    farm.level = POSSIBLE | {"in_force": 2, "highest": 2, "brings": {}}
    said = cli("farm", "level", "raise", "1", "--yes", exits=Exit.ERROR).err
    assert said == "error: the farm farm is at level 2, and levels only rise\n"
    assert farm.raised == []


def test_refused_raise_names_the_members_and_what_to_do(farm: FakeFarm, cli: Cli) -> None:
    hindered = "member 3 runs garlicfarm 0.2.9, which can level 0: upgrade it"
    farm.post_error = ProposalDropped(Refusal.CANNOT_FOLLOW_LEVEL, hindered)
    told, said = cli("farm", "level", "raise", "--yes", exits=Exit.ERROR)
    assert told == ""
    assert hindered in said
    assert "garlicfarm node upgrade-check" in said


def test_raise_at_a_node_that_does_not_lead_says_where_to_ask(farm: FakeFarm, cli: Cli) -> None:
    farm.post_error = NotLeader(2, "ssl://b.example:1?pin=sha256-abc")
    said = cli("farm", "level", "raise", "--yes", exits=Exit.NO_QUORUM).err
    assert "run this on its machine" in said
    assert "error: the leader is member 2 at ssl://b.example:1" in said


def test_raise_without_a_terminal_to_ask_at_changes_nothing(farm: FakeFarm, cli: Cli) -> None:
    said = cli("farm", "level", "raise", exits=Exit.USAGE).err
    assert "the farm farm is at level 0; level 1 brings: more" in said
    assert "there is no way back" in said
    assert "nothing was changed: use --yes if that is meant" in said
    assert farm.raised == []


@pytest.mark.parametrize(("answer", "code", "raised"), [(b"y", 0, [(1, "local")]), (b"n", 130, [])])
def test_raise_at_a_terminal_asks_first(
    farm: FakeFarm, spawn: Callable[..., subprocess.Popen[bytes]], answer: bytes, code: int, raised: object
) -> None:
    with Terminal() as terminal:
        process = spawn("farm", "level", "raise", stdin=terminal.theirs, stderr=terminal.theirs)
        terminal.close_theirs()
        assert b"there is no way back" in terminal.read_until(rb"(?s).*Raise it to level 1\? \[y/N\]")
        terminal.write(answer + b"\n")
        assert process.wait(240) == code
    assert farm.raised == raised


def test_raise_that_the_leader_itself_cannot_names_who_hinders_it(farm: FakeFarm, cli: Cli) -> None:
    farm.level = POSSIBLE | {"hindered_by": ["member 1 runs a program that names no levels: upgrade it"]}
    with_rows(farm, levels=[0, 0])
    done = cli("farm", "level", "raise", "--yes", exits=Exit.ERROR)
    assert "the farm farm cannot be raised now: member 1 runs a program that names no levels" in done.err
    assert farm.raised == []
