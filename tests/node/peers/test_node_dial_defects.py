"""An endpoint that a transport stumbles over costs the connection to that member, on every node alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from garlicfarm.net.tls_stream import TlsStream
from garlicfarm.transport import Endpoint
from garlicfarm_transport_ssl import SslTransport
from tests.node.support.cluster import cluster
from tests.running import told


@pytest.mark.parametrize("grouped", [False, True])
async def test_defect_in_dialling_one_member_leaves_the_others_at_work(
    grouped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_stream = SslTransport.open_stream
    port = 0

    async def stumbling(self: SslTransport, endpoint: Endpoint) -> TlsStream:
        if endpoint.port == port:
            error = ValueError("what a peer said, perhaps")
            raise ExceptionGroup("of a nursery", [error]) if grouped else error
        return await open_stream(self, endpoint)

    monkeypatch.setattr(SslTransport, "open_stream", stumbling)
    async with cluster(tmp_path, 3, start=False) as nodes:
        port = nodes.endpoint(3).port
        nodes.favour(1)
        await nodes.start(1, 2)
        assert await nodes.leader() == 1
        await nodes.replica(1).post(b"goes on")
        error = nodes.replica(1).peers.error(3)
        assert error is not None
        assert "a defect of the transport ssl" in error
        assert set(nodes.running) == {1, 2}
    assert {each["error"] for each in told(caplog, "dial-defect")} == {"ValueError"}
    assert "perhaps" not in caplog.text
