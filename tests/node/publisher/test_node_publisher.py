"""The publisher task: it publishes within its lease, and stops whatever it may have begun."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.i2p.lease_set import MetaLease
from garlicfarm.node.publisher import publishing_task
from garlicfarm.node.publisher.publishing_task import PublishingTask
from garlicfarm.publishing.application import PublisherApplication
from garlicfarm.publishing.lease import Lease
from garlicfarm.router import Router

Clock = trio.testing.MockClock
HANG = "hang"


class Fake:
    """Replica, application, lease and router in one: what they would say is set by hand."""

    def __init__(self) -> None:
        self.node_id = 1
        self.applied_index = 1
        self.log = SimpleNamespace(info=self._note, warning=self._note)
        self.notes: list[str] = []
        self.named = False
        self.expires_ms: int | None = 10**9
        self.listed = [(b"a" * 32, 0)]
        self.calls: list[tuple[float, str]] = []
        self.trouble: list[Exception | str] = []
        self.lasts_s = 3600
        self.interval_ms, self.R = 30_000, 3
        self.task = PublishingTask(
            cast(ApplicationContext, self),
            cast(PublisherApplication, self),
            cast(Router, self),
            b"master",
            cast(Lease, self),
        )

    def _note(self, event: str, **fields: object) -> None:
        self.notes.append(event)

    @property
    def publisher(self) -> int:
        return 1 if self.named else 2

    async def wait_applied(self, beyond: int) -> None:
        await trio.sleep_forever()

    def may_publish(self, member: int, now_ms: int, expires_ms: int) -> bool:
        return self.named and now_ms < expires_ms

    def leases(self) -> tuple[MetaLease, ...]:
        end = int(time.time()) + self.lasts_s
        return tuple(MetaLease(hash_, cost, end) for hash_, cost in self.listed)

    def published_ms(self, own_ms: int) -> int:
        return own_ms

    async def _do(self, what: str) -> None:
        self.calls.append((round(trio.current_time()), what))
        if self.trouble:
            trouble = self.trouble.pop(0)
            if isinstance(trouble, Exception):
                raise trouble
            await trio.sleep_forever()

    async def publish_meta_ls(self, master_hash: bytes, contents: bytes) -> None:
        await self._do("publish")

    async def stop_publishing_meta_ls(self, master_hash: bytes) -> None:
        await self._do("stop")

    def done(self) -> list[str]:
        calls, self.calls = [what for _, what in self.calls], []
        return calls


@pytest.fixture(autouse=True)
def boot_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing_task, "boot_ms", lambda: int(trio.current_time() * 1000))


async def test_publisher_publishes_while_named_and_withdraws_after(autojump_clock: Clock) -> None:
    fake = Fake()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.task.run)
        await trio.sleep(50)
        assert fake.done() == ["stop"]
        assert fake.task.is_publishing is False
        fake.named = True
        await trio.sleep(50)
        assert fake.done() == ["publish"]
        assert fake.task.is_publishing is True
        assert fake.task.last_published_ms > 0
        fake.listed.append((b"b" * 32, 3))
        await trio.sleep(20)  # at most once a minute
        assert fake.done() == ["publish"]
        await trio.sleep(3600)
        assert fake.done() == ["publish", "publish"]  # at half of its life
        fake.named = False
        await trio.sleep(6)
        assert fake.done() == ["stop"]
        assert fake.task.is_publishing is False
        nursery.cancel_scope.cancel()


async def test_publisher_stops_at_the_end_of_its_lease_and_of_its_process(autojump_clock: Clock) -> None:
    fake = Fake()
    fake.named, fake.expires_ms = True, 12_345
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.task.run)
        await trio.sleep(60)
        assert fake.calls == [(0, "stop"), (0, "publish"), (12, "stop")]
        fake.expires_ms = 10**9
        await trio.sleep(10)
        fake.done()
        nursery.cancel_scope.cancel()
    assert fake.done() == ["stop"]


async def test_publisher_whose_machine_slept_beyond_the_lease_stops_at_once(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake()
    fake.named, fake.expires_ms = True, 45_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.task.run)
        await trio.sleep(20.1)
        assert fake.done() == ["stop", "publish"]
        # An hour passes for all others, and for the clock that counts suspended time; Trio's stands still.
        monkeypatch.setattr(publishing_task, "boot_ms", lambda: int(trio.current_time() * 1000) + 3_600_000)
        await trio.sleep(1)
        assert fake.done() == ["stop"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("trouble", [HANG, RouterError("it broke off")])
async def test_publication_that_may_have_begun_is_withdrawn_with_the_lease(
    trouble: Exception | str, autojump_clock: Clock
) -> None:
    """The router did not answer: it may publish all the same, and another member is named."""
    fake = Fake()
    fake.expires_ms = 10_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.task.run)
        await trio.sleep(4)
        fake.named, fake.trouble = True, [trouble]
        await trio.sleep(5)
        assert fake.done() == ["stop", "publish"]
        assert fake.task.publishing_to_report is False  # it has the role, and does not do its work
        fake.named = False
        assert fake.task.publishing_to_report is True
        await trio.sleep(10)
        assert fake.done() == ["stop"]
        assert fake.task.publishing_to_report is False
        nursery.cancel_scope.cancel()
    assert "publish-failed" in fake.notes


async def test_router_that_is_not_up_yet_is_asked_again(autojump_clock: Clock) -> None:
    fake = Fake()
    fake.named, fake.trouble = True, [RouterError("refused"), HANG, RouterError("refused")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.task.run)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert fake.done() == ["stop"] * 4 + ["publish", "stop"]


async def test_failed_withdrawal_is_repeated_and_the_status_says_publishing_until_then(
    autojump_clock: Clock,
) -> None:
    fake = Fake()
    fake.named = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.task.run)
        await trio.sleep(10)
        fake.done()
        fake.named, fake.trouble = False, [RouterError("x"), RouterError("x")]
        await trio.sleep(6)
        assert fake.task.publishing_to_report is True
        await trio.sleep(10)
        assert fake.done() == ["stop"] * 3
        assert fake.task.publishing_to_report is False
        nursery.cancel_scope.cancel()


async def test_router_that_dies_while_it_publishes_costs_the_role_and_lets_others_begin_after_a_lease(
    autojump_clock: Clock,
) -> None:
    fake = Fake()
    fake.named = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.task.run)
        await trio.sleep(10)
        assert fake.task.publishing_to_report is True
        fake.trouble = [RouterError("refused")] * 100
        await trio.sleep(1900)  # half a lifetime is over: to be published again
        assert fake.task.publishing_to_report is False
        fake.named = False
        for _ in range(8):
            assert fake.task.publishing_to_report is True
            await trio.sleep(5)
        await trio.sleep(11)
        assert fake.task.publishing_to_report is False
        assert fake.done()[-1] == "stop"
        fake.named, fake.trouble = True, []
        await trio.sleep(70)
        assert fake.task.publishing_to_report is True
        nursery.cancel_scope.cancel()


async def test_router_that_cannot_publish_is_not_asked_again(autojump_clock: Clock) -> None:
    fake = Fake()
    fake.named, fake.trouble = True, [NotSupported("no")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.task.run)
        await trio.sleep(600)
        nursery.cancel_scope.cancel()
    assert fake.calls == [(0, "stop")]
    assert fake.task.is_publishing is None
