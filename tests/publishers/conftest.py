"""Places of loopback, and routers there."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator

import pytest
import trio

from garlicfarm.lab.processes import free_ports
from tests.publishers.i2cp_keys import now_ms
from tests.publishers.i2cp_router import FakeRouter, Listening
from tests.publishers.java_router import JavaRouter
from tests.publishers.sam_router import SamRouter


@pytest.fixture
def target() -> Iterator[str]:
    """A service that accepts connections, HOST:PORT."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
async def listening(nursery: trio.Nursery) -> Listening:
    """A router that asks for a LeaseSet at once."""
    return await listen(nursery, FakeRouter(now_ms))


@pytest.fixture
async def java_listening(nursery: trio.Nursery) -> Listening:
    """The same, a Java I2P."""
    return await listen(nursery, JavaRouter(now_ms))


async def listen(nursery: trio.Nursery, router: FakeRouter) -> Listening:
    serving = trio.CancelScope()

    async def serve(*, task_status: trio.TaskStatus[list[trio.SocketListener]]) -> None:
        with serving:
            await trio.serve_tcp(router.serve, 0, host="127.0.0.1", task_status=task_status)

    (listener,) = await nursery.start(serve)
    return Listening(router, f"127.0.0.1:{listener.socket.getsockname()[1]}", serving)


@pytest.fixture
async def router() -> AsyncIterator[SamRouter]:
    """A router that speaks SAM."""
    async with SamRouter() as router:
        yield router


@pytest.fixture
def nowhere() -> str:
    """HOST:PORT where nothing listens, and nothing else comes to: it is held."""
    return f"127.0.0.1:{free_ports(1)[0]}"
