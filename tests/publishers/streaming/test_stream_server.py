"""The driver between clients of a destination and real TCP services on loopback."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import sha256

import pytest
import trio
import trio.testing

from garlicfarm.lab.processes import free_ports
from garlicfarm_plugin_i2cp.streaming import server
from garlicfarm_plugin_i2cp.streaming.limits import Limits
from garlicfarm_plugin_i2cp.streaming.packet import CLOSE
from tests.publishers.i2cp_keys import long_term_keys
from tests.publishers.streaming.stream_client import Network, stream_network
from tests.running import wait_until

pytestmark = pytest.mark.timeout(60)

Handler = Callable[[trio.SocketStream], Awaitable[None]]
MEGABYTE = 1 << 20


@asynccontextmanager
async def service(handler: Handler, **options: object) -> AsyncIterator[Network]:
    """A network, and behind it a service that handles each connection so."""

    async def handle(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):  # the network ends, and with it every stream
            await handler(stream)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        async with stream_network(port, **options) as network:  # type: ignore[arg-type]
            yield network
        nursery.cancel_scope.cancel()


async def echo(stream: trio.SocketStream) -> None:
    async with stream:
        async for data in stream:
            await stream.send_all(data)


async def abort(stream: trio.SocketStream) -> None:
    """As a program does that gives up: a TCP reset."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await trio.aclose_forcefully(stream)


async def settled(network: Network) -> None:
    """Return when no stream is open."""
    await wait_until(lambda: not network.server.open_streams)


async def test_bytes_of_a_stream_reach_the_service_and_its_answer_the_client() -> None:
    async with service(echo) as network:
        client = network.open(b"with SYN, ")
        await client.send(b"and after it")
        await client.until(lambda: client.received == b"with SYN, and after it")
        client.close()
        await client.until(lambda: client.is_closed)
        await settled(network)
        assert network.server.problem == ""
        assert not client.is_reset


@pytest.mark.parametrize("room", [1, 5, 1024])
async def test_megabyte_each_way_arrives_unchanged_and_no_more_is_sent_than_has_room(room: int) -> None:
    data = bytes(range(251)) * (MEGABYTE // 251)
    async with service(echo, room=room) as network:
        client = network.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, data)
            await client.until(lambda: len(client.received) == len(data))
        assert client.received == data
        client.close()
        await settled(network)
        assert network.most_sent <= room


async def test_client_over_its_bytes_is_slowed_both_ways_and_others_are_not(mock_clock) -> None:
    """The echo counts twice; each wait ends by the clock alone, which stands still meanwhile."""
    data = bytes(range(250)) * 400
    limits = Limits(bytes_per_minute=2 * 50_000)
    async with service(echo, limits=limits) as network:
        client, other = network.open(), network.client(long_term_keys(4))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, data)
            await wait_until_slowed(network)
            other.open(b"is served")
            await other.until(lambda: other.received == b"is served")
            assert len(client.received) < 50_000 + 16_384
            while len(client.received) < len(data):
                await trio.testing.wait_all_tasks_blocked(0.05)
                mock_clock.jump(1)
                assert len(client.received) <= 50_000 + 16_384 + 1000 * trio.current_time()
        assert client.received == data
        assert not client.is_reset
        assert network.server.refused["slowed"] == 1


async def wait_until_slowed(network: Network) -> None:
    while not network.server.refused["slowed"]:
        await trio.testing.wait_all_tasks_blocked(0.01)


async def test_banned_client_is_reset_and_its_connection_ends() -> None:
    async with service(echo) as network:
        client, other = network.open(b"client"), network.client(long_term_keys(4))
        other.open(b"other")
        await client.until(lambda: client.received == b"client")
        banned = sha256(long_term_keys(3).destination).digest()
        network.server.restrict(lambda client: client != banned)
        await client.until(lambda: client.is_reset)
        await wait_until(lambda: network.server.open_streams == 1)
        await other.send(b" is served")
        await other.until(lambda: other.received == b"other is served")


async def test_eof_of_the_client_ends_that_direction_only() -> None:
    async def answer_after_eof(stream: trio.SocketStream) -> None:
        async with stream:
            request = b"".join([bytes(data) async for data in stream])
            for number in range(3):
                await stream.send_all(request + b"%d;" % number)

    async with service(answer_after_eof) as network:
        client = network.open(b"asked", CLOSE)
        await client.until(lambda: client.is_closed)
        assert client.received == b"asked0;asked1;asked2;"
        await settled(network)


async def test_eof_of_the_service_ends_that_direction_only() -> None:
    got = bytearray()

    async def close_first(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(b"that is all")
            await stream.send_eof()
            async for data in stream:
                got.extend(data)

    async with service(close_first) as network:
        client = network.open()
        await client.until(lambda: client.is_closed)
        assert client.received == b"that is all"
        await client.send(b"still read")
        client.close()
        await settled(network)
        assert got == b"still read"


async def test_close_waits_for_no_timer(mock_clock: trio.testing.MockClock) -> None:
    go_on = trio.Event()

    async def close_later(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(b"first")
            await go_on.wait()

    async with service(close_later) as network:
        client = network.open()
        await client.until(lambda: client.received == b"first")
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
        await client.until(lambda: client.is_closed)


async def test_stream_is_open_until_the_client_has_all() -> None:
    async def say(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(b"answer")

    async with service(say) as network:
        client = network.open(b"", CLOSE)
        client.is_deaf = True
        await client.until(lambda: client.received == b"answer" and client.is_closed)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert network.server.open_streams == 1
        client.is_deaf = False
        client.acknowledge()
        await settled(network)


class FakeService(trio.abc.HalfCloseableStream):
    """A TCP connection of which only what the driver uses is there. ``sent``: what it was given; ``takes``:
    set when it takes that. ``is_broken``: it was reset, and has told so to `send_all`."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.sent = b""
        self.takes = trio.Event()
        self._is_broken = is_broken

    def send_now(self, data: bytes | bytearray | memoryview) -> int:
        return 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_broken:
            raise trio.BrokenResourceError
        await self.takes.wait()
        self.sent += data

    async def wait_send_all_might_not_block(self) -> None:
        raise AssertionError

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return b""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        pass


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[FakeService]:
    """The connections that there are to be, in turn."""
    services: list[FakeService] = []

    async def connect(host: str, port: int, *, local_address: str | None) -> FakeService:
        return services.pop(0)

    monkeypatch.setattr(trio, "open_tcp_stream", connect)
    monkeypatch.setattr(server, "PromptStream", lambda stream: stream)
    return services


async def test_stream_is_open_until_the_service_has_all(fakes: list[FakeService]) -> None:
    fakes.append(fake := FakeService())
    async with stream_network(1) as network:
        client = network.open(b"all of it", CLOSE)
        await client.until(lambda: client.is_closed)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert network.server.open_streams == 1
        fake.takes.set()
        await settled(network)
        assert fake.sent == b"all of it"


async def test_connections_of_streams_that_have_ended_are_closed_where_they_are_too_many(fakes):
    """Streams that end at once must take neither all sockets of the node nor the places of others."""
    fakes += (services := [FakeService() for _ in range(4)])
    async with stream_network(1, limits=Limits(streams=8)) as network:
        clients = [network.client() for _ in services]
        for number, client in enumerate(clients):
            client.open(b"all of it", CLOSE)
            await client.until(lambda: client.is_closed)  # noqa: B023
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert network.server.open_streams == min(number + 1, 2)
        assert network.server.refused == {"crowded out": 2}
        for service_ in services:
            service_.takes.set()
        await settled(network)
        assert [service_.sent for service_ in services] == [b"", b"", b"all of it", b"all of it"]


async def test_reset_that_shows_when_the_service_is_written_to_reaches_the_client(fakes):
    fakes.append(FakeService(is_broken=True))
    async with stream_network(1) as network:
        client = network.open(b"data")
        await client.until(lambda: client.is_reset)
        assert "has reset a connection" in network.server.problem


async def test_service_that_is_down_costs_a_reset_and_one_line() -> None:
    (port,) = free_ports(1)
    async with stream_network(port) as network:
        for number in (1, 2, 3):
            client = network.open(b"hello?")
            await client.until(lambda: client.is_reset)  # noqa: B023
            await settled(network)
            assert network.server.problem == (
                f"the service at 127.0.0.1:{port} cannot be reached: Connection refused; "
                f"streams reset for its faults so far: {number}"
            )


async def test_service_is_connected_to_only_once_the_client_is_known_to_receive(fakes):
    """A SYN alone costs no connection, and one that has the request waits for nothing."""
    fakes += [FakeService(), FakeService()]
    async with stream_network(1) as network:
        silent, later, at_once = (network.client() for _ in range(3))
        for client in (silent, later):
            client.is_deaf = True
            client.open()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (len(fakes), network.server.open_streams) == (2, 0)
        later.acknowledge()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(fakes) == 1
        at_once.is_deaf = True
        at_once.open(b"GET")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert fakes == []
        network.server.reset_all()
        await at_once.until(lambda: at_once.is_reset)


@pytest.mark.parametrize("drain_s", [0.0, 0.1])
async def test_streams_open_at_a_hand_over_are_reset_and_later_ones_are_served(drain_s: float) -> None:
    async with service(echo, drain_s=drain_s) as network:
        open_before = network.open(b"before")
        await open_before.until(lambda: open_before.received == b"before")
        network.server.hand_over()
        begun_s = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        later = network.open(b"later")
        await open_before.until(lambda: open_before.is_reset)
        assert trio.current_time() >= begun_s + drain_s
        await later.until(lambda: later.received == b"later")
        later.close()
        await later.until(lambda: later.is_closed)
        assert not later.is_reset
        await settled(network)
        assert network.server.problem == ""


async def test_stream_may_finish_until_a_hand_over_is_due_to_end_it() -> None:
    async with service(echo, drain_s=600.0) as network:
        client = network.open(b"before, ")
        await client.until(lambda: client.received == b"before, ")
        network.server.hand_over()
        await client.send(b"and after")
        client.close()
        await client.until(lambda: client.is_closed)
        assert client.received == b"before, and after"
        await settled(network)
        assert not client.is_reset


async def test_streams_taken_back_in_time_go_on() -> None:
    async with service(echo) as network:
        client = network.open(b"before, ")
        await client.until(lambda: client.received == b"before, ")
        network.server.hand_over()
        network.server.take_back()
        await client.send(b"and after")
        await client.until(lambda: client.received == b"before, and after")
        network.server.hand_over()
        await client.until(lambda: client.is_reset)


async def test_problem_is_over_when_the_service_is_back() -> None:
    (port,) = free_ports(1)
    async with stream_network(port) as network:
        lost = network.open()
        await lost.until(lambda: lost.is_reset)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(trio.serve_tcp, echo, port, host="127.0.0.1"))
            client = network.open(b"hello")
            await client.until(lambda: client.received == b"hello")
            assert network.server.problem == ""
            nursery.cancel_scope.cancel()


async def test_service_that_does_not_take_the_connection_costs_a_reset_in_time(autojump_clock, monkeypatch):
    async def never(host: str, port: int, *, local_address: str | None) -> trio.SocketStream:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(trio, "open_tcp_stream", never)
    async with stream_network(1) as network:
        begun_s = trio.current_time()
        client = network.open()
        await client.until(lambda: client.is_reset)
        assert trio.current_time() - begun_s == pytest.approx(10, abs=1)
        assert network.server.problem.startswith(
            "the service at 127.0.0.1:1 cannot be reached: no answer within 10 s;"
        )


async def test_reset_of_the_service_reaches_the_client_and_no_other_stream() -> None:
    async def give_up_on_bad(stream: trio.SocketStream) -> None:
        data = await stream.receive_some()
        if data == b"bad":
            await abort(stream)
            return
        await stream.send_all(data)
        await echo(stream)

    async with service(give_up_on_bad) as network:
        good, bad = network.client(), network.client(long_term_keys(4))
        good.open(b"good ")
        await good.until(lambda: good.received == b"good ")
        bad.open(b"bad")
        await bad.until(lambda: bad.is_reset)
        assert "has reset a connection; streams reset for its faults so far: 1" in network.server.problem
        await good.send(b"still")
        await good.until(lambda: good.received == b"good still")
        assert not good.is_reset
        assert network.server.open_streams == 1


async def test_reset_of_the_client_reaches_the_service_as_a_reset() -> None:
    ended = trio.Event()
    seen: list[object] = []

    async def watch(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(b"ready")
            try:
                seen.append(await stream.receive_some())
            except trio.BrokenResourceError:
                seen.append("reset")
        ended.set()

    async with service(watch) as network:
        client = network.open()
        await client.until(lambda: client.received == b"ready")
        client.reset()
        await ended.wait()
        assert seen == ["reset"]
        await settled(network)
        assert network.server.problem == ""


async def test_client_gets_the_answer_of_a_service_that_closes_before_it_has_read_all() -> None:
    async def refuse(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(10)
            await stream.send_all(b"413")
            await stream.send_eof()
            await stream.receive_some(10)

    async with service(refuse) as network:
        client = network.open()
        await client.send(bytes(MEGABYTE))
        client.close()
        await client.until(lambda: client.is_closed)
        assert client.received == b"413"
        await settled(network)


async def test_service_that_reads_slowly_stops_its_client_and_no_other() -> None:
    go_on = trio.Event()
    got = 0

    async def slow_on_s(stream: trio.SocketStream) -> None:
        nonlocal got
        if await stream.receive_some(1) != b"s":
            await stream.send_all(b"e")
            await echo(stream)
            return
        await go_on.wait()
        async with stream:
            async for data in stream:
                got += len(data)
            await stream.send_all(b"done")

    limits = Limits(receive_buffer_bytes=1 << 16)
    async with service(slow_on_s, limits=limits) as network, trio.open_nursery() as nursery:
        slow, other = network.client(), network.client()
        slow.open(b"s")
        nursery.start_soon(slow.send, bytes(8 * MEGABYTE))
        other.open(b"e")
        await other.send(bytes(MEGABYTE))
        await other.until(lambda: len(other.received) == 1 + MEGABYTE)
        await trio.testing.wait_all_tasks_blocked()
        assert network.server.open_streams == 2
        go_on.set()
        await slow.until(lambda: slow.is_choked is False and slow.sent == 8 * MEGABYTE)
        slow.close()
        await slow.until(lambda: slow.received == b"done")
        assert got == 8 * MEGABYTE


async def test_service_that_reads_nothing_costs_a_reset_in_time(mock_clock):
    async def deaf(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    limits = Limits(receive_buffer_bytes=1 << 16)
    async with service(deaf, limits=limits) as network, trio.open_nursery() as nursery:
        client = network.open()
        nursery.start_soon(client.send, bytes(32 * MEGABYTE))
        await client.until(lambda: client.is_choked)
        await trio.testing.wait_all_tasks_blocked(0.05)
        mock_clock.jump(601)
        await client.until(lambda: client.is_reset)
        assert "has read nothing for 600 s" in network.server.problem
        nursery.cancel_scope.cancel()


async def test_cancellation_resets_every_stream_and_closes_every_connection(nursery: trio.Nursery) -> None:
    closed = 0

    async def count_closed(stream: trio.SocketStream) -> None:
        nonlocal closed
        async with stream:
            await stream.send_all(b"ready")
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
            closed += 1

    (listener,) = await nursery.start(partial(trio.serve_tcp, count_closed, 0, host="127.0.0.1"))
    async with stream_network(listener.socket.getsockname()[1]) as network:
        clients = [network.client() for _ in range(5)]
        for client in clients:
            client.open()
            await client.until(lambda: client.received == b"ready")  # noqa: B023
    network.deliver()
    assert all(client.is_reset for client in clients)
    assert network.server.open_streams == 0
    await wait_until(lambda: closed == 5)


async def test_streams_that_are_reset_make_place_for_others() -> None:
    async with service(echo) as network:
        first, second = network.client(), network.client()
        first.open(b"1")
        await first.until(lambda: first.received == b"1")
        network.server.reset_all()
        await first.until(lambda: first.is_reset)
        await settled(network)
        second.open(b"2")
        await second.until(lambda: second.received == b"2")


async def test_payloads_without_a_running_server_are_dropped() -> None:
    async with service(echo) as network:
        pass
    network.open(b"too late")
    network.to_server(b"not gzip")
    network.deliver()
    assert network.server.open_streams == 0
    assert not network.server.refused
