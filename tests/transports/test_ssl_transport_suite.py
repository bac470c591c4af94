"""The transport ``ssl`` passes the suite for transports, and the suite finds transports that should not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

import pytest
import trio
import trio.testing

from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.errors import TransportError, UnreachableError
from garlicfarm.net.tls_stream import TlsStream
from garlicfarm.testing.transport_suite import TransportSuite
from garlicfarm.transport import Endpoint, Peer
from garlicfarm_transport_ssl import SslConfig, SslTransport


class TestSslTransport(TransportSuite):
    @pytest.fixture
    def transport(self, tmp_path: Path) -> SslTransport:
        make_certificate(tmp_path / "node.crt", tmp_path / "node.key", "127.0.0.1")
        return SslTransport(SslConfig(certificate="node.crt", private_key="node.key"), tmp_path)

    async def test_peer_address_is_known_while_the_stream_is_open(self, transport, listen_url):
        async def wait(stream: trio.abc.Stream, peer: Peer) -> None:
            await stream.receive_some()

        async with (
            self.serving(transport, listen_url, wait) as bound,
            await transport.open_stream(bound) as stream,
        ):
            assert transport.peer_address(stream) == listen_url.host
            assert transport.peer_address(trio.testing.memory_stream_pair()[0]) is None


@pytest.mark.ipv6
class TestSslTransportOverIPv6(TestSslTransport):
    @pytest.fixture
    def listen_url(self) -> Endpoint:
        return Endpoint("ssl", "::1", 0)


class Leaky(SslTransport):
    """Forgets its socket when it is cancelled in mid-handshake."""

    kept: list[trio.SocketStream]

    async def open_stream(self, endpoint: Endpoint) -> TlsStream:
        self.kept = getattr(self, "kept", [])
        self.kept.append(await trio.open_tcp_stream(endpoint.host, endpoint.port))
        return await super().open_stream(endpoint)


class Vague(SslTransport):
    """Says of a dead endpoint only that something failed."""

    async def open_stream(self, endpoint: Endpoint) -> TlsStream:
        try:
            return await super().open_stream(endpoint)
        except UnreachableError as exc:
            raise TransportError("no") from exc


class Swallowing(SslTransport):
    """Hides what escapes a handler."""

    async def serve(
        self,
        url: Endpoint,
        handler: Callable[[trio.abc.Stream, Peer], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[Endpoint],
    ) -> NoReturn:
        async def quiet(stream: trio.abc.Stream, peer: Peer) -> None:
            try:
                await handler(stream, peer)
            except Exception:  # noqa: BLE001
                await trio.sleep_forever()

        await super().serve(url, quiet, task_status=task_status)


@pytest.mark.parametrize(
    ("bad", "test"),
    [
        (Leaky, "test_open_stream_cancelled_leaves_nothing_open"),
        (Vague, "test_open_stream_to_nobody_is_unreachable"),
        (Swallowing, "test_what_escapes_a_handler_ends_serve"),
    ],
)
async def test_suite_against_a_bad_transport_fails(bad, test, tmp_path, monkeypatch):
    monkeypatch.setattr("garlicfarm.testing.transport_suite._DEADLINE_S", 1.0)
    make_certificate(tmp_path / "node.crt", tmp_path / "node.key", "127.0.0.1")
    transport = bad(SslConfig(certificate="node.crt", private_key="node.key"), tmp_path)
    failure: BaseException | None = None
    try:
        await getattr(TransportSuite(), test)(transport, transport, Endpoint("ssl", "127.0.0.1", 0))
    except (AssertionError, TransportError, trio.TooSlowError, BaseExceptionGroup) as exc:
        failure = exc
    for stream in getattr(transport, "kept", ()):
        await trio.aclose_forcefully(stream)
    assert failure is not None
