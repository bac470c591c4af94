"""`node join-jraft` as a process: a tester plays the JRaft servers, with the bytes of conversation 3."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from garlicfarm.cli import run
from garlicfarm.cli.exits import Exit
from garlicfarm.config import load
from garlicfarm.lab.processes import free_ports
from garlicfarm.storage import read_genesis
from garlicfarm.wire import Limits, RequestDecoder, decode_cluster_server, encode_response
from garlicfarm.wire.messages import MessageType, Request, Response
from tests.interop.captured import conversation, exchanges
from tests.node.support.cluster import next_message
from tests.node.support.jraft_peer import wire
from tests.own_application import install_key_value

CLIENT, ADD = MessageType.CLIENT_REQUEST, MessageType.ADD_SERVER_REQUEST
ANSWER = MessageType.APPEND_ENTRIES_RESPONSE
FOLLOWER, LEADER, JOINER = 1, 2, 4
TIMEOUT_S = 240

Say = Callable[[Request], Awaitable[Response]]


class Servers:
    """JRaft's servers 1, which follows, and 2, which leads and invites who asks."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.asked: list[tuple[int, MessageType]] = []
        self.added: list[str] = []
        self.replayed: list[MessageType] = []  # each but the last one was answered
        self.ports = dict(zip((FOLLOWER, LEADER, JOINER), free_ports(3), strict=True))
        self._nursery = nursery

    async def start(self) -> None:
        for member, say in ((FOLLOWER, self._follow), (LEADER, self._lead)):
            await self._nursery.start(
                partial(
                    trio.serve_tcp, partial(self._serve, member, say), self.ports[member], host="127.0.0.1"
                )
            )

    async def _serve(self, member: int, say: Say, stream: trio.SocketStream) -> None:
        decoder = RequestDecoder(Limits())
        while (request := await next_message(stream, decoder)) is not None:
            self.asked.append((member, request.type))
            await stream.send_all(encode_response(await say(request)))

    async def _follow(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        return Response(ANSWER, FOLLOWER, LEADER, 1, 0, False)

    async def _lead(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        if request.type is CLIENT:
            return Response(ANSWER, LEADER, LEADER, 1, 27, True)
        (captured,) = [m.content for m in conversation(3) if m.content.type is ADD]
        assert isinstance(captured, Request)
        server = decode_cluster_server(request.entries[0].value)
        assert (server.id, request.source, request.destination) == (JOINER, 0, 0)
        assert [e.value_type for e in request.entries] == [e.value_type for e in captured.entries]
        self.added.append(server.endpoint)
        if len(self.added) == 1:
            self._nursery.start_soon(self._bring_in)
        return Response(MessageType.ADD_SERVER_RESPONSE, LEADER, LEADER, 1, 27, True)

    async def _bring_in(self) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", self.ports[JOINER])
        async with stream:
            connection = wire(stream)
            for exchange in exchanges(3, JOINER):
                self.replayed.append(exchange.request.type)
                answer = await connection.ask(exchange.asked.data)
                if answer is None:
                    return  # it is a member, and the command has ended
                assert answer.accepted

    def command(self, directory: Path, *more: str) -> list[str]:
        table = [f"--server={i}=tcp://127.0.0.1:{self.ports[i]}" for i in (FOLLOWER, LEADER)]
        own = [f"--id={JOINER}", f"--endpoint=tcp://127.0.0.1:{self.ports[JOINER]}"]
        where = [str(directory), "--admin-url=https://127.0.0.1:0"]
        return ["node", "join-jraft", *where, *own, *table, *more]


async def command(*arguments: str) -> tuple[int, str]:
    with trio.fail_after(TIMEOUT_S):
        done = await trio.run_process(
            [sys.executable, "-m", "garlicfarm", *arguments], capture_stderr=True, check=False
        )
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("application", ["log", "key-value"])
async def test_node_joins_a_cluster_that_jraft_leads(application, tmp_path, nursery, monkeypatch):
    install_key_value(tmp_path, monkeypatch)
    servers = Servers(nursery)
    await servers.start()
    directory = tmp_path / "new"
    code, said = await command(*servers.command(directory, "--application", application))
    assert code == 0, said
    assert servers.asked[:3] == [(FOLLOWER, CLIENT), (LEADER, CLIENT), (LEADER, ADD)]
    assert servers.added == [f"tcp://127.0.0.1:{servers.ports[JOINER]}"]
    assert {*servers.replayed} == {
        MessageType.JOIN_CLUSTER_REQUEST,
        MessageType.SYNC_LOG_REQUEST,
        MessageType.APPEND_ENTRIES_REQUEST,
    }
    assert f"node {JOINER} is a member" in said
    (farm,) = load(directory / "garlicfarm.toml", {}).farm
    assert (farm.application, read_genesis(directory / "data/farms/farm").application) == (application,) * 2
    raft = farm.raft
    assert (raft.heartbeat_s, raft.election_timeout_min_s, raft.election_timeout_max_s) == (1.5, 3.0, 5.0)
    assert 'default_transport = "jraft"' in (directory / "garlicfarm.toml").read_text()
    code, said = await command(*servers.command(directory))
    assert code == 0, "to join twice changes nothing"
    assert len(servers.added) == 1
    other = [word.replace(f"--id={JOINER}", "--id=9") for word in servers.command(directory)]
    code, said = await command(*other)
    assert (code, "nothing was overwritten" in said) == (Exit.USAGE, True)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--endpoint", "tcp://192.0.2.1:9004"),
        ("--endpoint", "ssl://127.0.0.1:9004"),
        ("--endpoint", "9004"),
        ("--server", "tcp://127.0.0.1:9001"),
        ("--server", "0=tcp://127.0.0.1:9001"),
        ("--server", "1=tcp://a.example:9001"),
        ("--server", "2=tcp://127.0.0.1:9009"),
    ],
)
def test_command_line_without_sense_makes_nothing(tmp_path, capsys, option, value):
    given = ["--endpoint", "tcp://127.0.0.1:9004", "--server", "2=tcp://127.0.0.1:9002", option, value]
    assert run(["node", "join-jraft", str(tmp_path / "new"), "--id", "4", *given]) == Exit.USAGE
    assert f"{option} {value.removeprefix('1=')}: it must be" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
