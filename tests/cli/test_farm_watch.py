"""A display asks again when the node pushes something, and not before."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from garlicfarm.cli import farm_watch
from garlicfarm.cli.farm_watch import FarmWatch
from garlicfarm.errors import UnreachableError
from tests.admin.fake_node import FakeNode
from tests.running import wait_until


async def test_display_asks_again_when_something_is_pushed_and_when_its_node_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(farm_watch, "LONGEST_S", math.inf)
    node, shutdown = FakeNode(tmp_path / "data"), trio.Event()
    body = node.farm.status()
    node.farm.status = lambda: body  # type: ignore[method-assign]
    ended = []
    async with trio.open_nursery() as nursery:
        url = await nursery.start(node.serve, shutdown)
        async with node.client(url) as client:
            display = FarmWatch()

            async def follow() -> None:
                with pytest.raises(UnreachableError):
                    await display.follow(client, "farm")
                ended.append(True)

            nursery.start_soon(follow)
            await display.wait()  # how things stand, which comes first
            await wait_until(lambda: not display.take())
            node.farm.commit(b"an entry")
            await display.wait()
            await wait_until(lambda: not display.take())
            body["leader"] = None
            node.farm.tell()
            await display.wait()
            shutdown.set()
            await wait_until(lambda: ended)
            assert display.take()


async def test_display_asks_again_after_a_while_without_changes(monkeypatch, autojump_clock):
    display = FarmWatch()
    begun = trio.current_time()
    await display.wait()
    assert trio.current_time() == begun + farm_watch.LONGEST_S
    assert not display.take()
