from __future__ import annotations

import time
from functools import partial

import pytest
import trio

from garlicfarm.wire.messages import ValueType
from tests.admin.fake_node import FakeNode, until


async def test_long_poll_waiting_is_woken_by_the_commit(
    node: FakeNode, url: str, nursery: trio.Nursery
) -> None:
    pages = []

    async def poll() -> None:
        async with node.client(url) as client:
            pages.append(await client.page("farm", 0, wait_s=20))

    nursery.start_soon(poll)
    await until(lambda: node.farm.waiting == 1)
    node.farm.commit(b"a Configuration wakes nobody who asked for entries", ValueType.CONFIGURATION)
    await until(lambda: node.farm.waiting == 1)
    assert pages == []
    node.farm.commit(b"entry")
    await until(lambda: pages)
    page, commit_index = pages[0]
    assert [(entry.index, entry.value) for entry in page.entries] == [(2, b"entry")]
    assert (page.next_after, commit_index) == (2, 2)
    assert node.farm.waiting == 0


async def test_long_poll_without_news_ends_with_its_time(node: FakeNode, url: str) -> None:
    node.farm.commit(b"Configuration", ValueType.CONFIGURATION)
    async with node.client(url) as client:
        await client.node()
        begin = time.monotonic()
        page, commit_index = await client.page("farm", 0, wait_s=0.3)
        assert 0.25 < time.monotonic() - begin < 10  # the longest wait is 30 s
    assert (list(page.entries), page.next_after, commit_index) == ([], 1, 1)
    assert node.farm.waiting == 0


async def test_long_poll_whose_client_leaves_is_freed(node: FakeNode, url: str) -> None:
    async with trio.open_nursery() as nursery, node.client(url) as client:
        nursery.start_soon(partial(client.page, "farm", 0, wait_s=30))
        await until(lambda: node.farm.waiting == 1)
        nursery.cancel_scope.cancel()
    await until(lambda: node.farm.waiting == 0)


async def test_long_poll_is_answered_when_the_node_ends(
    node: FakeNode, url: str, shutdown: trio.Event, nursery: trio.Nursery
) -> None:
    pages = []

    async def poll() -> None:
        async with node.client(url) as client:
            pages.append(await client.page("farm", 0, wait_s=30))

    nursery.start_soon(poll)
    await until(lambda: node.farm.waiting == 1)
    shutdown.set()
    await until(lambda: pages)  # whose own time is not over by then
    assert pages[0][0].entries == []


@pytest.mark.parametrize("readers", [20])
async def test_long_polls_in_number_are_all_woken(node: FakeNode, url: str, readers: int) -> None:
    woken = []

    async def poll() -> None:
        async with node.client(url) as client:
            woken.append(await client.page("farm", 0, wait_s=20))

    async with trio.open_nursery() as nursery:
        for _ in range(readers):
            nursery.start_soon(poll)
        await until(lambda: node.farm.waiting == readers)
        gauge = partial(node.metrics.registry.get_sample_value, "garlicfarm_feed_readers", {"farm": "farm"})
        assert gauge() == readers
        node.farm.commit(b"entry")
    assert len(woken) == readers
    assert gauge() == 0
