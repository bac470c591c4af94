"""What a router's HTTP proxy can do wrong, or tell: each case has its own error, and says what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from garlicfarm.errors import ConfigError, TransportError, UnreachableError
from garlicfarm.http.digest import DigestVerifier, Verified, ha1
from garlicfarm.lab.processes import free_ports
from garlicfarm.plugins import make_transport
from garlicfarm.transport import Endpoint, Peer, Transport
from tests.transports.connect_proxy import B32, ESTABLISHED, NO_LEASESET, ConnectProxy, connect_proxy, page

ENDPOINT = Endpoint("i2p", B32[0], 27150)
Script = Callable[[trio.SocketStream, bytes], Awaitable[None]]


@pytest.fixture
async def proxy() -> AsyncIterator[ConnectProxy]:
    async with connect_proxy() as proxy:
        yield proxy


def dialler(proxy: ConnectProxy, directory: Path, **table: str) -> Transport:
    return make_transport("i2p", {"proxy": proxy.url, **table}, directory)


def says(answer: bytes) -> Script:
    async def script(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(answer)

    return script


async def problem(transport: Transport, endpoint: Endpoint = ENDPOINT) -> TransportError:
    with trio.fail_after(240), pytest.raises(TransportError) as caught:
        await transport.open_stream(endpoint)
    assert caught.value.hint
    return caught.value


HOST_NOT_FOUND = (
    b"<h1>Proxy error: Host not found</h1>\r\n<p>Remote host not found in router's addressbook</p>\r\n"
    b'<ul>\r\n  <li><a href="http://stats.i2p/cgi-bin/jump.cgi?a=farm.i2p">stats.i2p</a></li>\r\n</ul>\r\n'
)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (page(NO_LEASESET), UnreachableError, ["finds no LeaseSet", "server tunnel up"]),
        (page(b"<h3>Lease Set Not Found</h3>", b"504 Gateway Timeout"), UnreachableError, ["no LeaseSet"]),
        (page(HOST_NOT_FOUND), TransportError, ["does not know the name", "b32"]),
        (
            page(
                b"<h1>Proxy error: Outproxy failure</h1>"
                b"<p>Host x not inside I2P network, but outproxy is not enabled</p>"
            ),
            TransportError,
            ["has no outproxy", "b32"],
        ),
        (
            page(b"<h1>Proxy error: Invalid request</h1><p>invalid request uri</p>"),
            TransportError,
            ["did not understand CONNECT", "endpoint"],
        ),
        (
            page(b"<h1>Fehler</h1><p>Fertig \x1b[31m</p>"),
            TransportError,
            ["answered 500: 'Fehler Fertig", "log"],
        ),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", TransportError, ["answered 302"]),
        (b"HTTP/1.1 500 No\r\nContent-Length: 900\r\n\r\n<b>half a page", TransportError, ["'half a page'"]),
        (b"HTTP/1.1 500 No\r\n\r\n" + b"x" * 1_000_000, TransportError, ["answered 500"]),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n", TransportError, ["is not an HTTP proxy", "4444"]),
        (b"\x15\x03\x03\x00\x02\x02\x16", TransportError, ["is not an HTTP proxy"]),
        (b"HTTP/1.1 200 O", UnreachableError, ["closed the connection before it had answered", "log"]),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, TransportError, ["is not an HTTP proxy"]),
        (b"", UnreachableError, ["closed the connection before it had answered"]),
    ],
    ids=lambda value: None,
)
async def test_answer_that_is_no_stream_is_explained(answer, kind, words, proxy, tmp_path):
    proxy.script = says(answer)
    error = await problem(dialler(proxy, tmp_path))
    assert type(error) is kind
    assert all(word in str(error) for word in words), str(error)
    assert str(error).isprintable()
    assert "<" not in str(error)
    assert len(str(error)) < 400


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("farm.example", "is not an I2P name"),
        ("127.0.0.1", "is not an I2P name"),
        ("a" * 51 + ".b32.i2p", "is not a b32 address"),
        ("a" * 51 + "b.b32.i2p", "is not a b32 address"),
        ("a" * 51 + "1.b32.i2p", "is not a b32 address"),
    ],
)
async def test_name_that_is_none_of_i2p_never_reaches_the_proxy(host, words, proxy, tmp_path):
    error = await problem(dialler(proxy, tmp_path), Endpoint("i2p", host, 27150))
    assert words in str(error)
    assert proxy.heads == []


async def test_proxy_that_is_down_is_named(proxy: ConnectProxy, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    error = await problem(make_transport("i2p", {"proxy": f"http://127.0.0.1:{port}"}, tmp_path))
    assert isinstance(error, UnreachableError)
    assert f"nothing listens at the I2P proxy 127.0.0.1:{port}" in str(error)
    assert "is the router up" in str(error)


async def test_proxy_that_answers_slowly_is_told_from_one_that_never_does(proxy, tmp_path, monkeypatch):
    async def slow(stream: trio.SocketStream, head: bytes) -> None:
        for octet in ESTABLISHED:
            await stream.send_all(bytes([octet]))
            await trio.sleep(0.002)
        assert await stream.receive_some() == b"hello"
        await stream.send_all(b"welcome")

    proxy.script = slow
    async with await dialler(proxy, tmp_path).open_stream(ENDPOINT) as stream:
        await stream.send_all(b"hello")
        assert await stream.receive_some() == b"welcome"

    async def never(stream: trio.SocketStream, head: bytes) -> None:
        with trio.move_on_after(90):
            while True:
                await stream.send_all(b"HTTP/1.1 100 Continue\r\n\r\n")
                await trio.sleep(0.01)

    proxy.script = never
    monkeypatch.setattr("garlicfarm_transport_i2p.ANSWER_TIMEOUT_S", 0.2)
    error = await problem(dialler(proxy, tmp_path))
    assert isinstance(error, UnreachableError)
    assert "has not answered within 0.2 s" in str(error)


async def test_bytes_that_come_with_the_200_belong_to_the_stream(proxy: ConnectProxy, tmp_path: Path) -> None:
    async def eager(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(ESTABLISHED + b"first")
        assert await stream.receive_some() == b"go on"
        await stream.send_all(b"second")

    proxy.script = eager
    stream = await dialler(proxy, tmp_path).open_stream(ENDPOINT)
    assert await stream.receive_some(2) == b"fi"
    assert await stream.receive_some() == b"rst"
    await stream.wait_send_all_might_not_block()
    await stream.send_all(b"go on")
    assert await stream.receive_some() == b"second"
    assert await stream.receive_some() == b""
    await stream.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive_some()


async def test_nothing_is_sent_before_the_200_and_the_request_names_host_and_port(proxy, tmp_path):
    async def listening(stream: trio.SocketStream, head: bytes) -> None:
        with trio.move_on_after(0.1):
            proxy.early += await stream.receive_some()
        await stream.send_all(ESTABLISHED)

    proxy.script = listening
    async with await dialler(proxy, tmp_path).open_stream(ENDPOINT):
        pass
    target = f"{ENDPOINT.host}:{ENDPOINT.port}"
    assert proxy.early == b""
    assert proxy.heads == [f"CONNECT {target} HTTP/1.1\r\nHost: {target}".encode()]


class Asking:
    """A proxy that wants a user, as Java I2P does."""

    def __init__(self, user: str, password: str, challenge: str = "") -> None:
        known = {a: (ha1(a, user, "restricted", password),) for a in ("MD5",)}
        self.verifier = DigestVerifier(
            "restricted", ("MD5",), b"k" * 32, lambda name: known if name == user else {}
        )
        self.challenge = challenge
        self.made = 0

    async def __call__(self, stream: trio.SocketStream, head: bytes) -> None:
        lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        target = head.split()[1].decode()
        verdict = self.verifier.verify(
            "CONNECT", target, lines.get("Proxy-Authorization"), trio.current_time()
        )
        if isinstance(verdict, Verified):
            await stream.send_all(ESTABLISHED)
            return
        self.made += 1
        (made,) = self.verifier.challenges(trio.current_time(), self.made.to_bytes(16, "big"))
        header = f"Proxy-Authenticate: {self.challenge or made}\r\n".encode()
        await stream.send_all(page(b"<h1>Proxy</h1>", b"407 Proxy Authentication Required", header))


def credentials(directory: Path, text: str, mode: int = 0o600) -> str:
    path = directory / "proxy.credentials"
    path.write_text(text)
    path.chmod(mode)
    return path.name


async def test_proxy_that_wants_a_user_gets_one_and_is_asked_once_only_for_a_challenge(proxy, tmp_path):
    proxy.script = Asking("alice", "se:cret")
    transport = dialler(proxy, tmp_path, credentials_file=credentials(tmp_path, "alice:se:cret\n"))
    for _ in range(3):
        async with await transport.open_stream(ENDPOINT):
            pass
    assert len(proxy.heads) == 4
    assert b"se:cret" not in b"".join(proxy.heads)


@pytest.mark.parametrize(
    ("text", "challenge", "hint", "asked"),
    [
        ("", "", "name a credentials_file", 1),
        ("alice:wrong", "", "check user and password", 2),
        ("alice:secret", 'Basic realm="x"', "Digest", 1),
    ],
)
async def test_proxy_that_refuses_the_user_is_explained(text, challenge, hint, asked, proxy, tmp_path):
    proxy.script = Asking("alice", "secret", challenge)
    table = {"credentials_file": credentials(tmp_path, text)} if text else {}
    error = await problem(dialler(proxy, tmp_path, **table))
    assert "wants a user and a password" in str(error)
    assert hint in str(error)
    assert "wrong" not in str(error)
    assert len(proxy.heads) == asked


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"proxy": "http://10.0.0.1:4444"}, "on loopback"),
        ({"proxy": "https://127.0.0.1:4444"}, "http://HOST:PORT"),
        ({"proxy": "127.0.0.1:4444"}, "not of the form"),
        ({"proxi": "http://127.0.0.1:4444"}, "did you mean 'proxy'"),
        ({"credentials_file": "missing"}, "cannot be read"),
    ],
)
def test_configuration_that_cannot_work_is_refused(table: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        make_transport("i2p", table, tmp_path)


def test_credentials_that_others_can_read_or_that_lack_a_password_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        make_transport("i2p", {"credentials_file": credentials(tmp_path, "a:b", 0o644)}, tmp_path)
    with pytest.raises(ConfigError, match="must hold user:password"):
        make_transport("i2p", {"credentials_file": credentials(tmp_path, "alice")}, tmp_path)


async def ignore(stream: trio.abc.Stream, peer: Peer) -> None:
    assert not peer.address_is_peer
    while await stream.receive_some():
        pass


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "a.example"])
async def test_listener_that_others_could_reach_is_refused(host: str, tmp_path: Path) -> None:
    with (
        trio.fail_after(240),
        pytest.raises(TransportError, match=r"listen on i2p://127\.0\.0\.1:27150, behind"),
    ):
        await make_transport("i2p", {}, tmp_path).serve(
            Endpoint("i2p", host, 27150), ignore, task_status=trio.TASK_STATUS_IGNORED
        )


async def test_tls_spoken_to_the_plain_port_is_explained_to_who_speaks_it(tmp_path, nursery):
    async def refuse(stream: trio.abc.Stream, peer: Peer) -> None:
        assert (await stream.receive_some()).startswith(b"\x16\x03")
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    bound = await nursery.start(
        make_transport("i2p", {}, tmp_path).serve, Endpoint("i2p", "127.0.0.1", 0), refuse
    )
    dialled = Endpoint("ssl", bound.host, bound.port, {"pin": "sha256-x"})
    with pytest.raises(TransportError, match=r"TLS failed: .*; is that a node.s farm port, with TLS"):
        await make_transport("ssl", {}, tmp_path).open_stream(dialled)


async def test_close_of_a_stream_whose_far_end_is_stuck_takes_no_time(proxy, tmp_path):
    async def stuck(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(ESTABLISHED)
        await trio.sleep_forever()

    proxy.script = stuck
    stream = await dialler(proxy, tmp_path).open_stream(ENDPOINT)
    with trio.move_on_after(0.2):
        await stream.send_all(bytes(50_000_000))
    with trio.fail_after(240):  # it is stuck for ever
        await stream.aclose()


async def test_handler_that_returns_while_the_far_end_is_stuck_is_soon_gone(tmp_path, nursery, monkeypatch):
    async def leave(stream: trio.abc.Stream, peer: Peer) -> None:
        return

    async def talk_on(far: trio.SocketStream) -> None:
        while True:
            await far.send_all(bytes(1000))
            await trio.sleep(0.01)

    monkeypatch.setattr("garlicfarm.net.tcp.CLOSE_TIMEOUT_S", 0.1)
    transport = make_transport("i2p", {}, tmp_path)
    bound = await nursery.start(partial(transport.serve, Endpoint("i2p", "127.0.0.1", 0), leave))
    with trio.fail_after(240):
        async with await trio.open_tcp_stream(bound.host, bound.port) as far:
            assert await far.receive_some() == b""  # and never closes
            with pytest.raises(trio.BrokenResourceError):
                await talk_on(far)
