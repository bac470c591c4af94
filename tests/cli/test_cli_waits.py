"""Each command that waits for a node, a router or a mesh that does not answer says what it waits for."""

from __future__ import annotations

import builtins
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.cli import run
from garlicfarm.setup.provision import MemberPlan, create_node

HASH = "n5EWH0NDPkmm3m22gNefYBWfLkrJFyYhoShGQoFYRAs="


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line comes at once, and ends the command as Ctrl-C does: no time decides."""

    def print_and_end(line: str, **how: Any) -> None:
        builtins.print(line, **how)
        raise KeyboardInterrupt

    monkeypatch.setattr("garlicfarm.cli.sign_of_life.FIRST_S", 0.001)
    monkeypatch.setattr("garlicfarm.cli.sign_of_life.print", print_and_end, raising=False)


@pytest.fixture
def url(here: Path) -> Iterator[str]:
    """That of the node of this machine, which accepts connections and says nothing."""
    create_node(here, 1, MemberPlan(endpoint="ssl://127.0.0.1:1"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        (here / "data" / "admin.url").write_text(f"{url}\n")
        yield url


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("status", "an answer from"),
        ("status --watch -o json", "an answer from"),
        ("health", "an answer from"),
        ("health --local", "an answer from"),
        ("wait --for leader", "leader; no node has answered"),
        ("farm show", "an answer from"),
        ("farm set R=5", "the committed order from"),
        (f"farm exclude {HASH}", "the committed order from"),
        ("member list", "an answer from"),
        ("member add 4 ssl://127.0.0.1:2", "the committed change from"),
        ("member remove 2", "the committed change from"),
        ("member token --out token", "an answer from"),
        ("member repair", "a snapshot of the leader from"),
        ("node leave", "an answer from"),
        ("leader show", "an answer from"),
        ("leader stepdown", "the next leader's id from"),
        ("publish now", "the publisher's report from"),
        ("publish show", "an answer from"),
        ("log post lines", "the entry's index from"),
        ("log post lines --batch 2", "an answer from"),
        ("log tail", "an answer from"),
        ("log tail -f", "an answer from"),
    ],
)
def test_command_that_waits_for_a_node_says_so_on_stderr(command, what, url, cli):
    Path("lines").write_text("an entry\n")
    output = cli(*command.split(), exits=130)
    assert output.out == ""
    line = output.err.splitlines()[0]
    assert line == f"0 s: waiting for {what} {url}" or line == f"0 s: waiting for {what}"


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("dafka consume weather wind", "the first record of weather, wind"),
        ("dafka produce weather", "stores to save 1 of 1 records"),
        ("i2p setup --tunnels-dir . --keys tunnel.dat", "the router to make tunnel.dat"),
    ],
)
def test_command_that_waits_for_others_says_so_on_stderr(command, what, url, capfd, monkeypatch):
    tower = ["--tower", f"tcp://127.0.0.1:{url.rpartition(':')[2]}"] if command.startswith("dafka") else []
    with Path("lines").open("w+") as lines:
        lines.write("rain\n")
        lines.seek(0)
        monkeypatch.setattr("sys.stdin", lines)
        assert run([*command.split(), *tower]) == 130
    assert f"0 s: waiting for {what}\n" in capfd.readouterr().err


def test_recovery_of_a_large_store_says_that_it_is_read(url, capsys, monkeypatch):
    interrupted = threading.Event()
    monkeypatch.setattr("garlicfarm.setup.recovery.read_survivor", lambda *_: interrupted.wait())
    try:
        assert run(["recover"]) == 130
    finally:
        interrupted.set()
    assert capsys.readouterr().err == (
        f"0 s: waiting for the log in {Path('data/farms/farm').absolute()} to be read\n\ninterrupted\n"
    )
