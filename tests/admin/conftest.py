from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import trio

from tests.admin.fake_node import FakeNode


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "data")


@pytest.fixture
def shutdown() -> trio.Event:
    return trio.Event()


@pytest.fixture
async def url(node: FakeNode, shutdown: trio.Event, nursery: trio.Nursery) -> AsyncIterator[str]:
    """The admin URL of ``node``, served over real TLS."""
    yield await nursery.start(node.serve, shutdown)
    shutdown.set()


@pytest.fixture
def user() -> str:
    """As whom `http` logs in: an admin."""
    return "anna"


@pytest.fixture
async def http(node: FakeNode, url: str, user: str) -> AsyncIterator[httpx.AsyncClient]:
    async with node.http(url, user) as client:
        yield client
