"""The site of the lab, and the clients that fetch it, through a proxy of ours."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from garlicfarm.errors import RemoteProtocolError, UnreachableError
from garlicfarm.lab.processes import free_ports
from garlicfarm.lab.site import Client, fetch, serve_site
from tests.running import wait_until

HOST = "site.b32.i2p"


async def answer_with(data: bytes, stream: trio.SocketStream) -> None:
    async with stream:
        await stream.receive_some()
        await stream.send_all(data)


async def test_site_tells_its_text(nursery: trio.Nursery) -> None:
    port = await nursery.start(serve_site, "node 2")
    with trio.fail_after(240):
        assert await fetch(f"http://127.0.0.1:{port}", HOST) == "node 2"


async def test_answer_ends_with_its_length_though_the_connection_stays_open(nursery: trio.Nursery) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nnode 2\n")
        await trio.sleep_forever()

    (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
    with trio.fail_after(240):
        assert await fetch(f"http://127.0.0.1:{listener.socket.getsockname()[1]}", HOST) == "node 2"


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", UnreachableError, "500 Internal Server Error"),
        (b"garbage\r\n\r\n", RemoteProtocolError, "not HTTP"),
        (b"", RemoteProtocolError, "not HTTP"),
    ],
)
async def test_answer_that_is_no_page_is_an_error(
    nursery: trio.Nursery, data: bytes, error: type[Exception], says: str
) -> None:
    serve = partial(trio.serve_tcp, partial(answer_with, data), 0, host="127.0.0.1")
    (listener,) = await nursery.start(serve)
    with trio.fail_after(240), pytest.raises(error, match=says):
        await fetch(f"http://127.0.0.1:{listener.socket.getsockname()[1]}", HOST)


async def test_proxy_that_is_not_there_is_an_error() -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnreachableError, match="cannot be reached"):
        await fetch(f"http://127.0.0.1:{port}", HOST)


async def test_client_sees_the_site_end_and_another_take_its_place(nursery: trio.Nursery) -> None:
    (port,) = free_ports(1)
    client = Client(f"http://127.0.0.1:{port}", HOST)
    nursery.start_soon(client.run)
    with trio.fail_after(240):
        for text, before in (("node 1", None), ("node 2", "node 1")):
            async with trio.open_nursery() as site:
                await site.start(serve_site, text, port)
                found = await client.wait_answered(but=before)
                assert found.text == text
                assert found in client.fetches
                site.cancel_scope.cancel()
            ended = len(client.fetches)
            await wait_until(lambda: any(each.text is None for each in client.fetches[ended:]))  # noqa: B023
