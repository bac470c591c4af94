"""The network in memory keeps the transport contract, and fails as it is told to."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from garlicfarm.errors import UnreachableError
from garlicfarm.testing.memory_network import MemoryNetwork
from garlicfarm.testing.transport_suite import TransportSuite
from garlicfarm.transport import Endpoint, Peer, Transport

SERVER = Endpoint("memory", "server", 1)


class TestMemoryTransport(TransportSuite):
    network = MemoryNetwork()

    @pytest.fixture
    def transport(self) -> Transport:
        return self.network.transport("server")

    @pytest.fixture
    def listen_url(self) -> Endpoint:
        return Endpoint("memory", "server", 0)

    async def send_garbage(self, bound: Endpoint) -> trio.abc.Stream:
        stream = await self.network.connect("stranger", bound)
        await stream.send_all(b"\x00garbage\xff")
        return stream


@pytest.fixture
async def network(nursery: trio.Nursery) -> MemoryNetwork:
    """A network whose host "server" sends back what it gets."""

    async def echo(stream: trio.abc.Stream, peer: Peer) -> None:
        async for data in stream:
            await stream.send_all(data)

    network = MemoryNetwork()
    await nursery.start(network.transport("server").serve, SERVER, echo)
    return network


async def test_partition_keeps_what_was_sent_until_it_heals(
    network: MemoryNetwork, autojump_clock: MockClock
) -> None:
    stream = await network.transport("client").open_stream(SERVER)
    network.partition({"client"}, {"server"})
    await stream.send_all(b"one")
    await stream.send_all(b"two")
    with trio.move_on_after(100) as silence:
        await stream.receive_some()
    assert silence.cancelled_caught
    network.heal()
    assert await stream.receive_some() == b"onetwo"


async def test_partition_new_stream_waits_until_it_heals(
    network: MemoryNetwork, autojump_clock: MockClock
) -> None:
    network.blocked.add(("server", "client"))
    with trio.move_on_after(100) as silence:
        await network.transport("client").open_stream(SERVER)
    assert silence.cancelled_caught
    network.heal()
    async with await network.transport("client").open_stream(SERVER) as stream:
        await stream.send_all(b"x")
        assert await stream.receive_some() == b"x"


async def test_killed_host_breaks_its_streams_and_no_others(
    network: MemoryNetwork, autojump_clock: MockClock
) -> None:
    one = await network.transport("one").open_stream(SERVER)
    two = await network.transport("two").open_stream(SERVER)
    network.kill("one")
    assert await one.receive_some() == b""
    with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
        await one.send_all(b"x")
    await two.send_all(b"x")
    assert await two.receive_some() == b"x"


async def test_nobody_listening_is_unreachable(autojump_clock: MockClock) -> None:
    with pytest.raises(UnreachableError):
        await MemoryNetwork().transport("client").open_stream(SERVER)
