"""`member` and `leader` against a served node: what is asked, shown, and said of a refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.cli import run
from garlicfarm.cli.exits import Exit
from garlicfarm.cli.node_join import join_progress
from garlicfarm.credentials.join_token import decode_token
from garlicfarm.credentials.member_credentials import write_secret_file
from garlicfarm.errors import NoQuorum, NotLeader, OutcomeUnknown, ProposalDropped
from garlicfarm.refusals import Refusal
from garlicfarm.storage import Genesis, create_store
from tests.admin.fake_node import FakeFarm
from tests.cli.served import Cli, Served
from tests.running import Terminal

Capture = pytest.CaptureFixture[str]
NEW = "ssl://d.example:27150?pin=sha256-abc"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("garlicfarm.cli.member.PATIENCE_S", 0.3)
    monkeypatch.setattr("garlicfarm.cli.member.CATCH_UP_POLL_S", 0.05)


@pytest.fixture
def farm(served: Served) -> FakeFarm:
    return served.node.farm


def test_member_list_shows_members_and_who_joins(farm: FakeFarm, cli: Cli) -> None:
    farm.joining = {"id": 4, "endpoint": NEW, "match": 70, "last_index": 100}
    out = cli("member", "list").out
    assert [line.split(maxsplit=2) for line in out.splitlines()] == [
        ["ID", "ENDPOINT", "ROLE"],
        ["1", "ssl://127.0.0.1:27151", "leader"],
        ["2", "ssl://127.0.0.1:27152", "follower"],
        ["3", "ssl://127.0.0.1:27153", "unreachable"],
        ["4", "ssl://d.example:27150", "joining, 70 of 100"],
    ]
    assert json.loads(cli("member", "list", "-o", "json").out) == farm.members()
    assert json.loads(cli("member", "list", "-o", "jsonl").out.splitlines()[3])["endpoint"] == NEW


@pytest.mark.parametrize(
    ("arguments", "asked", "after"),
    [
        (["add", "4", NEW], ("add", 4, NEW, False, "local"), (4, 3, 3, 0)),
        (["set", "2", NEW], ("set", 2, NEW, False, "local"), (3, 2, 2, 0)),
        (["remove", "3"], ("remove", 3, "", False, "local"), (2, 2, 2, 0)),
        (["remove", "2", "--force"], ("remove", 2, "", True, "local"), (2, 2, 1, 0)),
    ],
)
def test_change_is_asked_for_and_its_figures_are_shown(farm, cli, arguments, asked, after):
    body = json.loads(cli("member", *arguments, "-o", "json").out)
    assert farm.changes == [asked]
    assert (body["schema"], body["index"], body["term"]) == ("garlicfarm.member-change/1", 1, 3)
    assert tuple(body["before"].values()) == ("before", 3, 2, 2, 0)
    assert tuple(body["after"].values()) == ("after", *after)
    assert cli("member", *arguments).out.splitlines()[0].split() == [
        "WHEN",
        "MEMBERS",
        "MAJORITY",
        "REACHABLE",
        "CAN",
        "LOSE",
    ]


def test_removal_that_would_leave_too_few_is_not_even_asked_for(farm: FakeFarm, cli: Cli) -> None:
    said = cli("member", "remove", "2", exits=Exit.ERROR).err
    assert "now 2 of 3 members reachable, 2 needed; after the change 1 of 2" in said
    assert "--force" in said
    assert farm.changes == []


def test_node_that_leaves_asks_for_its_own_removal(farm: FakeFarm, cli: Cli) -> None:
    assert (
        "now 2 of 3 members reachable, 2 needed; after the change 1 of 2"
        in cli("node", "leave", exits=Exit.ERROR).err
    )
    assert farm.changes == []
    left = json.loads(cli("node", "leave", "--force", "-o", "json").out)
    assert farm.changes == [("remove", 1, "", True, "local")]
    assert left["after"]["members"] == 2


@pytest.mark.parametrize("refused", [Refusal.ID_USED_BEFORE, Refusal.JOINER_DOES_NOT_ANSWER])
def test_refused_change_says_why_and_what_to_do(farm: FakeFarm, cli: Cli, refused: Refusal) -> None:
    farm.post_error = ProposalDropped(refused)
    told, said = cli("member", "add", "4", NEW, exits=Exit.ERROR)
    assert told == ""
    assert refused.replace("-", " ") in said
    assert "after the change 2 of 3" not in said
    assert "3 of 4 members reachable, 3 needed" in said


@pytest.mark.parametrize("passing", [Refusal.NOTHING_COMMITTED_YET, Refusal.LEADERSHIP_IN_TRANSFER])
def test_refusal_that_passes_is_waited_for(farm, monkeypatch, passing):
    errors = iter([ProposalDropped(passing), ProposalDropped(passing), None])
    change = farm.change_member

    async def changing(*arguments: Any) -> tuple[int, int]:
        farm.post_error = next(errors)
        return await change(*arguments)

    monkeypatch.setattr(farm, "change_member", changing)
    monkeypatch.setattr("garlicfarm.cli.member.PATIENCE_S", 5.0)
    monkeypatch.setattr("garlicfarm.cli.member.RETRY_S", 0.01)
    assert run(["member", "set", "2", NEW]) == 0
    assert len(farm.changes) == 3


def test_node_that_does_not_lead_names_the_leader_and_where_to_ask(farm: FakeFarm, cli: Cli) -> None:
    farm.post_error = NotLeader(2, "ssl://b.example:1?pin=sha256-abc")
    for arguments in (["remove", "3"], ["remove", "1", "--force"]):
        said = cli("member", *arguments, exits=Exit.NO_QUORUM).err
        assert "run this on its machine" in said
        assert "error: the leader is member 2 at ssl://b.example:1" in said
    farm.post_error = NoQuorum("nobody")
    assert run(["member", "remove", "3"]) == Exit.NO_QUORUM


def test_server_that_takes_long_to_catch_up_is_waited_for(farm, cli, monkeypatch):
    joining = {"id": 4, "endpoint": NEW, "last_index": 900}
    seen = iter([None, *({**joining, "match": match} for match in (100, 500)), "member"])
    members = farm.members

    def asked() -> dict[str, Any]:
        now = next(seen)
        body = members()
        if now == "member":
            return {**body, "members": [*body["members"], {"id": 4, "endpoint": NEW, "role": "follower"}]}
        return {**body, "joining": now}

    monkeypatch.setattr(farm, "members", asked)
    farm.post_error = OutcomeUnknown("not known to be committed after 30 s")
    told, said = cli("member", "add", "4", NEW, "-o", "json")
    assert json.loads(told)["index"] is None
    assert said.splitlines() == ["catching up: 100 of 900 entries", "catching up: 500 of 900 entries"]


def test_server_that_is_given_up_has_an_unknown_outcome(farm: FakeFarm, cli: Cli) -> None:
    farm.post_error = OutcomeUnknown("not known to be committed after 30 s")
    assert "not known to be committed" in cli("member", "add", "4", NEW, exits=Exit.ERROR).err


@pytest.mark.parametrize(
    "arguments",
    [
        ["add", "0", NEW],
        ["add", "4"],
        ["remove"],
        ["token", "--out", "t", "--expires", "0h"],
        ["token", "--out", "t", "--expires", "0.5"],
        ["token", "--out", "t", "--id", "0"],
        ["token"],
    ],
)
def test_command_line_without_sense_asks_nobody(served, capsys, arguments):
    assert run(["member", *arguments]) == Exit.USAGE
    assert served.node.requests == 0
    assert not Path("t").exists()


def test_leader_is_shown_and_hands_over(farm: FakeFarm, cli: Cli) -> None:
    assert cli("leader", "show").out.split() == [
        "LEADER",
        "ENDPOINT",
        "TERM",
        "1",
        "ssl://127.0.0.1:27151?pin=sha256-abc",
        "3",
    ]
    assert json.loads(cli("leader", "show", "-o", "json").out)["schema"] == "garlicfarm.leader/1"
    assert cli("member", "repair").out.split() == ["INDEX", "7"]
    assert cli("leader", "stepdown").out.split() == ["LEADER", "2"]
    assert json.loads(cli("leader", "stepdown", "--to", "3", "-o", "json").out)["leader"] == 3
    farm.post_error = NotLeader(2, "ssl://b.example:1?pin=sha256-abc")
    said = cli("leader", "stepdown", exits=Exit.NO_QUORUM).err
    assert "run this on its machine" in said
    assert "error: the leader is member 2 at" in said


def test_farm_without_leader_is_said_by_the_exit_code(farm, cli, monkeypatch):
    status = farm.status()
    monkeypatch.setattr(farm, "status", lambda: {**status, "leader": None})
    assert "has no leader now, as far as node 1 knows" in cli("leader", "show", exits=Exit.NO_QUORUM).err
    farm.post_error = NoQuorum("nobody took over the leadership in time")
    assert run(["leader", "stepdown"]) == Exit.NO_QUORUM


# Tokens


@pytest.fixture
def store(served: Served) -> Path:
    """The files of the farm that the served node only pretends to have."""
    data = served.node.data_dir
    write_secret_file(data / "secrets" / "farm.secret", bytes(range(32)))
    (data / "farms" / "farm").mkdir(parents=True)
    create_store(data / "farms" / "farm", Genesis("farm", bytes(16), "publisher", 2, None, 70))
    with served.config.open("a") as file:
        file.write("[farm.raft]\nheartbeat_s = 0.5\npriority = 7\n[farm.retention]\nkeep_entries = 9\n")
    return data


def test_token_holds_what_a_new_member_has_to_know(served, store, cli, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1000.5)
    told, said = cli("member", "token", "--out", "-", "--expires", "90m")
    token = decode_token(told)
    assert (token.id, token.farm, token.application, token.expires_s) == (8, "farm", "publisher", 1000 + 5400)
    assert (token.farm_id, token.farm_secret) == (bytes(16), bytes(range(32)))
    assert token.endpoints == {i: f"ssl://127.0.0.1:{27150 + i}?pin=sha256-abc" for i in (1, 2, 3)}
    assert (token.raft, token.retention) == ({"heartbeat_s": 0.5}, {"keep_entries": 9})
    assert token.epoch_length == 70
    assert "can pose as any member" in said
    assert told.strip() not in said
    assert decode_token(cli("member", "token", "--out", "-", "--id", "12").out).id == 12
    assert run(["member", "token", "--out", "-", "--id", "7"]) == Exit.USAGE, "7 was a member's once"


def test_token_is_not_made_during_a_rotation(served: Served, store: Path, cli: Cli) -> None:
    with (store / "secrets" / "farm.secret").open("a") as file:
        file.write("A" * 43 + "\n")
    assert "finish the rotation" in cli("member", "token", "--out", "t", exits=Exit.USAGE).err
    assert not Path("t").exists()


# How a join is told


def test_progress_off_a_terminal_is_a_line_for_each_tenth(capsys: Capture) -> None:
    with join_progress() as show:
        show("invited", 0, None)
        for done in range(1001):
            show("catching up, entries", done, 1000)
        for size in (5, 6, 7):
            show("receiving a snapshot, bytes", size, None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "invited"
    assert lines[1:-1] == [f"catching up, entries {done} of 1000" for done in range(0, 1001, 100)]
    assert lines[-1] == "receiving a snapshot, bytes"


def test_progress_on_a_terminal_is_a_bar() -> None:
    program = (
        "from garlicfarm.cli.node_join import join_progress\n"
        "with join_progress() as show:\n"
        "    show('[red]catching up', 30, 120)\n"
    )
    with Terminal() as terminal:
        command = [sys.executable, "-c", program]
        subprocess.run(command, stderr=terminal.theirs, check=True, env={**os.environ, "TERM": "xterm"})
        terminal.close_theirs()
        plain = terminal.read_until(rb"(?s).*30/120.*").decode()
    assert "[red]catching up" in plain, "what others say is text"
