"""The transport ``i2p`` keeps the contract of transports, through a CONNECT proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from garlicfarm.plugins import make_transport
from garlicfarm.testing.transport_suite import TransportSuite
from garlicfarm.transport import Endpoint, Transport
from tests.transports.connect_proxy import B32, ConnectProxy, connect_proxy

LEADS_TO: dict[str, int] = {}


class TestI2PTransport(TransportSuite):
    @pytest.fixture
    async def proxy(self) -> AsyncIterator[ConnectProxy]:
        async with connect_proxy() as proxy:
            proxy.names = LEADS_TO
            yield proxy

    @pytest.fixture
    def transport(self, tmp_path: Path, proxy: ConnectProxy) -> Transport:
        return make_transport("i2p", {"proxy": proxy.url}, tmp_path)

    def dialled(self, bound: Endpoint) -> Endpoint:
        LEADS_TO[B32[0]] = bound.port
        return Endpoint("i2p", B32[0], bound.port)
