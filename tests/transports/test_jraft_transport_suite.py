"""The transport ``jraft`` keeps the contract of transports."""

from __future__ import annotations

from pathlib import Path

import pytest

from garlicfarm.plugins import make_transport
from garlicfarm.testing.transport_suite import TransportSuite
from garlicfarm.transport import Endpoint, Transport


class TestJRaftTransport(TransportSuite):
    @pytest.fixture
    def transport(self, tmp_path: Path) -> Transport:
        transport = make_transport("jraft", {}, tmp_path)
        assert not transport.handshake
        return transport


@pytest.mark.ipv6
class TestJRaftTransportOverIPv6(TestJRaftTransport):
    @pytest.fixture
    def listen_url(self) -> Endpoint:
        return Endpoint("jraft", "::1", 0)
