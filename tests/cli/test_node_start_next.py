"""`node start` on a terminal names the next commands, which find the node from any directory."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from garlicfarm.cli.node_start import next_commands
from garlicfarm.setup.provision import MemberPlan, create_node
from tests.cli.test_cli_examples import parse
from tests.running import Terminal, running, until

GARLICFARM = (sys.executable, "-m", "garlicfarm")
TRY = "in another terminal, try:"


def test_next_commands_name_the_configuration_and_parse(tmp_path: Path) -> None:
    file = tmp_path / "a node" / "garlicfarm.toml"
    commands = next_commands(file, ["farm"])
    assert [shlex.split(command) for command in commands] == [
        ["garlicfarm", *words, "--config", str(file)]
        for words in (["status"], ["log", "tail", "-f"], ["health"])
    ]
    assert [parse(shlex.split(command)) for command in commands] == [
        "garlicfarm status",
        "garlicfarm log tail",
        "garlicfarm health",
    ]


def test_next_commands_are_short_where_every_directory_finds_the_node(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / ".config" / "garlicfarm" / "garlicfarm.toml"
    file.parent.mkdir(parents=True)
    file.touch()
    assert next_commands(file, ["farm"]) == [
        "garlicfarm status",
        "garlicfarm log tail -f",
        "garlicfarm health",
    ]


def test_next_commands_of_a_node_with_several_farms_name_one(tmp_path: Path) -> None:
    (first, *_) = next_commands(tmp_path / "garlicfarm.toml", ["one", "two"])
    assert first.endswith(" --farm one")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The configuration of a node of its own."""
    plan = MemberPlan(
        endpoint="ssl://127.0.0.1:1", listen="ssl://127.0.0.1:0", admin_url="https://127.0.0.1:0"
    )
    create_node(tmp_path, 1, plan)
    return tmp_path / "garlicfarm.toml"


@pytest.mark.slow
def test_node_on_a_terminal_says_what_to_do_next_once_it_runs(file: Path) -> None:
    command = [*GARLICFARM, "node", "start", "--config", str(file)]
    with Terminal() as terminal, running(command, stderr=terminal.theirs) as node:
        terminal.close_theirs()
        said = terminal.read_until(b"try:\r\n((  .*\r\n){3})").decode()
        node.send_signal(signal.SIGTERM)
        while terminal.read():
            pass
        assert node.wait() == 0
    assert said.splitlines() == [f"  {command}" for command in next_commands(file, ["farm"])]


@pytest.mark.slow
@pytest.mark.parametrize("more", [["-q"], []])
def test_node_that_is_quiet_or_has_no_terminal_does_not(file: Path, more: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Terminal() as terminal, log.open("wb") as written:
        stderr = terminal.theirs if more else written
        command = [*GARLICFARM, "node", "start", "--config", str(file), *more]
        with running(command, stderr=stderr) as node:
            until((tmp_path / "data" / "admin.url").exists, node)
            wait = [*GARLICFARM, "wait", "--for", "leader", "--config", str(file)]
            subprocess.run(wait, check=True, timeout=240, stderr=subprocess.DEVNULL)
            node.send_signal(signal.SIGTERM)
            terminal.close_theirs()
            said = b""
            while more and (part := terminal.read()):
                said += part
            assert node.wait() == 0
    assert TRY.encode() not in said + log.read_bytes()
