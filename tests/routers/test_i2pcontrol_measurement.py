"""Remote destinations, measured through a scripted SAM."""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Awaitable, Callable

import pytest
import trio

from garlicfarm.errors import ConfigError, NotSupported, RouterError
from garlicfarm.i2p.encoding import encode
from garlicfarm.router import ConnectTest, RemoteStatus, Router
from garlicfarm.testing.router_suite import RouterSuite
from garlicfarm_plugin_i2pcontrol import measurement

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


class Sam:
    """``created``, ``connected``: its answers; ``service``: what streams lead to."""

    def __init__(self) -> None:
        self.created = "RESULT=OK DESTINATION=key"
        self.connected = "RESULT=OK"
        self.service: Service = web
        self.commands: list[str] = []
        self.ended = trio.Event()
        """The session has ended."""
        self.address = ""

    async def serve(self, stream: trio.SocketStream) -> None:
        has_session = False
        try:
            while line := await self._line(stream):
                self.commands.append(line)
                command = " ".join(line.split()[:2])
                if command == "HELLO VERSION":
                    await stream.send_all(b"HELLO REPLY RESULT=OK VERSION=3.1\n")
                elif command == "SESSION CREATE":
                    has_session, self.ended = True, trio.Event()
                    await stream.send_all(f"SESSION STATUS {self.created}\n".encode())
                else:
                    assert command == "STREAM CONNECT"
                    await stream.send_all(f"STREAM STATUS {self.connected}\n".encode())
                    if self.connected == "RESULT=OK":
                        await self.service(stream)
                    return
        except trio.BrokenResourceError:
            pass
        finally:
            if has_session:
                self.ended.set()

    async def _line(self, stream: trio.SocketStream) -> str:
        line = b""
        while not line.endswith(b"\n"):
            byte = await stream.receive_some(1)
            if not byte:
                return ""
            line += byte
        return line.decode().strip()


@pytest.fixture
async def sam(nursery: trio.Nursery) -> Sam:
    made = Sam()
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    made.address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
    nursery.start_soon(trio.serve_listeners, made.serve, [listener])
    return made


class TestMeasuringRouter(RouterSuite):
    @pytest.fixture
    def router(self, control_server, make, sam: Sam, monkeypatch: pytest.MonkeyPatch) -> Router:
        sam.connected = "RESULT=CANT_REACH_PEER"
        return make(url=control_server.url, sam=sam.address)


async def test_service_that_answers_is_reached(sam: Sam, make) -> None:
    found = await make(sam=sam.address, hops=1).get_remote_measured_status(HASH)
    assert found is not None
    assert found.hash == encode(HASH)
    assert found.connect_test is not None
    assert found.connect_test.ok
    assert found.fetch_time_ms is not None
    assert found.fetch_time_ms <= found.connect_test.ms
    created, connected = (line for line in sam.commands if not line.startswith("HELLO"))
    assert "DESTINATION=TRANSIENT" in created
    assert "inbound.length=1 inbound.quantity=1 outbound.length=1 outbound.quantity=1" in created
    assert f"DESTINATION={ADDRESS}" in connected


async def test_session_ends_with_the_measurement(sam: Sam, make) -> None:
    router = make(sam=sam.address)
    for _ in range(2):
        await router.get_remote_measured_status(HASH)
        await sam.ended.wait()
    names = [line.split("ID=")[1].split()[0] for line in sam.commands if line.startswith("SESSION")]
    assert len(set(names)) == 2


async def test_destination_without_a_lease_set_is_not_reached_and_was_not_fetched(sam: Sam, make) -> None:
    sam.connected = "RESULT=CANT_REACH_PEER"
    found = await make(sam=sam.address).get_remote_measured_status(HASH)
    assert found == RemoteStatus(
        hash=encode(HASH), connect_test=ConnectTest(ms=found.connect_test.ms, ok=False)
    )


@pytest.mark.parametrize("service", [silent, ending])
async def test_lease_set_of_a_service_that_does_not_answer_is_fetched_and_it_is_not_reached(
    sam: Sam, make, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "ANSWER_TIMEOUT_S", 0.2)
    sam.service = service
    found = await make(sam=sam.address).get_remote_measured_status(HASH)
    assert found.fetch_time_ms is not None
    assert found.connect_test.ok is False


@pytest.mark.parametrize(
    ("created", "problem"),
    [("RESULT=I2P_ERROR MESSAGE=busy", "refused SESSION CREATE: I2P_ERROR: busy"), ("what?", "not SAM's")],
)
async def test_session_that_is_refused_measures_nothing(sam: Sam, make, created: str, problem: str) -> None:
    sam.created = created
    with pytest.raises(RouterError, match=problem):
        await make(sam=sam.address).get_remote_measured_status(HASH)


async def test_refusal_that_says_nothing_of_the_destination_measures_nothing(sam: Sam, make) -> None:
    sam.connected = "RESULT=INVALID_ID"
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
