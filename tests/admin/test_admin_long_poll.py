from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import httpx
import pytest
import trio
import trio.testing

from garlicfarm.admin.access import Authenticator
from garlicfarm.admin.app import create_app
from garlicfarm.wire.messages import ValueType
from tests.admin.fake_node import FakeNode
from tests.running import wait_until


@asynccontextmanager
async def without_sockets(node: FakeNode, shutdown: trio.Event) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application itself, without a login: Starlette answers a 401 from a thread, and the
    clock would jump meanwhile."""

    async def user(self: Authenticator, request: object, role: str) -> str:
        return "rita"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Authenticator, "user", user)
        app = create_app(cast(Any, node), shutdown=shutdown)
        transport = httpx.ASGITransport(cast(Any, app))
        async with httpx.AsyncClient(transport=transport, base_url="https://127.0.0.1") as client:
            yield client


async def test_long_poll_waiting_is_woken_by_the_commit(node, url, nursery):
    pages = []

    async def poll() -> None:
        async with node.client(url) as client:
            pages.append(await client.page("farm", 0, wait_s=20))

    nursery.start_soon(poll)
    await wait_until(lambda: node.farm.waiting == 1)
    gauge = partial(node.metrics.registry.get_sample_value, "garlicfarm_feed_readers", {"farm": "farm"})
    assert gauge() == 1
    node.farm.commit(b"a Configuration wakes nobody who asked for entries", ValueType.CONFIGURATION)
    await wait_until(lambda: node.farm.waiting == 1)
    assert pages == []
    node.farm.commit(b"entry")
    await wait_until(lambda: pages)
    page, commit_index = pages[0]
    assert [(entry.index, entry.value) for entry in page.entries] == [(2, b"entry")]
    assert (page.next_after, commit_index) == (2, 2)
    assert (node.farm.waiting, gauge()) == (0, 0)


@pytest.mark.parametrize("wait_s", [0, 0.3, 30])
async def test_long_poll_without_news_ends_with_its_time(node, wait_s, autojump_clock):
    node.farm.commit(b"Configuration", ValueType.CONFIGURATION)
    async with without_sockets(node, trio.Event()) as client:
        begun = trio.current_time()
        answer = await client.get(f"/v1/farms/farm/log?after=0&wait_s={wait_s}")
        assert trio.current_time() - begun == pytest.approx(wait_s, abs=1e-6)
    assert (answer.status_code, answer.content) == (200, b"")
    assert (answer.headers["Garlic-Farm-Next-After"], answer.headers["Garlic-Farm-Commit-Index"]) == (
        "1",
        "1",
    )
    assert node.farm.waiting == 0


async def test_long_poll_whose_client_leaves_is_freed(node: FakeNode, url: str) -> None:
    async with trio.open_nursery() as nursery, node.client(url) as client:
        nursery.start_soon(partial(client.page, "farm", 0, wait_s=30))
        await wait_until(lambda: node.farm.waiting == 1)
        nursery.cancel_scope.cancel()
    await wait_until(lambda: node.farm.waiting == 0)


async def test_long_poll_is_answered_at_once_when_the_node_ends(node, shutdown, autojump_clock):
    async def end() -> None:
        await trio.sleep(7)
        assert node.farm.waiting == 1
        shutdown.set()

    async with without_sockets(node, shutdown) as client, trio.open_nursery() as nursery:
        begun = trio.current_time()
        nursery.start_soon(end)
        answer = await client.get("/v1/farms/farm/log?after=0&wait_s=30")
        assert trio.current_time() - begun == pytest.approx(7, abs=1e-6)
    assert (answer.status_code, answer.content) == (200, b"")
