"""Which of its addresses the connection to a service goes to."""

from __future__ import annotations

import errno
import os
from collections import Counter
from functools import partial
from typing import cast

import pytest
import trio
import trio.testing

from garlicfarm.errors import PublisherError
from garlicfarm.i2p.encoding import b32_address
from garlicfarm.transport import Endpoint
from garlicfarm_plugin_i2cp.streaming.targets import Targets, client_address
from tests.publishers.streaming.network import PEERS
from tests.publishers.streaming.stream_client import targets
from tests.running import background

PEER = PEERS[0].destination
HANGS = "hangs"


class Network:
    """In place of the network. ``down``: ports that refuse, or hang; ``tried``: at what time, which port."""

    def __init__(self) -> None:
        self.down: dict[int, str] = {}
        self.tried: list[tuple[float, int]] = []

    async def connect(self, host: str, port: int, *, local_address: str | None) -> trio.SocketStream:
        await trio.lowlevel.checkpoint()
        self.tried.append((round(trio.current_time() - self.begun_s), port))
        if port in self.down:
            if self.down[port] == HANGS:
                await trio.sleep_forever()
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        return cast(trio.SocketStream, trio.testing.memory_stream_pair()[0])

    async def reached(self, found: Targets) -> int:
        """The port that a stream is joined to."""
        _, authority = await found.connect(PEER)
        return int(authority.rpartition(":")[2])

    def begin(self) -> None:
        self.begun_s = trio.current_time()
        self.tried.clear()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    monkeypatch.setattr(trio, "open_tcp_stream", network.connect)
    return network


async def test_streams_go_to_the_targets_by_turn_or_in_order(network: Network) -> None:
    network.begin()
    by_turn, in_order = targets(1, 2, 3), targets(1, 2, 3, balance="order")
    assert [await network.reached(by_turn) for _ in range(4)] == [1, 2, 3, 1]
    assert [await network.reached(in_order) for _ in range(4)] == [1, 1, 1, 1]


async def test_target_that_the_node_finds_down_is_tried_last(network: Network) -> None:
    network.begin()
    found = targets(1, 2, 3, balance="order")
    found.leave_out({"127.0.0.1:1"})
    assert [await network.reached(found) for _ in range(2)] == [2, 2]
    network.down |= {2: "refuses", 3: "refuses"}
    assert await network.reached(found) == 1
    found.leave_out(frozenset(found.names))
    network.down.clear()
    found.leave_out(())
    assert await network.reached(found) == 1  # 2 and 3 have refused


def test_targets_with_a_page_are_named_by_its_url() -> None:
    found = Targets(
        [Endpoint.parse("tcp://127.0.0.1:1"), Endpoint.parse("tcp://[::1]:2")], check_path="/health?a=b"
    )
    assert found.names == ("http://127.0.0.1:1/health?a=b", "http://[::1]:2/health?a=b")


async def test_target_that_fails_is_left_out_until_it_accepts_again(network, autojump_clock) -> None:
    found = targets(1, 2, balance="order")
    async with background(found.run):
        network.begin()
        network.down[1] = "refuses"
        assert [await network.reached(found) for _ in range(3)] == [2, 2, 2]
        assert [port for _, port in network.tried] == [1, 2, 2, 2]
        assert found.problems == [
            "the service at 127.0.0.1:1 is left out until it accepts connections: Connection refused"
        ]
        await trio.sleep(100.5)
        tests = [at_s for at_s, port in network.tried if port == 1]
        assert tests == [0, 1, 3, 7, 15, 31, 63]
        await trio.sleep(200)  # then each minute
        assert Counter(port for _, port in network.tried) == {1: 10, 2: 3}
        del network.down[1]
        await trio.sleep(60)
        assert (await network.reached(found), found.problems) == (1, [])


async def test_target_that_comes_and_goes_is_left_out_for_longer(network, autojump_clock) -> None:
    found = targets(1, 2, balance="order")
    async with background(found.run):
        for left_out_s in (1, 2, 4, 8, 16, 32, 60, 60):
            network.begin()
            network.down[1] = "refuses"
            assert await network.reached(found) == 2
            del network.down[1]
            await trio.sleep(left_out_s - 0.5)
            assert await network.reached(found) == 2
            await trio.sleep(1)
            assert await network.reached(found) == 1
        await trio.sleep(61)  # it has been up for a minute
        network.down[1] = "refuses"
        assert await network.reached(found) == 2
        del network.down[1]
        await trio.sleep(1.5)
        assert await network.reached(found) == 1


async def test_where_all_are_left_out_all_are_tried(network: Network) -> None:
    network.begin()
    found = targets(1, 2)
    network.down = {1: "refuses", 2: "refuses"}
    for _ in range(2):
        with pytest.raises(PublisherError) as caught:
            await found.connect(PEER)
    assert sorted(str(caught.value).split("; ")) == [
        f"the service at 127.0.0.1:{port} cannot be reached: Connection refused" for port in (1, 2)
    ]
    assert found.problems == []
    assert len(network.tried) == 4
    del network.down[2]
    assert await network.reached(found) == 2


async def test_targets_that_do_not_answer_share_the_time(network, autojump_clock) -> None:
    network.begin()
    network.down = {1: HANGS, 2: HANGS}
    found = targets(1, 2, 3, balance="order")
    assert await network.reached(found) == 3
    assert [at_s for at_s, _ in network.tried] == [0, 3, 7]
    with pytest.raises(PublisherError, match=r"127\.0\.0\.1:1 cannot be reached: no answer within 10 s"):
        await targets(1).connect(PEER)
    assert trio.current_time() - network.begun_s == pytest.approx(17, abs=1)


def test_address_of_a_client_is_its_own_and_of_loopback() -> None:
    assert client_address(PEER) == client_address(PEER)
    addresses = {client_address(b"%d" % number) for number in range(1000)}
    assert len(addresses) > 990
    for address in addresses:
        first, second, *_ = map(int, address.split("."))
        assert (first, second > 0) == (127, True)
        assert address != "127.255.255.255"


async def test_service_is_told_the_client_by_address_and_by_webirc() -> None:
    got: list[tuple[bytes, str]] = []

    async def take(stream: trio.SocketStream) -> None:
        async with stream:
            got.append((bytes(await stream.receive_some()), stream.socket.getpeername()[0]))

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, take, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        found = targets(port, has_client_addresses=True, webirc_password="secret")
        service, authority = await found.connect(PEER)
        async with service:
            assert await service.receive_some() == b""
        assert authority == f"127.0.0.1:{port}"
        nursery.cancel_scope.cancel()
    address = client_address(PEER)
    assert got == [(f"WEBIRC secret cgiirc {b32_address(PEER)} {address}\r\n".encode(), address)]


@pytest.mark.ipv6
async def test_webirc_writes_an_address_that_is_no_last_parameter() -> None:
    async def echo(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(await stream.receive_some())

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, echo, 0, host="::1"))
        endpoint = Endpoint("tcp", "::1", listener.socket.getsockname()[1])
        service, _ = await Targets([endpoint], webirc_password="secret").connect(PEER)
        async with service:
            assert bytes(await service.receive_some()).endswith(b" 0::1\r\n")
        nursery.cancel_scope.cancel()
