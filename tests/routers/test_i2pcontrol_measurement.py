"""Remote destinations, measured through a scripted SAM."""

from __future__ import annotations

from base64 import b32encode
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
from pathlib import Path

import pytest
import trio
import trio.testing

from garlicfarm.errors import ConfigError, NotSupported, RouterError
from garlicfarm.i2p.encoding import encode
from garlicfarm.router import ConnectTest, OwnLookUp, RemoteStatus, Router
from garlicfarm.testing.router_suite import RouterSuite
from garlicfarm_plugin_i2pcontrol import measurement
from tests.publishers.sam_router import SamRouter
from tests.publishing.scripted_log import CERTIFICATE

HASH = bytes(range(32))
ADDRESS = b32encode(HASH).decode().rstrip("=").lower() + ".b32.i2p"
Service = Callable[[trio.SocketStream], Awaitable[None]]


async def silent(stream: trio.SocketStream) -> None:
    while await stream.receive_some():
        pass


async def web(stream: trio.SocketStream) -> None:
    request = await stream.receive_some()
    assert request == f"HEAD / HTTP/1.1\r\nHost: {ADDRESS}\r\n\r\n".encode()
    await stream.send_all(b"HTTP/1.1 404 Not Found\r\n\r\n")


async def ending(stream: trio.SocketStream) -> None:
    await stream.receive_some()


class Measured:
    """``found``: by one measurement, once there is something."""

    def __init__(self, nursery: trio.Nursery, router: Router) -> None:
        self.found: RemoteStatus | None = None
        self._router = router
        nursery.start_soon(self._measure)

    async def _measure(self) -> None:
        self.found = await self._router.get_remote_measured_status(HASH)


@pytest.fixture
async def sam() -> AsyncIterator[SamRouter]:
    async with SamRouter() as made:
        made.service = web
        yield made


class TestMeasuringRouter(RouterSuite):
    @pytest.fixture
    def router(self, control_server, make, sam: SamRouter, monkeypatch: pytest.MonkeyPatch) -> Router:
        sam.is_found = False
        return make(url=control_server.url, sam=sam.address)


async def test_sam_that_asks_for_a_login_gets_it(sam: SamRouter, make, password_file: Path) -> None:
    file = password_file.with_name("sam.password")
    file.touch(mode=0o600)
    file.write_text("s3cret!\n")
    router = make(sam=sam.address, sam_user="farm", sam_password_file=file.name)
    assert (await router.get_remote_measured_status(HASH)).connect_test.ok
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.answer_tests)
        await sam.seen("SESSION CREATE", 2)
        nursery.cancel_scope.cancel()
    hellos = {command for command in sam.commands if command.startswith("HELLO")}
    assert hellos == {"HELLO VERSION MIN=3.0 MAX=3.1 USER=farm PASSWORD=s3cret!"}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"sam_user": "farm"}, "router.sam: sam_user and sam_password_file go together"),
        ({"sam_user": "farm", "sam_password_file": "i2pcontrol.password"}, "are for sam: set it, too"),
    ],
)
def test_login_that_is_not_whole_is_refused(make, keys: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make(**keys)


async def test_service_that_answers_is_reached(sam: SamRouter, make) -> None:
    found = await make(sam=sam.address, hops=1).get_remote_measured_status(HASH)
    assert found is not None
    assert found.hash == encode(HASH)
    assert found.connect_test is not None
    assert found.connect_test.ok
    assert found.fetch_time_ms is not None
    assert found.fetch_time_ms <= found.connect_test.ms
    (created,), (connected,) = sam.told("SESSION CREATE"), sam.told("STREAM CONNECT")
    assert created["DESTINATION"] == "TRANSIENT"
    tunnels = {"inbound.length", "inbound.quantity", "outbound.length", "outbound.quantity"}
    assert {created[name] for name in tunnels} == {"1"}
    assert connected["DESTINATION"] == ADDRESS


async def test_own_look_up_says_which_destination_has_asked(sam: SamRouter, make) -> None:
    own = bytes(384) + CERTIFICATE
    sam.replies["NAMING LOOKUP"] = f"NAMING REPLY RESULT=OK NAME=ME VALUE={encode(own)}"
    found = await make(sam=sam.address).look_up_own(HASH)
    assert found.client == sha256(own).digest()
    assert found.status.hash == encode(HASH)
    assert found.status.connect_test.ok


async def test_own_look_up_that_is_answered_before_the_session_is_ready_waits_for_that(
    sam: SamRouter, make
) -> None:
    own = bytes(384) + CERTIFICATE
    sam.replies["NAMING LOOKUP"] = f"NAMING REPLY RESULT=OK NAME=ME VALUE={encode(own)}"
    sam.replies["SESSION CREATE"] = None
    async with trio.open_nursery() as nursery:
        found: list[OwnLookUp] = []

        async def look_up() -> None:
            found.append(await make(sam=sam.address).look_up_own(HASH))

        nursery.start_soon(look_up)
        while not sam.streams:
            await sam.changed.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert found == []
        await sam.answer_sessions()
    assert found[0].client == sha256(own).digest()


async def test_own_look_up_needs_a_router_that_asks_the_network(sam: SamRouter, make) -> None:
    for router in (make(), make(sam=sam.address, url="http://127.0.0.1:7657/jsonrpc/")):
        with pytest.raises(NotSupported, match="i2pd"):
            await router.look_up_own(HASH)


async def test_session_ends_with_the_measurement(sam: SamRouter, make) -> None:
    router = make(sam=sam.address)
    for _ in range(2):
        await router.get_remote_measured_status(HASH)
        while sam.sessions:
            await sam.changed.wait()
    assert len({created["ID"] for created in sam.told("SESSION CREATE")}) == 2


async def test_destination_without_a_lease_set_is_not_reached_and_was_not_fetched(
    sam: SamRouter, make
) -> None:
    sam.is_found = False
    found = await make(sam=sam.address).get_remote_measured_status(HASH)
    assert found == RemoteStatus(
        hash=encode(HASH), connect_test=ConnectTest(ms=found.connect_test.ms, ok=False)
    )


@pytest.mark.parametrize("service", [silent, ending])
async def test_lease_set_of_a_service_that_does_not_answer_is_fetched_and_it_is_not_reached(
    sam: SamRouter, make, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "ANSWER_TIMEOUT_S", 0.2)
    sam.service = service
    found = await make(sam=sam.address).get_remote_measured_status(HASH)
    assert found.fetch_time_ms is not None
    assert found.connect_test.ok is False


@pytest.mark.parametrize("refusal", ["CANT_REACH_PEER", "INVALID_ID"])
async def test_stream_is_asked_for_until_the_session_has_tunnels_before_it_says_so(
    sam: SamRouter, make, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    monkeypatch.setattr(measurement, "ASK_EACH_S", 0.01)
    sam.replies |= {"SESSION CREATE": None, "STREAM CONNECT": f"STREAM STATUS RESULT={refusal}"}
    async with trio.open_nursery() as nursery:
        measured = Measured(nursery, make(sam=sam.address))
        await sam.seen("STREAM CONNECT", 3)
        del sam.replies["STREAM CONNECT"]
    assert measured.found is not None
    assert measured.found.connect_test is not None
    assert measured.found.connect_test.ok


async def test_lease_set_is_missing_once_the_session_is_ready(
    sam: SamRouter, make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "ASK_EACH_S", 0.01)
    sam.replies["SESSION CREATE"] = None
    sam.is_found = False
    async with trio.open_nursery() as nursery:
        measured = Measured(nursery, make(sam=sam.address))
        await sam.seen("STREAM CONNECT", 3)
        assert measured.found is None
        await sam.answer_sessions()
    assert measured.found is not None
    assert measured.found.connect_test is not None
    assert not measured.found.connect_test.ok


async def test_router_that_ends_meanwhile_measures_nothing(sam: SamRouter, make) -> None:
    async def cut(stream: trio.SocketStream) -> None:
        sam.cut("SESSION CREATE")
        await silent(stream)

    sam.replies["SESSION CREATE"] = None
    sam.service = cut
    with pytest.raises(RouterError, match="closed the SAM connection"):
        await make(sam=sam.address).get_remote_measured_status(HASH)


async def test_sessions_of_i2pd_are_not_listed_while_it_has_ours(
    control_server, sam: SamRouter, make
) -> None:
    router = make(url=control_server.url, sam=sam.address)
    assert (await router.get_local_leaf_status(bytes(387))).current_connections is None
    assert "ClientServicesInfo" not in control_server.methods


@pytest.mark.parametrize(
    ("created", "problem"),
    [("RESULT=I2P_ERROR MESSAGE=busy", "refused SESSION CREATE: I2P_ERROR: busy"), ("what?", "not SAM's")],
)
async def test_session_that_is_refused_measures_nothing(
    sam: SamRouter, make, created: str, problem: str
) -> None:
    sam.replies["SESSION CREATE"] = f"SESSION STATUS {created}"
    with pytest.raises(RouterError, match=problem):
        await make(sam=sam.address).get_remote_measured_status(HASH)


async def test_refusal_that_says_nothing_of_the_destination_measures_nothing(sam: SamRouter, make) -> None:
    sam.replies["STREAM CONNECT"] = "STREAM STATUS RESULT=INVALID_ID"
    with pytest.raises(RouterError, match="INVALID_ID"):
        await make(sam=sam.address).get_remote_measured_status(HASH)


async def test_router_without_sam_measures_nothing(make, closed_port: int) -> None:
    with pytest.raises(RouterError, match="is the router running, and its SAM enabled"):
        await make(sam=f"127.0.0.1:{closed_port}").get_remote_measured_status(HASH)
    with pytest.raises(NotSupported, match=r"router\.sam"):
        await make().get_remote_measured_status(HASH)


@pytest.mark.parametrize("address", ["192.0.2.1:7656", "127.0.0.1", "nonsense"])
def test_sam_that_is_not_on_loopback_is_refused(make, address: str) -> None:
    with pytest.raises(ConfigError, match=r"router\.sam: "):
        make(sam=address)
