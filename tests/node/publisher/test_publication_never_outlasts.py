"""Nothing stays published beyond the lease, nor while the node says that nothing is, whatever goes wrong.

A model plugin really publishes from the beginning of `publish` until `retire` or `standby` has returned, or
it is left. Its troubles are drawn: it fails, hangs, is slow or has defects, in `status` too. So are the
farm's decisions, cut-off times, and suspensions of the machine.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any, Self, cast

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm.config import PublisherSection
from garlicfarm.errors import PublisherError
from garlicfarm.logs import EventLogger
from garlicfarm.node.publisher import boot_clock
from garlicfarm.node.publisher.hosted_publisher import WATCH_S, HostedPublisher
from garlicfarm.publisher import Published, Publisher, PublisherSite, PublisherStatus, PublishOrder
from tests.running import background

LEASE_S, RETIRE_S = 45, 5
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


class ModelRole:
    """The role of this node, drawn; and the clock of its lease."""

    lease_ms = LEASE_S * 1000
    forced_index = 0

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.plugin = ModelPlugin(self.chance)
        self.is_due = True
        self.slept_ms = 0
        self.lease_ends_ms = 0
        self.woke_at = 0.0
        section = PublisherSection(plugin="model", retire_timeout_s=RETIRE_S)
        log = EventLogger(logging.getLogger("test"), interval_s=0)
        self.hosted = HostedPublisher(self.plugin, section, cast(Any, self), log, is_required=True)

    def boot_ms(self) -> int:
        return round(trio.current_time() * 1000) + self.slept_ms

    @property
    def lease_left_ms(self) -> int:
        return max(0, self.lease_ends_ms - self.boot_ms())

    @property
    def listed(self) -> int:
        return int(trio.current_time()) // 200

    def order(self) -> PublishOrder:
        now_ms = self.boot_ms()
        return PublishOrder(due_index=7, published_ms=now_ms, expires_ms=now_ms + 3_600_000)

    async def on_published(self, published: Published) -> None:
        """The disk may hang."""
        if self.chance.random() < self.plugin.trouble / 2:
            await trio.sleep(self.chance.uniform(0, 100))

    async def wait_changed(self) -> None:
        await trio.sleep(self.chance.uniform(1, 100))

    def on_changed(self) -> None:
        pass

    async def run(self) -> None:
        """Let the farm decide, and the machine sleep now and then."""
        while True:
            what = self.chance.choice(("renew", "renew", "renew", "renew", "name", "cut off", "suspend"))
            if what == "renew":
                self.lease_ends_ms = self.boot_ms() + self.lease_ms
            elif what == "name":
                self.is_due = not self.is_due
            elif what == "suspend" and self.chance.random() < 0.2:
                self.slept_ms += self.chance.choice((3_000, 60_000, 3_600_000))
                self.woke_at = trio.current_time()
            elif what == "cut off":
                await trio.sleep(self.chance.uniform(0, 2 * LEASE_S))
            await trio.sleep(self.chance.uniform(1, 15))

    async def check(self) -> None:
        """The invariants, all the time."""
        while True:
            if self.plugin.stands:
                since_woken_s = trio.current_time() - self.woke_at
                assert self.hosted.may_be_published(self.lease_ms), "it stands, and the node denies it"
                assert self.lease_left_ms or since_woken_s <= WATCH_S, "it stands beyond the lease"
            await trio.sleep(CHECK_EVERY_S)


@pytest.mark.parametrize("first", [0, 10])
def test_nothing_stays_published_beyond_the_lease_or_unsaid(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    publications = 0
    for seed in range(first, first + 10):
        farm = ModelRole(seed)
        monkeypatch.setattr(boot_clock, "boot_ms", farm.boot_ms)

        async def run(farm: ModelRole = farm) -> float:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(farm.run)
                nursery.start_soon(farm.check)
                async with background(farm.hosted.run):
                    await trio.sleep(RUN_S + farm.chance.uniform(0, 100))
                    ends_at = trio.current_time()
                nursery.cancel_scope.cancel()
            assert not farm.plugin.stands
            return trio.current_time() - ends_at

        try:
            took_s = trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        assert took_s <= RETIRE_S + CHECK_EVERY_S, seed
        publications += farm.plugin.publications
    assert publications > 20
