"""A plugin that is hosted in earnest, under a core whose role is set by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import trio

from garlicfarm.config import PublisherSection
from garlicfarm.node.publisher import clocks
from garlicfarm.node.publisher.hosted_publisher import HostedPublisher, traits_of
from garlicfarm.publisher import KeyReport, Published, Publisher, PublisherStatus, PublishOrder
from garlicfarm.publishing.member_core import MemberCore
from garlicfarm.publishing.member_standing import Now
from garlicfarm.publishing.publisher_core import Call, PublisherCore
from tests.publishing.publisher_bench import HandRole

WATCH_S = 1.0


class Hosting:
    """In the place of the `MemberCore`, of which the host sees only this. `obey` after each change of
    ``role``."""

    def __init__(self, plugin: Publisher, **role: Any) -> None:
        section = PublisherSection(plugin="fake", **{"retire_timeout_s": 5.0, **role.pop("section", {})})
        self.role = HandRole(**role)
        self.core = PublisherCore(traits_of(plugin, section, is_required=True), clocks.now().boot_ms)
        self.published: list[Published] = []
        self.logged: list[str] = []
        self._stepped = trio.Event()
        self._hosted = HostedPublisher(
            plugin, section, cast(MemberCore, self), self.core, sign=_sign, on_stepped=self.obey
        )

    @property
    def is_exposed(self) -> bool:
        return self.core.is_exposed

    def give(self, **role: Any) -> None:
        """Change the role."""
        vars(self.role).update(role)
        self.obey()

    def obey(self) -> None:
        self.role.now_ms = clocks.now().boot_ms
        self.core.step(self.role.now_ms, self.role)
        self.logged += [note.event for note in self.core.notes]
        self.core.notes.clear()
        self._hosted.obey()
        self._stepped.set()
        self._stepped = trio.Event()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hosted.run)
            while True:
                self.obey()
                now_ms = clocks.now().boot_ms
                due_ms = min(
                    [ms for ms in self.core.wake_ms(self.role) if ms > now_ms], default=now_ms + 10**6
                )
                with trio.move_on_after(min(WATCH_S, (due_ms - now_ms) / 1000)):
                    await self._stepped.wait()

    def on_done(
        self,
        own: PublisherCore,
        number: int,
        now: Now,
        published: Published | None = None,
        meta: bytes | None = None,
    ) -> None:
        if published is not None:
            self.published.append(published)
        own.on_done(number, now.boot_ms, self.role, published)

    def on_refused(self, own: PublisherCore, number: int, now: Now, cause: str) -> None:
        own.on_refused(number, now.boot_ms, self.role, cause)

    def on_defect(self, own: PublisherCore, now: Now, cause: str) -> None:
        own.on_defect(now.boot_ms, self.role, cause)

    def on_left(self, own: PublisherCore, now: Now) -> None:
        own.on_left(now.boot_ms, self.role)

    def on_status(
        self, own: PublisherCore, asked: int, status: PublisherStatus, key: KeyReport | None, now: Now
    ) -> None:
        own.on_status(asked, status, key, now.boot_ms, self.role)

    def on_check(self, own: PublisherCore, now: Now, *, is_up: bool, problem: str | None) -> None:
        own.is_up, own.check_problem = is_up, problem

    def on_node_ends(self, own: PublisherCore, now: Now) -> None:
        own.on_node_ends(now.boot_ms, self.role)


def _sign(call: Call) -> PublishOrder:
    assert call.order is not None
    return call.order


@asynccontextmanager
async def running(plugin: Publisher, **role: Any) -> AsyncIterator[Hosting]:
    """One that runs until the block ends, as until its node ends."""
    hosting = Hosting(plugin, **role)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hosting.run)
        yield hosting
        nursery.cancel_scope.cancel()
