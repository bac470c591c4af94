"""What the table of the publisher `i2cp` asks for reaches its streams."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from garlicfarm.credentials.private_files import write_private_file
from garlicfarm_plugin_i2cp.config import I2cpConfig
from garlicfarm_plugin_i2cp.service_options import ServiceOptions
from garlicfarm_plugin_i2cp.streaming.http_requests import HttpRules
from garlicfarm_plugin_i2cp.streaming.targets import client_address
from tests.publishers.streaming.network import PEERS
from tests.running import wait_until

PEER = PEERS[0].destination


def options(base_dir: Path = Path(), **table: Any) -> ServiceOptions:
    table = {"mode": "service", "keys": "site.key", "target": "127.0.0.1:1"} | table
    return ServiceOptions(msgspec.convert(table, I2cpConfig), base_dir)


def rules(**table: Any) -> HttpRules:
    found = options(**table).http
    assert found is not None
    return found


def test_page_that_is_tested_is_that_of_the_targets_and_not_of_ports() -> None:
    found = options(check_path="/health", ports={"6667": ["127.0.0.1:6667"]})
    assert found.targets is not None
    assert found.targets.names == ("http://127.0.0.1:1/health",)
    assert found.ports[6667].names == ("127.0.0.1:6667",)


def test_nothing_is_filtered_unless_it_is_asked_for() -> None:
    assert options().http is None


def test_rules_of_http_are_those_of_the_table() -> None:
    assert rules(client_headers=True).has_client_headers
    found = rules(host_override="site.example:81")
    assert (found.host, found.has_client_headers, found.rejects_in_proxies) == (
        "site.example:81",
        False,
        False,
    )
    assert rules(reject_inproxies=True).rejects_in_proxies


def test_limits_of_posts_are_those_of_the_table() -> None:
    posts = rules(max_posts=1, post_check_s=10, post_ban_s=100).posts
    assert posts is not None
    admitted = [posts.admit(b"a", at_s) for at_s in (0, 1, 100, 101)]
    assert admitted == [True, False, False, True]
    posts = rules(max_total_posts=1).posts
    assert posts is not None
    assert [posts.admit(client, 0) for client in (b"a", b"b")] == [True, False]


async def test_targets_and_ports_are_those_of_the_table(tmp_path: Path) -> None:
    got: list[tuple[bytes, str]] = []

    async def take(stream: trio.SocketStream) -> None:
        async with stream:
            data = b"".join([bytes(piece) async for piece in stream])
            got.append((data, stream.socket.getpeername()[0]))

    write_private_file(tmp_path / "irc.password", b"secret\n")
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, take, 0, host="127.0.0.1"))
        target = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        found = options(
            tmp_path,
            target=target,
            ports={"80": [target]},
            client_addresses=True,
            webirc_password_file="irc.password",
        )
        for targets in (found.targets, found.ports[80]):
            assert targets is not None
            service, authority = await targets.connect(PEER)
            await service.aclose()
            assert authority == target
        await wait_until(lambda: len(got) == 2)
        nursery.cancel_scope.cancel()
    address = client_address(PEER)
    assert sorted(data.partition(b" cgiirc ")[0] for data, _ in got) == [b"", b"WEBIRC secret"]
    assert {peer for _, peer in got} == {address}


async def test_targets_are_tried_in_order_if_that_is_asked_for(nowhere: str) -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            partial(trio.serve_tcp, trio.SocketStream.aclose, 0, host="127.0.0.1")
        )
        target = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        found = options(target="", targets=[target, nowhere], balance="order").targets
        assert found is not None
        for _ in range(2):
            service, _ = await found.connect(PEER)
            await service.aclose()
        assert found.problems == []  # the second one was not tried
        nursery.cancel_scope.cancel()
