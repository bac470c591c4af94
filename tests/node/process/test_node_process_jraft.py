"""One node as a process, made and set by command line, configuration and environment; a tester plays all
other members over sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from garlicfarm.client.farm import open_farm_client
from garlicfarm.lab.processes import free_ports
from garlicfarm.plugins import make_transport
from garlicfarm.wire.messages import LogEntry, MessageType, Request, Response, ValueType
from tests.node.support.jraft_peer import Heard, request, wire

VOTE, APPEND = MessageType.REQUEST_VOTE_REQUEST, MessageType.APPEND_ENTRIES_REQUEST


def make(out: Path, ports: list[int]) -> Path:
    """A farm of the tester's choice; the directory of member 1."""
    members = [f"--member={member}=jraft://127.0.0.1:{port}" for member, port in enumerate(ports, 1)]
    command = [sys.executable, "-m", "garlicfarm", "farm", "create", *members, "--application=log"]
    subprocess.run([*command, f"--out={out}"], check=True, stdout=subprocess.DEVNULL)
    return out / "node-1"


@asynccontextmanager
async def process(directory: Path, data_dir: Path, **raft: float) -> AsyncIterator[trio.Process]:
    """The node with these timeouts, its data elsewhere; up once it listens, killed at the end."""
    settings = {f"GARLICFARM_FARM__0__RAFT__{name.upper()}": str(value) for name, value in raft.items()}
    settings |= {"GARLICFARM_ADMIN__URL": "https://127.0.0.1:0", "GARLICFARM_NODE__DATA_DIR": str(data_dir)}
    settings["GARLICFARM_FARM__0__SECRET_FILE"] = str(data_dir / "secrets" / "farm.secret")
    (data_dir / "admin.url").unlink(missing_ok=True)
    command = [sys.executable, "-m", "garlicfarm", "node", "start", "--config", "garlicfarm.toml"]
    with (directory / "node.log").open("ab") as log:
        node = await trio.lowlevel.open_process(
            command, cwd=directory, env={**os.environ, **settings}, stderr=log
        )
    try:
        with trio.fail_after(240):
            while not (data_dir / "admin.url").exists():
                assert node.poll() is None, (directory / "node.log").read_text()
                await trio.sleep(0.02)
        yield node
    finally:
        with trio.CancelScope(shield=True):
            node.kill()
            await node.wait()


async def ask(port: int, *asked: Request) -> list[Response]:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        connection, found = wire(stream), []
        for each in asked:
            answer = await connection.ask(each)
            assert answer is not None
            found.append(answer)
        return found


@pytest.mark.slow
async def test_node_that_a_tester_leads_keeps_its_word_through_kill_9(tmp_path: Path) -> None:
    ports = free_ports(3)
    directory = make(tmp_path / "farm", ports)
    data = tmp_path / "elsewhere"
    (directory / "data").rename(data)
    write = LogEntry(5, ValueType.APPLICATION, b"kept")
    timeouts = {"election_timeout_min_s": 600, "election_timeout_max_s": 900}
    async with process(directory, data, **timeouts):
        voted, appended = await ask(ports[0], request(VOTE, 5), request(APPEND, 5, write))
        assert (voted.accepted, appended.accepted, appended.next_index) == (True, True, 2)
    async with process(directory, data, **timeouts) as node:
        refused, behind, granted = await ask(
            ports[0],
            request(VOTE, 5, source=3, last_log_index=9, last_log_term=5),
            request(VOTE, 6, source=3, last_log_index=0, last_log_term=0),
            request(VOTE, 6, source=2, last_log_index=1, last_log_term=5),
        )
        assert [(each.accepted, each.term) for each in (refused, behind, granted)] == [
            (False, 5),
            (False, 6),
            (True, 6),
        ]
        node.send_signal(signal.SIGTERM)
        with trio.fail_after(240):
            assert await node.wait() == 0


@pytest.mark.slow
async def test_node_that_leads_members_of_a_tester_serves_a_client(tmp_path: Path) -> None:
    ports = free_ports(3)
    directory = make(tmp_path / "farm", ports)
    transport = make_transport("jraft", {}, tmp_path)
    async with trio.open_nursery() as nursery:

        def play(member: int) -> object:
            async def follow(stream: trio.SocketStream) -> None:
                heard = Heard(member, stream)
                while (asked := await heard.receive()) is not None:
                    last = asked.last_log_index + len(asked.entries)
                    await heard.answer(asked, last + 1 if asked.type is APPEND else 0)

            return follow

        for member in (2, 3):
            await nursery.start(trio.serve_tcp, play(member), ports[member - 1])
        # Long enough for a busy machine: a second leader would begin with an entry of its own.
        times = {"election_timeout_min_s": 2.0, "election_timeout_max_s": 2.5, "heartbeat_s": 0.1}
        async with (
            process(directory, directory / "data", **times),
            open_farm_client(
                {1: f"tcp://127.0.0.1:{ports[0]}"},
                farm="farm",
                user="",
                password="",
                transport=lambda scheme: transport,
                default_transport="jraft",
                timeout_s=20,
            ) as client,
        ):
            assert (await client.post([b"one"]))[0] == 2
            assert (await client.post([b"two", b"three"]))[0] == 4
        nursery.cancel_scope.cancel()
