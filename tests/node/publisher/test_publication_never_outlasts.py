"""Nothing stays published beyond the lease, nor while the node says that nothing is, whatever goes wrong.

A model plugin really publishes from the beginning of `publish` until `retire` or `standby` has returned, or
it is left. Its troubles are drawn: it fails, hangs, is slow or has defects, in `status` too. So are the
farm's decisions, cut-off times, and suspensions of the machine.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm.errors import PublisherError
from garlicfarm.node.publisher import clocks
from garlicfarm.publisher import Published, Publisher, PublisherSite, PublisherStatus, PublishOrder
from tests.node.publisher.hosting import WATCH_S, Hosting, running
from tests.publishing.publisher_bench import LEASE_S

RETIRE_S = 5
RUN_S = 600
CHECK_EVERY_S = 0.1
SITE = PublisherSite(farm="farm", node_id=1, directory=Path("unused"))


class ModelPlugin(Publisher):
    """``stands``: whether it is published."""

    Config = msgspec.Struct

    def __init__(self, chance: random.Random) -> None:
        super().__init__(None, Path(), SITE)
        self.chance = chance
        self.trouble = chance.choice((0.0, 0.1, 0.4))
        self.stands = False
        self.publications = 0

    async def __aenter__(self) -> Self:
        await self._have_trouble()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stands = False
        if self.chance.random() < self.trouble / 4:
            raise ZeroDivisionError("a defect while it is left")

    async def _have_trouble(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.chance.random() >= self.trouble:
            return
        kind = self.chance.choice(("error", "error", "defect", "hang", "slow", "slow", "bad cleanup"))
        if kind == "error":
            raise PublisherError("the router is gone")
        if kind == "defect":
            raise ZeroDivisionError("a defect")
        try:
            await trio.sleep(self.chance.uniform(0, 30) if kind == "slow" else 100_000)
        finally:
            if kind == "bad cleanup":
                raise ZeroDivisionError("a defect while it is cancelled")

    async def standby(self) -> None:
        await self._have_trouble()
        self.stands = False

    async def publish(self, order: PublishOrder) -> Published:
        self.stands = True
        self.publications += 1
        await self._have_trouble()
        return Published(published_ms=order.published_ms)

    async def retire(self, successor: bytes | None) -> None:
        await self._have_trouble()
        self.stands = False

    async def status(self) -> PublisherStatus:
        if self.chance.random() < 0.1:
            await self._have_trouble()
        return PublisherStatus(is_publishing=self.stands and self.chance.random() >= self.trouble / 10)


async def decide(host: Hosting, plugin: ModelPlugin, moved: SimpleNamespace) -> None:
    """Let the farm decide, and the machine sleep now and then."""
    chance = plugin.chance
    while True:
        now_ms = clocks.now().boot_ms
        what = chance.choice(("renew", "renew", "renew", "renew", "name", "list", "cut off", "suspend"))
        if what == "renew":
            host.give(lease_end_ms=now_ms + host.role.lease_ms)
        elif what == "name":
            host.give(is_due=not host.role.is_due)
        elif what == "list":
            host.give(listed=(str(now_ms),))
        elif what == "suspend" and chance.random() < 0.2:
            moved.slept_ms += chance.choice((3_000, 60_000, 3_600_000))
            moved.woke_at = trio.current_time()
        elif what == "cut off":
            await trio.sleep(chance.uniform(0, 2 * LEASE_S))
        await trio.sleep(chance.uniform(1, 15))


async def check(host: Hosting, plugin: ModelPlugin, moved: SimpleNamespace) -> None:
    """The invariants, all the time."""
    while True:
        if plugin.stands:
            assert host.is_exposed, "it stands, and the node denies it"
            since_woken_s = trio.current_time() - moved.woke_at
            is_within = clocks.now().boot_ms < (host.role.lease_end_ms or 0)
            assert is_within or since_woken_s <= WATCH_S, "it stands beyond the lease"
        await trio.sleep(CHECK_EVERY_S)


@pytest.mark.parametrize("first", [0, pytest.param(10, marks=pytest.mark.slow)])
def test_nothing_stays_published_beyond_the_lease_or_unsaid(first: int, moved: SimpleNamespace) -> None:
    publications = 0
    for seed in range(first, first + 10):
        moved.slept_ms, moved.woke_at = 0, 0.0

        async def run(plugin: ModelPlugin) -> float:
            async with trio.open_nursery() as nursery:
                async with running(plugin, is_due=True, lease_end_ms=None) as host:
                    nursery.start_soon(decide, host, plugin, moved)
                    nursery.start_soon(check, host, plugin, moved)
                    await trio.sleep(RUN_S + plugin.chance.uniform(0, 100))
                    ends_at = trio.current_time()
                nursery.cancel_scope.cancel()
            assert not plugin.stands
            return trio.current_time() - ends_at

        plugin = ModelPlugin(random.Random(seed))
        try:
            took_s = trio.run(run, plugin, clock=trio.testing.MockClock(autojump_threshold=0))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        assert took_s <= RETIRE_S + CHECK_EVERY_S, seed
        publications += plugin.publications
    assert publications > 20
