"""What tells a member that its leader's process is gone, from the socket to the election."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio

from garlicfarm.errors import NotListening, TransportError, UnreachableError
from garlicfarm.http.digest import ChallengeCache
from garlicfarm.logs import EventLogger
from garlicfarm.net.handshake import DialCredentials
from garlicfarm.node.dialler import dial_member
from garlicfarm.plugins import make_transport
from garlicfarm.transport import Endpoint, Transport
from tests.node.support.cluster import THREE, cluster
from tests.running import told, wait_until

PIN = "pin=sha256-" + 43 * "A"


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Bound, so that no other process gets it, and not listening."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def _dial(text: str, transport: Transport) -> type[BaseException]:
    class OneTransport:
        def get(self, scheme: str) -> Transport:
            return transport

    credentials = DialCredentials("farm", "1", "password", ChallengeCache(["SHA-256"]))
    log = EventLogger(logging.getLogger("test"))
    transports: Any = OneTransport()
    with pytest.raises(TransportError) as raised:
        await dial_member(transports, "ssl", credentials, log, 2, text)
    return raised.type


async def test_refused_connection_says_that_no_process_listens(closed_port: int, tmp_path: Path) -> None:
    ssl = make_transport("ssl", {}, tmp_path)
    assert await _dial(f"ssl://127.0.0.1:{closed_port}?{PIN}", ssl) is NotListening


async def test_refusal_of_a_proxy_says_nothing_of_the_member(closed_port: int, tmp_path: Path) -> None:
    ssl = make_transport("ssl", {}, tmp_path)
    assert await _dial(f"ssl://127.0.0.1:{closed_port}?{PIN}&proxied=1", ssl) is UnreachableError


@pytest.mark.parametrize(("scheme", "has_proxy"), [("wss", False), ("jraft", False), ("i2p", True)])
async def test_other_transports_may_lead_through_something_else_and_never_say_so(
    scheme: str, has_proxy: bool, closed_port: int, tmp_path: Path
) -> None:
    where = f"127.0.0.1:{closed_port}"
    options = {"proxy": f"http://{where}"} if has_proxy else {}
    host = "a" * 51 + "q.b32.i2p:0" if has_proxy else where
    transport = make_transport(scheme, options, tmp_path)
    assert await _dial(f"{scheme}://{host}", transport) is UnreachableError


@pytest.mark.parametrize(
    ("second", "raised"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), NotListening),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), UnreachableError),
        (OSError(errno.EHOSTUNREACH, "no route"), UnreachableError),
    ],
)
async def test_name_with_several_addresses_is_refused_by_all_or_not_at_all(
    second: OSError, raised: type[UnreachableError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(host: str, port: int) -> NoReturn:
        first = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        raise OSError("all attempts failed") from ExceptionGroup("all attempts failed", [first, second])

    monkeypatch.setattr(trio, "open_tcp_stream", fail)
    ssl = make_transport("ssl", {}, tmp_path)
    with pytest.raises(UnreachableError) as found:
        await ssl.open_stream(Endpoint.parse(f"ssl://several.example:1?{PIN}"))
    assert found.type is raised


async def test_leader_whose_process_ends_is_replaced_on_that_evidence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sockets and TLS as in a node. The others' election timeouts are ten times the leader's."""
    caplog.set_level(logging.INFO)
    async with cluster(tmp_path, 3, raft=THREE, start=False) as nodes:
        nodes.favour(1)
        for node_id in (2, 3):
            file = nodes.directories[node_id] / "garlicfarm.toml"
            text = file.read_text().replace("timeout_min_s = 3.0", "timeout_min_s = 30.0")
            file.write_text(text.replace("timeout_max_s = 4.0", "timeout_max_s = 40.0"))
        await nodes.start()
        assert await nodes.leader() == 1
        term = nodes.replica(2).raw.term
        pairs = ((2, 1), (3, 1), (2, 3), (3, 2))
        with trio.fail_after(240):
            await wait_until(lambda: all(nodes.replica(a).peers.is_connected(b) for a, b in pairs))
            nodes.running[1].scope.cancel()
            await nodes.running[1].ended.wait()
            while nodes.replica(2).leader_id not in (2, 3):
                await nodes.replica(2).core.wait_leader_change()
    gone = told(caplog, "leader-gone")
    assert {each["node"] for each in gone} <= {2, 3}
    assert {(each["leader"], each["term"]) for each in gone} == {(1, term)}
