"""Java I2P's spellings, answered as its sources do (none runs here)."""

from __future__ import annotations

import pytest

from garlicfarm.errors import RouterError
from garlicfarm.router import Bandwidth, Router, RouterStatus
from garlicfarm.testing.router_suite import RouterSuite

STATUS = RouterStatus(
    uptime=86_400_123,
    job_lag=2,
    participating_tunnels=412,
    configured_bandwidth=Bandwidth(in_=300 * 1024, out=60 * 1024),
    current_bandwidth=Bandwidth(in_=40_961, out=51_200),
)
ASKED = ["RouterInfo", "NetworkSetting", "GetRate"]


class TestJavaI2P(RouterSuite):
    @pytest.fixture
    def router(self, java_server, make) -> Router:
        return make(url=f"{java_server.url}/jsonrpc/")

    @pytest.fixture
    def unreachable_router(self, make, closed_port: int) -> Router:
        return make(url=f"http://127.0.0.1:{closed_port}/jsonrpc/")


async def test_status_of_java_has_job_lag_and_settings_told_as_text(java_server, make) -> None:
    async with make(url=java_server.url) as router:
        assert await router.get_local_router_status() == STATUS
        assert await router.get_local_router_status() == STATUS
    assert java_server.methods == ["Authenticate", *ASKED, *ASKED]


async def test_limit_never_set_is_absent(java_server, make) -> None:
    java_server.answer.settings["i2p.router.net.bw.in"] = None
    async with make(url=java_server.url) as router:
        assert (await router.get_local_router_status()).configured_bandwidth is None


async def test_job_lag_not_kept_is_absent_and_asked_again(java_server, make) -> None:
    rates = dict(java_server.answer.rates)
    java_server.answer.rates.clear()
    async with make(url=java_server.url) as router:
        status = await router.get_local_router_status()
        assert status.job_lag is None
        assert status.uptime == STATUS.uptime
        java_server.answer.rates |= rates
        assert await router.get_local_router_status() == STATUS


@pytest.mark.parametrize("told", ['{"Rate":7.5}', '{"Result":null}', '{"Result":-1.0}', "{}"])
async def test_job_lag_told_otherwise_is_absent(java_server, make, told: str) -> None:
    java = java_server.answer
    java_server.answer = lambda request: (
        f'{{"result":{told}}}' if request["method"] == "GetRate" else java(request)
    )
    async with make(url=java_server.url) as router:
        status = await router.get_local_router_status()
    assert status.job_lag is None
    assert status.uptime == STATUS.uptime


async def test_api_version_refused_raises_router_error_with_the_reason(java_server, make) -> None:
    java_server.answer.api_versions = {2}
    async with make(url=java_server.url) as router:
        with pytest.raises(RouterError, match="refused to authenticate: 'told by Java'"):
            await router.get_local_router_status()


async def test_answer_in_chunks_is_read(java_server, make) -> None:
    async def chunked(stream) -> None:
        await stream.receive_some()
        pieces = [b'{"error":{"code":-32006,"message":"in ', b'chunks"}}']
        body = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in pieces) + b"0\r\n\r\n"
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)

    java_server.raw = chunked
    async with make(url=java_server.url) as router:
        with pytest.raises(RouterError, match="in chunks"):
            await router.get_local_router_status()


async def test_request_goes_to_the_url_itself_with_headers_spelled_for_i2pd(java_server, make, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    received = b""

    async def record(stream) -> None:
        nonlocal received
        while not received.endswith(b"}"):
            received += await stream.receive_some()

    java_server.raw = record
    async with make(url=f"{java_server.url}/jsonrpc/") as router:
        with pytest.raises(RouterError):
            await router.get_local_router_status()
    head, body = received.split(b"\r\n\r\n")
    assert head.decode().splitlines() == [
        "POST /jsonrpc/ HTTP/1.1",
        f"Host: 127.0.0.1:{java_server.port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
