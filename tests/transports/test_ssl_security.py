"""Whom the transport ``ssl`` talks to: pins, CAs, versions, and nothing in plain text."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from garlicfarm.credentials.certificates import make_certificate, pin_of_file
from garlicfarm.errors import ConfigError, TransportError, UnreachableError
from garlicfarm.transport import Endpoint, Peer, Transport
from garlicfarm_transport_ssl import SslConfig, SslTransport

LOOPBACK = Endpoint("ssl", "127.0.0.1", 0)
Handler = Callable[[trio.abc.Stream, Peer], Awaitable[None]]


async def echo(stream: trio.abc.Stream, peer: Peer) -> None:
    async for data in stream:
        await stream.send_all(data)


@asynccontextmanager
async def serving(transport: Transport, handler: Handler = echo) -> AsyncIterator[Endpoint]:
    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(transport.serve, LOOPBACK, handler)
            nursery.cancel_scope.cancel()


async def assert_echoes(transport: Transport, endpoint: Endpoint) -> None:
    async with await transport.open_stream(endpoint) as stream:
        await stream.send_all(b"hello")
        assert await stream.receive_some() == b"hello"


def node(directory: Path, name: str = "node", **options: Any) -> SslTransport:
    make_certificate(directory / f"{name}.crt", directory / f"{name}.key", "127.0.0.1")
    return SslTransport(SslConfig(certificate=f"{name}.crt", private_key=f"{name}.key", **options), directory)


class Authority:
    """A CA in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.file = directory, f"{name}.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(self._name, self._key.public_key(), x509.BasicConstraints(True, None))
        (directory / self.file).write_bytes(certificate)

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *extensions: Any) -> bytes:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, address: str = "127.0.0.1") -> dict[str, Any]:
        """A certificate for ``address``; what the configuration says of it."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        (self.directory / f"{name}.crt").write_bytes(self._sign(subject, key.public_key(), alternative))
        key_file = self.directory / f"{name}.key"
        key_file.touch(0o600)
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return {"certificate": f"{name}.crt", "private_key": f"{name}.key"}


# Pins


async def test_pin_that_matches_opens_the_stream(tmp_path: Path) -> None:
    transport = node(tmp_path)
    async with serving(transport) as bound:
        assert bound.params == {"pin": pin_of_file(tmp_path / "node.crt")}
        await assert_echoes(SslTransport(SslConfig(), tmp_path), bound)


async def test_pin_of_another_certificate_is_refused_and_nothing_is_sent(tmp_path: Path) -> None:
    wrong = make_certificate(tmp_path / "other.crt", tmp_path / "other.key", "127.0.0.1")
    received, arrivals = trio.open_memory_channel[bytes](1)

    async def note(stream: trio.abc.Stream, peer: Peer) -> None:
        try:
            await received.send(bytes(await stream.receive_some()))
        except trio.BrokenResourceError:
            await received.send(b"")

    transport = node(tmp_path)
    async with serving(transport, note) as bound:
        with pytest.raises(TransportError, match="another certificate") as caught:
            await transport.open_stream(Endpoint("ssl", bound.host, bound.port, {"pin": wrong}))
        assert bound.params["pin"] in str(caught.value)
        assert await arrivals.receive() == b""


@pytest.mark.parametrize("params", [{}, {"pin": ""}, {"pni": "sha256-x"}])
async def test_endpoint_without_pin_and_ca_is_never_dialled(tmp_path: Path, params: dict[str, str]) -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    async with listener:
        port = listener.socket.getsockname()[1]
        with pytest.raises(TransportError, match="nothing identifies") as caught:
            await SslTransport(SslConfig(), tmp_path).open_stream(Endpoint("ssl", "127.0.0.1", port, params))
        assert "pin" in caught.value.hint
        with trio.move_on_after(0.05):
            await listener.accept()
            pytest.fail("it dialled")


async def test_pinned_certificate_that_expired_still_serves(tmp_path: Path) -> None:
    made = datetime(2001, 1, 1, tzinfo=UTC)
    make_certificate(tmp_path / "old.crt", tmp_path / "old.key", "a.example", now=made)
    certificate = x509.load_pem_x509_certificate((tmp_path / "old.crt").read_bytes())
    assert certificate.not_valid_after_utc < datetime.now(UTC)
    transport = SslTransport(SslConfig(certificate="old.crt", private_key="old.key"), tmp_path)
    async with serving(transport) as bound:
        await assert_echoes(transport, bound)


# Certificate authorities


async def test_ca_with_the_right_host_opens_the_stream_without_pin(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    transport = SslTransport(SslConfig(ca=ca.file, **ca.issue("node")), tmp_path)
    async with serving(transport) as bound:
        await assert_echoes(transport, Endpoint("ssl", bound.host, bound.port))


async def test_ca_with_another_host_is_refused(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    transport = SslTransport(SslConfig(ca=ca.file, **ca.issue("node", "127.0.0.2")), tmp_path)
    async with serving(transport) as bound:
        with pytest.raises(TransportError, match="IP address mismatch") as caught:
            await transport.open_stream(bound)
        assert "ca in [transport.ssl]" in caught.value.hint


async def test_certificate_of_another_ca_is_refused(tmp_path: Path) -> None:
    ca, other = Authority(tmp_path, "ca"), Authority(tmp_path, "other")
    transport = SslTransport(SslConfig(ca=ca.file, **other.issue("node")), tmp_path)
    async with serving(transport) as bound:
        with pytest.raises(TransportError, match="TLS failed"):
            await transport.open_stream(Endpoint("ssl", bound.host, bound.port))


async def test_ca_does_not_excuse_a_wrong_pin(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    transport = SslTransport(SslConfig(ca=ca.file, **ca.issue("node")), tmp_path)
    async with serving(transport) as bound:
        pin = pin_of_file(tmp_path / ca.file)
        with pytest.raises(TransportError, match="another certificate"):
            await transport.open_stream(Endpoint("ssl", bound.host, bound.port, {"pin": pin}))


async def test_mutual_certificates_tell_the_handler_whose_it_is(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    config = partial(SslConfig, ca=ca.file, require_client_certificate=True)
    server = SslTransport(config(**ca.issue("server")), tmp_path)
    client = SslTransport(config(**ca.issue("client")), tmp_path)
    seen, peers = trio.open_memory_channel[Peer](1)

    async def note(stream: trio.abc.Stream, peer: Peer) -> None:
        await seen.send(peer)
        await echo(stream, peer)

    async with serving(server, note) as bound:
        await assert_echoes(client, bound)
        peer = await peers.receive()
    certificate = x509.load_pem_x509_certificate((tmp_path / "client.crt").read_bytes())
    assert peer == Peer("127.0.0.1", True, certificate.fingerprint(hashes.SHA256()))


async def test_client_without_the_required_certificate_is_dropped(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    server = SslTransport(
        SslConfig(ca=ca.file, require_client_certificate=True, **ca.issue("server")), tmp_path
    )
    drops: list[str] = []
    server.on_drop = lambda peer, reason: drops.append(reason)
    client = SslTransport(SslConfig(ca=ca.file), tmp_path)
    async with serving(server) as bound, await client.open_stream(bound) as stream:
        with pytest.raises(trio.BrokenResourceError, match="certificate required"):
            await stream.receive_some()
    assert drops == ["tls"]


# What is not TLS 1.3


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_client_of_less_than_tls_1_3_is_refused(tmp_path: Path, version: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    transport = node(tmp_path)
    drops: list[str] = []
    transport.on_drop = lambda peer, reason: drops.append(reason)
    async with serving(transport) as bound:
        stream = trio.SSLStream(
            await trio.open_tcp_stream(bound.host, bound.port), context, https_compatible=True
        )
        refused = False
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError:
            refused = True
        await trio.aclose_forcefully(stream)
        await assert_echoes(transport, bound)
    assert refused == (version < ssl.TLSVersion.TLSv1_3)
    assert drops == ["tls"] * refused


async def test_tls_1_2_server_is_refused(tmp_path: Path, nursery: trio.Nursery) -> None:
    transport = node(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tmp_path / "node.crt", tmp_path / "node.key")

    async def serve(tcp: trio.SocketStream) -> None:
        with pytest.raises(trio.BrokenResourceError):
            await trio.SSLStream(tcp, context, server_side=True).do_handshake()

    listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
    port = listeners[0].socket.getsockname()[1]
    with pytest.raises(TransportError, match="TLS failed"):
        await transport.open_stream(
            Endpoint("ssl", "127.0.0.1", port, {"pin": pin_of_file(tmp_path / "node.crt")})
        )


@pytest.mark.parametrize(
    "data",
    [b"GET /GarlicFarm/farm/1/websocket HTTP/1.1\r\nHost: a\r\n\r\n", b"\x00" * 20_000, b"\x16\x03\x01\xff"],
    ids=["http", "zeros", "cut"],
)
async def test_plain_text_on_the_tls_port_costs_its_own_connection(tmp_path: Path, data: bytes) -> None:
    transport = node(tmp_path)
    drops: list[tuple[Peer, str]] = []
    transport.on_drop = lambda peer, reason: drops.append((peer, reason))

    async def unreached(stream: trio.abc.Stream, peer: Peer) -> None:
        assert await stream.receive_some() == b"the real one"

    async with serving(transport, unreached) as bound:
        plain = await trio.open_tcp_stream(bound.host, bound.port)
        answer = b""
        with suppress(trio.BrokenResourceError):  # a reset, where the server left bytes unread
            await plain.send_all(data)
            await plain.send_eof()
            while part := await plain.receive_some():
                answer += part
        assert b"HTTP" not in answer
        await plain.aclose()
        async with await transport.open_stream(bound) as stream:
            await stream.send_all(b"the real one")
            assert await stream.receive_some() == b""
    assert drops == [(Peer("127.0.0.1", True, None), "tls")]


async def test_plain_text_server_is_refused(tmp_path: Path, nursery: trio.Nursery) -> None:
    async def speak(tcp: trio.SocketStream) -> None:
        await tcp.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    listeners = await nursery.start(partial(trio.serve_tcp, speak, 0, host="127.0.0.1"))
    port = listeners[0].socket.getsockname()[1]
    with pytest.raises(TransportError, match="TLS failed") as caught:
        await node(tmp_path).open_stream(Endpoint("ssl", "127.0.0.1", port, {"pin": "sha256-x"}))
    assert not isinstance(caught.value, UnreachableError)


@pytest.mark.openssl
async def test_openssl_client_sees_tls_1_3_and_a_clean_end(tmp_path: Path) -> None:
    async def greet(stream: trio.abc.Stream, peer: Peer) -> None:
        await stream.send_all(b"hello from the farm\n")

    async with serving(node(tmp_path), greet) as bound:
        command = ["openssl", "s_client", "-brief", "-ign_eof", "-connect", f"{bound.host}:{bound.port}"]
        done = await trio.run_process(
            command, stdin=b"", check=False, capture_stdout=True, stderr=subprocess.STDOUT
        )
    assert b"TLSv1.3" in done.stdout
    assert b"hello from the farm" in done.stdout
    assert b"unexpected eof" not in done.stdout


# Reaching


@pytest.mark.parametrize("host", ["no-such-host.invalid", "b\u00fc" * 100, "a" * 300])
async def test_unresolvable_host_is_unreachable(tmp_path: Path, host: str) -> None:
    with trio.fail_after(240), pytest.raises(UnreachableError, match="ssl://"):
        await node(tmp_path).open_stream(Endpoint("ssl", host, 1, {"pin": "sha256-x"}))


async def test_refused_connection_says_so(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = Endpoint("ssl", "127.0.0.1", free.getsockname()[1], {"pin": "sha256-x"})
        with pytest.raises(UnreachableError, match="Connection refused") as caught:
            await node(tmp_path).open_stream(endpoint)
    assert caught.value.cause == f"ssl://127.0.0.1:{endpoint.port}: Connection refused"


# Configuration


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"certificate": "node.crt"}, "need each other"),
        ({"certificate": "absent.crt", "private_key": "node.key"}, "absent.crt: No such file"),
        ({"certificate": "node.crt", "private_key": "absent.key"}, "absent.key: No such file"),
        ({"certificate": "node.key", "private_key": "node.key"}, "no certificate in PEM form"),
        ({"certificate": "node.crt", "private_key": "other.key"}, "not the unencrypted key of"),
        ({"certificate": "node.crt", "private_key": "locked.key"}, "not the unencrypted key of"),
        ({"certificate": "node.crt", "private_key": "shown.key"}, "chmod 600"),
        ({"ca": "absent.pem"}, "absent.pem: No such file"),
        ({"ca": "node.key"}, "no certificate in PEM form"),
        ({"require_client_certificate": True}, "needs a ca"),
    ],
)
def test_config_that_cannot_work_is_refused_before_anything_runs(tmp_path, options, problem):
    make_certificate(tmp_path / "node.crt", tmp_path / "node.key", "127.0.0.1")
    make_certificate(tmp_path / "other.crt", tmp_path / "other.key", "127.0.0.1")
    secret = (tmp_path / "node.key").read_bytes()
    (tmp_path / "shown.key").write_bytes(secret)
    (tmp_path / "shown.key").chmod(0o640)
    locked = serialization.load_pem_private_key(secret, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    (tmp_path / "locked.key").write_bytes(locked)
    (tmp_path / "locked.key").chmod(0o600)
    with pytest.raises(ConfigError, match=problem):
        SslTransport(SslConfig(**options), tmp_path)


async def test_serve_without_certificate_or_on_a_taken_port_is_a_transport_error(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="without a certificate"):
        await SslTransport(SslConfig(), tmp_path).serve(LOOPBACK, echo, task_status=trio.TASK_STATUS_IGNORED)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = Endpoint("ssl", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(TransportError, match=r"cannot listen on ssl:.*the url of the \[\[listener\]\]"):
            await node(tmp_path).serve(url, echo, task_status=trio.TASK_STATUS_IGNORED)
