"""Every place that dials holds the server to the same rules (D2, D4): a member, a client, one that joins."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.cli.node_join import member_connector
from garlicfarm.client.farm import open_farm_client
from garlicfarm.config import load
from garlicfarm.credentials.join_token import JoinToken
from garlicfarm.errors import AuthError, GarlicFarmError, RemoteProtocolError
from garlicfarm.net.link import LinkConfig
from garlicfarm.node.replica import ReplicaHost
from garlicfarm.transport import Endpoint
from garlicfarm_transport_ssl import SslTransport
from tests.node.support.cluster import Cluster, cluster

CHALLENGE = 'WWW-Authenticate: Digest realm="restricted", qop="auth", nonce="n", algorithm='
ENDPOINT = "ssl://[::1]:9001?proxied=1"


class Stream(trio.abc.Stream):
    def __init__(self, imposter: Imposter) -> None:
        self._imposter = imposter
        self._reply = b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._reply = self._imposter.answer(bytes(data))

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        reply, self._reply = self._reply, b""
        return reply

    async def wait_send_all_might_not_block(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


class Imposter:
    """A transport to a server that lets everybody in, and does not know the password."""

    handshake = True

    def __init__(self, *algorithms: str) -> None:
        self.challenges = [CHALLENGE + algorithm for algorithm in algorithms]
        self.requests: list[bytes] = []

    async def open_stream(self, endpoint: Endpoint) -> Stream:
        assert str(endpoint) == ENDPOINT
        return Stream(self)

    def answer(self, request: bytes) -> bytes:
        self.requests.append(request)
        if b"Authorization" in request:
            lines = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: websocket"]
        else:
            lines = ["HTTP/1.1 401 Unauthorized", "Content-Length: 0", *self.challenges]
        return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


Dial = Callable[[Imposter], Awaitable[object]]


@asynccontextmanager
async def member(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Dial]:
    hosts: list[ReplicaHost] = []

    def kept(*given: Any) -> ReplicaHost:
        hosts.append(ReplicaHost(*given))
        return hosts[-1]

    monkeypatch.setattr("garlicfarm.node.hosted_farm.ReplicaHost", kept)
    async with hardened(directory) as nodes:
        await nodes.start()

        async def dial(imposter: Imposter) -> object:
            monkeypatch.setattr(SslTransport, "open_stream", lambda ssl, at: imposter.open_stream(at))
            return await hosts[0].dial(2, ENDPOINT)

        yield dial


@asynccontextmanager
async def client(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Dial]:
    connects: list[Callable[[], Awaitable[object]]] = []

    def kept(**given: Any) -> LinkConfig:
        connects.append(given["connect"])
        return LinkConfig(**given)

    monkeypatch.setattr("garlicfarm.client.farm.LinkConfig", kept)

    async def dial(imposter: Imposter) -> None:
        error: GarlicFarmError | None = None
        async with open_farm_client(
            {1: ENDPOINT},
            farm="farm",
            user="alice",
            password="p",
            transport=lambda scheme: imposter,  # type: ignore[arg-type, return-value]
            algorithms=["SHA-256"],
        ):
            try:
                await connects[-1]()
            except GarlicFarmError as refused:
                error = refused  # raised in here, it would come out in a group
        if error is not None:
            raise error

    yield dial


@asynccontextmanager
async def newcomer(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Dial]:
    async with hardened(directory) as nodes:
        config = load(nodes.directories[1] / "garlicfarm.toml", {})
        token = JoinToken(
            farm="farm",
            farm_id=nodes.farm_id,
            farm_secret=bytes(32),
            application="log",
            algorithm=2,
            id=2,
            endpoints={1: ENDPOINT},
            expires_s=int(time.time()) + 60,
        )

        async def dial(imposter: Imposter) -> object:
            monkeypatch.setattr("garlicfarm.plugins.make_transport", lambda *table: imposter)
            connect, _ = member_connector(config, token)
            return await connect(ENDPOINT)

        yield dial


@asynccontextmanager
async def hardened(directory: Path) -> AsyncIterator[Cluster]:
    async with cluster(directory, start=False) as nodes:
        file = nodes.directories[1] / "garlicfarm.toml"
        hard = file.read_text().replace("[[farm]]\n", '[[farm]]\nalgorithms = ["SHA-256"]\n')
        file.write_text(hard)
        yield nodes


PLACES = [pytest.param(place, id=place.__name__) for place in (member, client, newcomer)]


@pytest.mark.parametrize("place", PLACES)
async def test_server_that_lets_us_in_without_the_password_is_refused(
    place: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path, monkeypatch) as dial:  # type: ignore[attr-defined]
        imposter = Imposter("MD5", "SHA-256")
        for _ in range(2):  # a member has a cached challenge the second time
            with pytest.raises(AuthError, match=r"\[::1\]:9001 did not prove that it knows the password"):
                await dial(imposter)
        assert imposter.requests[0].count(b"\r\nHost: [::1]:9001\r\n") == 1
        keys = [re.findall(rb"\r\nSec-WebSocket-Key: (\S{22}==)\r\n", each) for each in imposter.requests]
        assert [len(each) for each in keys[:2]] == [0, 1]
        assert keys[-1] != keys[1]


@pytest.mark.parametrize("place", PLACES)
async def test_server_that_takes_weaker_digests_than_the_farm_gets_none(
    place: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path, monkeypatch) as dial:  # type: ignore[attr-defined]
        imposter = Imposter("MD5")
        with pytest.raises(RemoteProtocolError, match="it offers MD5, but this side accepts only SHA-256"):
            await dial(imposter)
        assert len(imposter.requests) == 1
