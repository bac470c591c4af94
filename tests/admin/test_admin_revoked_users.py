"""Connections of the admin API go with their users, and each request is held against the role of now."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from garlicfarm.credentials.users import UserStore
from tests.admin.fake_node import PASSWORDS, FakeNode
from tests.admin.test_admin_hostile_clients import GET, authorization, rest, secured
from tests.running import wait_until

LOG = "/v1/farms/farm/log"


async def answer(stream: trio.abc.ReceiveStream) -> bytes:
    """A whole answer whose body is a JSON object."""
    received = b""
    while not received.endswith(b"}"):
        piece = await stream.receive_some()
        assert piece
        received += piece
    return received


async def asks(stream: trio.SSLStream[trio.SocketStream], user: str, method: str, target: str) -> None:
    """Log in and send a request, on a connection that is open already."""
    await stream.send_all(GET + b"\r\n")
    credentials = authorization(await answer(stream), user, method, target)
    await stream.send_all(f"{method} {target} HTTP/1.1\r\nHost: x\r\n".encode() + credentials + b"\r\n")


@pytest.mark.parametrize("revoke", ["remove", "password"])
async def test_long_poll_and_idle_connections_of_a_removed_user_are_cut_and_nobody_elses(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, revoke: str
) -> None:
    monkeypatch.setattr("garlicfarm.admin.server.CHECK_S", 0.01)
    users = UserStore(node.data_dir / "users")
    ends: dict[str, Any] = {
        "remove": users.remove,
        "password": partial(users.add, role="reader", password="another word"),
    }
    async with (
        node.running() as url,
        secured(node, url) as waiting,
        secured(node, url) as idle,
        secured(node, url) as other,
    ):
        await asks(waiting, "rita", "GET", f"{LOG}?wait_s=30")
        await asks(other, "paul", "GET", f"{LOG}?wait_s=30")
        await wait_until(lambda: node.farm.waiting == 2)
        await asks(idle, "rita", "GET", "/v1/node")
        assert (await answer(idle)).startswith(b"HTTP/1.1 200 ")
        ends[revoke]("rita")
        assert await rest(waiting) == b""
        assert await rest(idle) == b""
        node.farm.commit(b"news")
        assert (await other.receive_some()).startswith(b"HTTP/1.1 200 ")


async def test_demoted_user_is_refused_at_the_next_request_of_the_same_connection(node: FakeNode) -> None:
    async with node.running() as url, node.client(url, user="paul") as client:
        await client.post("farm", b"one")
        UserStore(node.data_dir / "users").add("paul", "reader", PASSWORDS["paul"][1])
        with pytest.raises(Exception, match="needs the role writer; paul has reader"):
            await client.post("farm", b"two")
        assert len(node.farm.log) == 1
