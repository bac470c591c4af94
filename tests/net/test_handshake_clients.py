"""The handshake over real TLS on loopback, spoken by curl, by httpx, and by ourselves."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.credentials.member_credentials import member_lookup, member_password
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import AuthError
from garlicfarm.http.digest import ALGORITHMS, REALM, ChallengeCache, DigestVerifier
from garlicfarm.http.upgrade import FarmCredentials
from garlicfarm.net.handshake import (
    DialCredentials,
    Established,
    HandshakeLimiter,
    initiate,
    respond,
)
from garlicfarm.transport import Peer

SECRET = b"s" * 32
FARM_ID = b"f" * 16
PEER = Peer("127.0.0.1", True, None)
UPGRADE = {"Connection": "keep-alive, Upgrade", "Upgrade": "websocket"}

MEMBER = ("7", member_password(SECRET, FARM_ID, 7))
CLIENT = ("alice", "correct horse")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One PEM file with a key and a certificate for 127.0.0.1."""
    directory = tmp_path_factory.mktemp("tls")
    certificate, key, both = (directory / name for name in ("certificate", "key", "both.pem"))
    make_certificate(certificate, key, "127.0.0.1")
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both


class Server:
    """A farm listener; whoever gets in is sent ``raft``, then its first bytes, if ``echo``."""

    def __init__(self, algorithms: Sequence[str], users: UserStore, echo: bool = True) -> None:
        self.algorithms = algorithms
        self.echo = echo
        self.users = users
        self.port = 0
        self.reasons: list[str] = []
        self.logins: list[str] = []
        self.limiter = HandshakeLimiter(on_rejected=lambda peer, reason: self.reasons.append(reason))
        self.restart()

    def restart(self) -> None:
        """Forget the key of the nonces, as a new process does."""
        lookup = member_lookup([SECRET], FARM_ID, self.users.lookup)
        verifier = DigestVerifier(REALM, self.algorithms, os.urandom(32), lookup)
        self.credentials = {"farm": FarmCredentials("farm", FARM_ID, verifier)}

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/GarlicFarm/farm/1/websocket"

    async def handle(self, stream: trio.abc.Stream) -> None:
        established = await respond(stream, self.credentials, self.limiter, PEER)
        if established is not None:
            self.logins.append(established.user)
            await self._talk(established)

    async def _talk(self, established: Established) -> None:
        stream = established.stream
        with trio.move_on_after(240), suppress(trio.BrokenResourceError):
            await stream.send_all(b"raft")
            if self.echo:
                await stream.send_all(established.leftover or await stream.receive_some(4096))
        await trio.aclose_forcefully(stream)


@asynccontextmanager
async def serving(server: Server, certificate: Path, *, lenient: bool = True) -> AsyncIterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    plain = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server.port = plain[0].socket.getsockname()[1]
    listeners = [trio.SSLListener(listener, context, https_compatible=lenient) for listener in plain]
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, server.handle, listeners)
        with trio.fail_after(240):
            yield server
        nursery.cancel_scope.cancel()


@pytest.fixture
def users(tmp_path: Path) -> UserStore:
    store = UserStore(tmp_path / "users")
    store.add(*CLIENT[:1], "writer", CLIENT[1])
    return store


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


async def open_stream(server: Server, certificate: Path) -> trio.abc.Stream:
    tcp = await trio.open_tcp_stream("127.0.0.1", server.port)
    return trio.SSLStream(tcp, trusting(certificate), server_hostname="127.0.0.1", https_compatible=True)


async def login(
    server: Server, certificate: Path, cache: ChallengeCache, user: str, password: str
) -> Established:
    credentials = DialCredentials("farm", user, password, cache)
    connect = partial(open_stream, server, certificate)
    return await initiate(connect, credentials, host=f"127.0.0.1:{server.port}")


async def receive_exactly(stream: trio.abc.Stream, start: bytes, size: int) -> bytes:
    data = start
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        assert more, f"the stream ended after {data!r}"
        data += more
    return data


async def run_curl(
    server: Server, certificate: Path, user: str, password: str, scheme: str = "--digest"
) -> str:
    """All that curl received, heads included."""
    command = [
        *("curl", "--http1.1", "--silent", "--show-error", "--include", "--max-time", "20", "--noproxy", "*"),
        *(scheme, "--user", f"{user}:{password}", "--cacert", str(certificate)),
        *(part for name, value in UPGRADE.items() for part in ("-H", f"{name}: {value}")),
        server.url,
    ]
    # Once curl has its 101, it is no web client any more: its exit code says nothing.
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    return done.stdout.decode("latin-1").replace("\r\n", "\n")


@pytest.mark.curl
@pytest.mark.parametrize("algorithms", [("MD5",), ("SHA-256",), ALGORITHMS])
@pytest.mark.parametrize(("user", "password"), [MEMBER, CLIENT])
async def test_curl_reaches_101(
    certificate: Path, users: UserStore, algorithms: Sequence[str], user: str, password: str
) -> None:
    async with serving(Server(algorithms, users, echo=False), certificate) as server:
        output = await run_curl(server, certificate, user, password)
    assert "HTTP/1.1 101 Switching Protocols\n" in output
    assert "rspauth=" in output
    assert server.logins == [user]
    assert server.reasons == ["challenge"]


@pytest.mark.curl
@pytest.mark.parametrize("algorithms", [("MD5",), ("SHA-256",), ALGORITHMS])
async def test_curl_with_a_wrong_password_stays_outside(
    certificate: Path, users: UserStore, algorithms: Sequence[str]
) -> None:
    async with serving(Server(algorithms, users), certificate) as server:
        output = await run_curl(server, certificate, "alice", "battery staple")
    assert output.rpartition("HTTP/1.1 ")[2].startswith("401 Unauthorized\n")
    assert "stale" not in output
    assert server.logins == []
    assert server.reasons == ["challenge", "password"]


@pytest.mark.curl
async def test_curl_with_basic_is_answered_like_no_credentials(certificate: Path, users: UserStore) -> None:
    async with serving(Server(ALGORITHMS, users), certificate) as server:
        output = await run_curl(server, certificate, *CLIENT, "--basic")
    assert output.startswith("HTTP/1.1 401 Unauthorized\n")
    assert output.count("HTTP/1.1") == 1
    assert server.reasons == ["challenge"]


@pytest.mark.parametrize("algorithms", [("MD5",), ("SHA-256",), ALGORITHMS])
@pytest.mark.parametrize(("user", "password"), [MEMBER, CLIENT])
async def test_httpx_reaches_101_and_the_raw_stream(
    certificate: Path, users: UserStore, algorithms: Sequence[str], user: str, password: str
) -> None:
    async with (
        serving(Server(algorithms, users), certificate) as server,
        httpx.AsyncClient(verify=trusting(certificate), trust_env=False) as client,
    ):
        auth = httpx.DigestAuth(user, password)
        async with client.stream("GET", server.url, auth=auth, headers=UPGRADE) as response:
            assert response.status_code == 101
            assert response.reason_phrase == "Switching Protocols"
            assert "rspauth=" in response.headers["Authentication-Info"]
            assert "Server" not in response.headers
            raw = response.extensions["network_stream"]
            data = b""
            while len(data) < 4:
                data += await raw.read(4, timeout=240)
            assert data == b"raft"
            await raw.write(b"\x01echo", timeout=240)
            assert await raw.read(5, timeout=240) == b"\x01echo"
    assert server.logins == [user]


async def test_httpx_with_a_wrong_password_gets_401(certificate: Path, users: UserStore) -> None:
    async with (
        serving(Server(ALGORITHMS, users), certificate) as server,
        httpx.AsyncClient(verify=trusting(certificate), trust_env=False) as client,
    ):
        response = await client.get(server.url, auth=httpx.DigestAuth("7", "wrong"), headers=UPGRADE)
        assert response.status_code == 401
        assert response.text == "Unauthorized\n"
    assert server.reasons == ["challenge", "password"]


@pytest.mark.parametrize("algorithms", [("MD5",), ("SHA-256",), ALGORITHMS])
async def test_own_login_survives_a_restart_of_the_server(
    certificate: Path, users: UserStore, algorithms: Sequence[str]
) -> None:
    cache = ChallengeCache()
    async with serving(Server(algorithms, users), certificate) as server:
        for expected in (["challenge"], ["challenge"], ["challenge", "stale"]):
            established = await login(server, certificate, cache, *MEMBER)
            stream = established.stream
            assert await receive_exactly(stream, established.leftover, 4) == b"raft"
            await stream.send_all(b"hello")
            assert await receive_exactly(stream, b"", 5) == b"hello"
            await stream.aclose()
            assert server.reasons == expected
            if len(server.logins) == 2:
                server.restart()
        with pytest.raises(AuthError):
            await login(server, certificate, cache, "7", "wrong")
    assert server.logins == ["7"] * 3


async def test_removed_user_is_refused_at_the_next_login(certificate: Path, users: UserStore) -> None:
    cache = ChallengeCache()
    async with serving(Server(ALGORITHMS, users), certificate) as server:
        established = await login(server, certificate, cache, *CLIENT)
        await trio.aclose_forcefully(established.stream)
        users.remove("alice")
        with pytest.raises(AuthError):
            await login(server, certificate, cache, *CLIENT)


async def test_answer_to_a_large_post_is_not_lost_to_a_reset(certificate: Path, users: UserStore) -> None:
    body = b"x" * 50_000
    head = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with serving(Server(ALGORITHMS, users), certificate) as server:
        for _ in range(20):
            stream = await open_stream(server, certificate)
            await stream.send_all(head + body)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 404 Not Found\r\n")
            await stream.aclose()


async def test_refused_client_sees_a_clean_end_of_tls(certificate: Path, users: UserStore) -> None:
    async with serving(Server(ALGORITHMS, users), certificate, lenient=False) as server:
        tcp = await trio.open_tcp_stream("127.0.0.1", server.port)
        stream = trio.SSLStream(tcp, trusting(certificate), server_hostname="127.0.0.1")
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = b"".join([chunk async for chunk in stream])
        await stream.aclose()
    assert answer.endswith(b"\r\n\r\nNot Found\n")


async def test_plain_text_on_the_tls_port_costs_its_own_connection_only(
    certificate: Path, users: UserStore
) -> None:
    async with serving(Server(ALGORITHMS, users), certificate) as server:
        plain = await trio.open_tcp_stream("127.0.0.1", server.port)
        await plain.send_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = b""
        with suppress(trio.BrokenResourceError):  # a reset will do as well
            async for chunk in plain:
                answer += chunk
        await plain.aclose()
        assert b"HTTP" not in answer
        await trio.aclose_forcefully((await login(server, certificate, ChallengeCache(), *MEMBER)).stream)
    assert server.reasons == ["broken", "challenge"]
