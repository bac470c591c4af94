"""A hosted publisher: it publishes within the lease, and stops whatever it may have begun."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm.config import PublisherSection
from garlicfarm.errors import PublisherError
from garlicfarm.i2p.encoding import encode
from garlicfarm.logs import EventLogger
from garlicfarm.node.publisher import boot_clock
from garlicfarm.node.publisher.hosted_publisher import MIN_WATCH_S, HostedPublisher
from garlicfarm.publisher import Published, Publisher, PublisherSite, PublisherStatus, PublishOrder
from garlicfarm.publishing.documents import DestinationStatus
from tests.running import background

Clock = trio.testing.MockClock
HANG = "hang"
OWN = object()
BAD_CLEANUP = "raise when cancelled"
LEASE_MS = 45_000
SITE = PublisherSite(farm="farm", node_id=1, directory=Path("unused"))


class Plugin(Publisher):
    """It notes its calls, and has the troubles that it is given, one per call."""

    Config = msgspec.Struct

    def __init__(self) -> None:
        super().__init__(None, Path(), SITE)
        self.calls: list[tuple[int, str]] = []
        self.trouble: list[Exception | str | None] = []
        self.orders: list[PublishOrder] = []
        self.is_entered = False
        self.stands = False
        self.says: Any = OWN  # in answer to an order
        self.is_ready = True
        self.standby_takes_s = 0.0  # after it has retired, too, when it is not ready meanwhile
        self.changed = trio.Event()
        self.successors: list[bytes | None] = []
        self.answer: Any = None  # of `status`, in place of its own
        self.ends = trio.Event()  # before that it cannot be left
        self.ends.set()

    async def __aenter__(self) -> Self:
        assert not self.is_entered
        self.is_entered = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        with trio.CancelScope(shield=True):
            await self.ends.wait()
        self.is_entered = self.stands = False
        self.calls.append((round(trio.current_time()), "left"))

    async def _do(self, what: str) -> None:
        assert self.is_entered
        self.calls.append((round(trio.current_time()), what))
        trouble = self.trouble.pop(0) if self.trouble else None
        if isinstance(trouble, Exception):
            raise trouble
        if trouble == HANG:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()

    async def standby(self) -> None:
        await trio.sleep(self.standby_takes_s)
        await self._do("standby")
        self.stands = False
        self.is_ready = self.is_ready or bool(self.standby_takes_s)

    async def publish(self, order: PublishOrder) -> Published:
        self.orders.append(order)
        await self._do("publish")
        self.stands = True
        return Published(published_ms=order.published_ms) if self.says is OWN else self.says

    async def retire(self, successor: bytes | None) -> None:
        self.successors.append(successor)
        await self._do("retire")
        self.stands = False
        self.is_ready = self.is_ready and not self.standby_takes_s

    async def status(self) -> PublisherStatus:
        if self.answer == HANG:
            await trio.sleep_forever()
        if self.answer == BAD_CLEANUP:
            try:
                await trio.sleep_forever()
            finally:
                raise ZeroDivisionError("a defect")
        return self.answer or PublisherStatus(is_publishing=self.stands, is_ready=self.is_ready)

    async def wait_changed(self) -> None:
        await self.changed.wait()

    def lose_router(self) -> None:
        self.stands = self.is_ready = False
        self.changed.set()
        self.changed = trio.Event()

    def done(self) -> list[str]:
        calls, self.calls = [what for _, what in self.calls], []
        return calls


class Fake:
    """A hosted plugin, and its role, set by hand."""

    def __init__(self, **given: Any) -> None:
        self.named = False
        self.lease_ends_s = 10**9
        self.lease_ms = LEASE_MS
        self.listed: tuple[str, ...] = ("a",)
        self.forced_index = 0
        self.published: list[Published] = []
        self.lasts_s = 3600
        self.disk_hangs = False
        self.cannot_order = ""
        self.plugin = Plugin()
        log = EventLogger(logging.getLogger("test"), interval_s=0)
        section = PublisherSection(plugin="fake")
        self.hosted = HostedPublisher(self.plugin, section, cast(Any, self), log, is_required=True)
        vars(self).update(given)

    @property
    def is_due(self) -> bool:
        return self.named

    @property
    def lease_left_ms(self) -> int:
        return max(0, self.lease_ends_s * 1000 - boot_clock.boot_ms())

    def order(self) -> PublishOrder:
        if self.cannot_order:
            raise PublisherError(self.cannot_order)
        now_ms = int(trio.current_time() * 1000)
        return PublishOrder(due_index=7, published_ms=now_ms, expires_ms=now_ms + self.lasts_s * 1000)

    async def on_published(self, published: Published) -> None:
        self.published.append(published)
        if self.disk_hangs:
            await trio.sleep_forever()

    async def wait_changed(self) -> None:
        await trio.sleep_forever()

    def on_changed(self) -> None:
        pass

    def blocks_others(self) -> bool:
        return self.hosted.may_be_published(self.lease_ms)


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """``ms``: how long the machine has been suspended, which Trio's clock does not see."""
    slept = SimpleNamespace(ms=0)
    monkeypatch.setattr(boot_clock, "boot_ms", lambda: int(trio.current_time() * 1000) + slept.ms)
    return slept


@asynccontextmanager
async def running(**given: Any) -> AsyncIterator[Fake]:
    """One that runs until the block ends, as until its node ends."""
    fake = Fake(**given)
    async with background(fake.hosted.run):
        yield fake


async def test_publishes_while_named_and_retires_after(autojump_clock: Clock) -> None:
    fake = Fake()
    hosted, plugin = fake.hosted, fake.plugin
    async with background(fake.hosted.run):
        await trio.sleep(52)  # never when it looks by itself, every five seconds
        assert plugin.done() == ["standby", "standby"]  # and whether it still is
        assert (hosted.is_ready, hosted.is_publishing) == (True, False)
        fake.named = True
        await trio.sleep(50)
        assert plugin.done() == ["publish"]
        assert hosted.is_publishing
        assert len(fake.published) == 1
        fake.listed = ("a", "b")
        await trio.sleep(5)  # at most once a minute
        assert plugin.done() == []
        await trio.sleep(10)
        assert plugin.done() == ["publish"]
        await trio.sleep(1790)
        assert plugin.done() == []
        await trio.sleep(20)  # half of its life is over
        assert plugin.done() == ["publish"]
        fake.named = False
        await trio.sleep(6)
        assert plugin.done() == ["retire", "standby"]
        assert not hosted.is_publishing
        assert not fake.blocks_others()
    assert plugin.done() == ["left"]


async def test_order_of_an_administrator_is_carried_out_once_and_not_too_often(autojump_clock: Clock) -> None:
    async with running(
        named=True, forced_index=5
    ) as fake:  # an order that is older than the first publication
        await trio.sleep(10)
        assert fake.plugin.done() == ["standby", "publish"]
        fake.forced_index = 9
        await trio.sleep(5)
        fake.forced_index = 10
        assert fake.plugin.done() == []
        await trio.sleep(10)
        assert fake.plugin.done() == ["publish"]
        await trio.sleep(60)
        assert fake.plugin.done() == []


async def test_retires_before_the_lease_ends_and_when_the_node_ends(autojump_clock: Clock) -> None:
    async with running(named=True, lease_ends_s=43) as fake:
        await trio.sleep(60)
        assert fake.plugin.calls[:4] == [(0, "standby"), (0, "publish"), (38, "retire"), (38, "standby")]
        fake.lease_ends_s = 10**9
        await trio.sleep(10)
        assert fake.plugin.done()[-1] == "publish"
    assert fake.plugin.done() == ["retire", "left"]


async def test_retires_in_a_quarter_of_a_short_lease_and_stays_ready(autojump_clock: Clock) -> None:
    """A lease that runs out while the farm elects a leader costs the publication, not the role."""
    async with running(named=True, lease_ms=2000, lease_ends_s=8) as fake:
        await trio.sleep(7.4)
        assert fake.plugin.done() == ["standby", "publish"]
        await trio.sleep(0.2)
        assert fake.plugin.done() == ["retire", "standby"]
        await trio.sleep(3)
        assert fake.hosted.is_ready
        assert fake.plugin.done() == []


@pytest.mark.parametrize("trouble", [HANG, PublisherError("it does not listen")])
async def test_left_where_it_does_not_retire_in_time(trouble: Exception | str, autojump_clock: Clock) -> None:
    async with running(named=True) as fake:
        await trio.sleep(10)
        fake.plugin.done()
        fake.named, fake.plugin.trouble = False, [trouble] * 30
        await trio.sleep(12)
        left = [call for call in fake.plugin.done() if call == "left"]
        assert left  # and entered again
        assert fake.blocks_others()  # nothing has confirmed yet that it stopped
        await trio.sleep(LEASE_MS / 1000)
        assert not fake.blocks_others()  # as long as the farm waits for a dead node
        assert not fake.hosted.is_ready
        fake.plugin.trouble = []
        await trio.sleep(90)
        assert fake.hosted.is_ready


class NamedOnceAsked(Fake):
    """It becomes the publisher just after its host has asked whether it is."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = trio.Event()

    @property
    def is_due(self) -> bool:
        was_named = self.named
        if self.hosted.is_ready and not was_named:
            self.named = True
            self.changed.set()
            self.changed = trio.Event()
        return was_named

    async def wait_changed(self) -> None:
        await self.changed.wait()


async def test_role_that_changes_just_before_a_pause_does_not_wait_for_its_end(autojump_clock: Clock) -> None:
    fake = NamedOnceAsked()
    async with background(fake.hosted.run):
        await fake.hosted.confirmed.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert fake.plugin.done() == ["standby", "publish"]


async def test_left_at_once_where_the_machine_slept_beyond_the_lease(
    autojump_clock: Clock, slept: SimpleNamespace
) -> None:
    async with running(named=True, lease_ends_s=45) as fake:
        await trio.sleep(20.1)
        assert fake.plugin.done() == ["standby", "publish"]
        slept.ms = 3_600_000
        await trio.sleep(1)
        assert fake.plugin.done() == ["left"]
        await trio.sleep(10)
        assert fake.plugin.done() == ["retire", "standby"]
        assert not fake.blocks_others()


async def test_lease_ends_a_publisher_that_answers_nothing(autojump_clock: Clock) -> None:
    fake = Fake(named=True, lease_ends_s=20)
    fake.plugin.trouble = [None, HANG, HANG]  # while it publishes, and when it is to retire
    async with background(fake.hosted.run):
        await trio.sleep(12)
        fake.plugin.answer = HANG
        await trio.sleep(18)
        assert fake.plugin.calls[:4] == [(0, "standby"), (0, "publish"), (15, "retire"), (20, "left")]


async def test_publisher_without_a_status_is_left(autojump_clock: Clock) -> None:
    fake = Fake(named=True)
    fake.plugin.answer = HANG
    async with background(fake.hosted.run):
        await trio.sleep(12)
        assert fake.plugin.done() == ["standby", "publish", "left"]
        assert fake.hosted.problem == "it has given no status within 10 s"


async def test_node_that_ends_gives_no_time_beyond_the_lease(autojump_clock: Clock) -> None:
    async with running(named=True, lease_ends_s=20) as fake:
        await trio.sleep(10)
        fake.lease_ends_s, fake.plugin.trouble = 12, [HANG]
    assert fake.plugin.calls[-2:] == [(10, "retire"), (12, "left")]


async def test_defect_while_the_node_ends_does_not_reach_it(autojump_clock: Clock) -> None:
    fake = Fake()
    fake.plugin.answer = BAD_CLEANUP
    async with background(fake.hosted.run):
        await trio.sleep(3)
    assert fake.hosted.problem == "ZeroDivisionError: a defect"


async def test_disk_that_hangs_does_not_keep_it_from_stopping(autojump_clock: Clock) -> None:
    async with running(named=True, lease_ends_s=40, disk_hangs=True) as fake:
        await trio.sleep(50)
        assert fake.plugin.calls[:3] == [(0, "standby"), (0, "publish"), (35, "retire")]


async def test_plugin_that_cannot_be_left_blocks_others_for_one_lease(autojump_clock: Clock) -> None:
    fake = Fake(named=True)
    fake.plugin.ends = trio.Event()
    async with background(fake.hosted.run):
        try:
            await trio.sleep(10)
            fake.named, fake.plugin.trouble = False, [HANG]
            await trio.sleep(15)
            assert not fake.hosted.is_ready  # the farm is not to name it
            assert fake.blocks_others()
            await trio.sleep(LEASE_MS / 1000)
            assert not fake.blocks_others()
            assert fake.plugin.done() == ["standby", "publish", "retire"]
        finally:
            fake.plugin.ends.set()
        await trio.sleep(10)
        assert fake.plugin.done() == ["left", "retire", "standby"]


LEAF = DestinationStatus(destination=encode(bytes(391)))


@pytest.mark.parametrize(
    "answer",
    [
        SimpleNamespace(is_publishing=True),
        PublisherStatus(is_publishing=True, problems=cast(Any, (7,))),
        PublisherStatus(is_publishing=True, since_ms=-1),
        PublisherStatus(is_publishing=True, leaf=LEAF),  # it has no destination
    ],
)
async def test_status_that_no_farm_would_take_is_a_defect(answer: Any, autojump_clock: Clock) -> None:
    fake = Fake()
    fake.plugin.answer = answer
    async with background(fake.hosted.run):
        await trio.sleep(2)
        assert fake.plugin.done()[-1] == "left"
        assert fake.hosted.status == PublisherStatus(is_publishing=False)
        assert fake.hosted.problem


@pytest.mark.parametrize(
    "answer", [None, Published(published_ms=-1), Published(published_ms=1, lease_set=bytes(5000))]
)
async def test_publication_that_no_farm_would_take_is_a_defect(answer: Any, autojump_clock: Clock) -> None:
    fake = Fake(named=True)
    fake.plugin.says = answer
    async with background(fake.hosted.run):
        await trio.sleep(2)
        assert fake.plugin.done() == ["standby", "publish", "left"]
        assert fake.published == []


async def test_attempt_ends_with_the_role_and_is_retired(autojump_clock: Clock) -> None:
    async with running() as fake:
        await trio.sleep(4)
        fake.named, fake.plugin.trouble = True, [HANG]
        await trio.sleep(5)
        assert fake.plugin.done() == ["standby", "publish"]
        assert (fake.hosted.is_starting, fake.hosted.is_publishing) == (True, False)
        fake.named = False
        assert fake.blocks_others()
        await trio.sleep(2)
        assert fake.plugin.done()[0] == "retire"
        assert not fake.blocks_others()


async def test_failing_attempts_are_repeated_and_do_not_count_as_starting(autojump_clock: Clock) -> None:
    fake = Fake(named=True)
    fake.plugin.trouble = [None, PublisherError("refused"), HANG, None, PublisherError("refused")]
    async with background(fake.hosted.run):
        await trio.sleep(4)
        assert fake.hosted.problem == "refused"
        await trio.sleep(20)
        assert not fake.hosted.is_starting  # so its status says that it does not publish
        await trio.sleep(130)
        # An attempt that ran out of time is stopped before the next one.
        assert fake.plugin.done() == ["standby", "publish", "publish", "retire", "publish", "publish"]
        assert fake.hosted.is_publishing
        assert fake.hosted.problem == ""


async def test_order_that_cannot_be_made_is_a_problem_and_is_made_later(autojump_clock: Clock) -> None:
    async with running(named=True, cannot_order="no such date") as fake:
        await trio.sleep(11)
        assert (fake.hosted.problem, fake.hosted.is_publishing) == ("no such date", False)
        assert fake.plugin.done() == ["standby"]
        fake.cannot_order = ""
        await trio.sleep(5)
        assert fake.plugin.done() == ["publish"]
        fake.cannot_order, fake.listed = "no such date", ("a", "b")
        await trio.sleep(70)
        assert fake.hosted.problem == "no such date"
        assert fake.plugin.done() == []
        assert fake.blocks_others()  # what it published before may stand


async def test_publication_that_is_lost_is_published_anew(autojump_clock: Clock) -> None:
    async with running(named=True) as fake:
        await trio.sleep(10)
        fake.plugin.stands = False
        await trio.sleep(2)
        assert fake.plugin.done() == ["standby", "publish", "retire", "standby", "publish"]


async def test_lost_with_its_router_it_is_not_ready_until_the_router_is_back(autojump_clock: Clock) -> None:
    """Its node leaves `meta.publishing` out meanwhile, so that the farm names another one."""
    async with running(named=True) as fake:
        await trio.sleep(10)
        fake.plugin.stands = False
        fake.plugin.trouble = [None, *[PublisherError("the router is gone")] * 4]
        await trio.sleep(2)
        assert (fake.hosted.is_ready, fake.hosted.problem) == (False, "the router is gone")
        fake.named = False
        assert not fake.blocks_others()  # its session was closed
        await trio.sleep(30)
        assert fake.hosted.is_ready


async def test_node_whose_router_dies_while_it_stands_by_is_not_ready(autojump_clock: Clock) -> None:
    async with running() as fake:
        await trio.sleep(20)
        assert fake.hosted.is_ready
        fake.plugin.trouble = [PublisherError("the router is gone")] * 2
        await trio.sleep(12)
        assert not fake.hosted.is_ready
        await trio.sleep(10)
        assert fake.hosted.is_ready


@pytest.mark.parametrize("named", [True, False])
async def test_plugin_that_says_that_its_router_is_gone_is_not_ready_at_once(
    named: bool, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fake = Fake(named=named)
    with noted(caplog, "publication-lost" if named else "standby-lost"):
        async with background(fake.hosted.run):
            await trio.sleep(20.5)
            assert fake.hosted.is_ready
            fake.plugin.trouble = [*([None] if named else []), *[PublisherError("no router")] * 100]
            fake.plugin.lose_router()
            await trio.sleep(0.05)
            assert not fake.hosted.is_ready
            assert not fake.blocks_others()  # it was retired already
            assert fake.hosted.published is None
            await trio.sleep(60)
            fake.plugin.trouble, fake.plugin.is_ready = [], True
            await trio.sleep(6)
            assert fake.hosted.is_ready


async def test_plugin_that_changes_all_the_time_is_not_asked_all_the_time(autojump_clock: Clock) -> None:
    fake = Fake()
    fake.plugin.changed.set()
    asked = 0
    status = fake.plugin.status

    async def counted() -> PublisherStatus:
        nonlocal asked
        asked += 1
        return await status()

    fake.plugin.status = counted  # type: ignore[method-assign]
    async with background(fake.hosted.run):
        await trio.sleep(10)
    assert 10 < asked <= 10 / MIN_WATCH_S + 1


async def test_plugin_that_has_to_get_ready_again_after_it_has_retired_is_not_lost(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(named=True) as fake:
        await trio.sleep(10)
        fake.plugin.standby_takes_s = 5
        fake.named = False
        for _ in range(12):
            assert fake.hosted.is_ready
            await trio.sleep(1)
        assert fake.plugin.done() == ["standby", "publish", "retire", "standby"]
    assert "standby-lost" not in caplog.text


async def test_successor_is_announced_once_even_while_the_plugin_gets_ready_again(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(named=True) as fake:
        await trio.sleep(10)
        assert fake.hosted.published == fake.published[0]
        fake.plugin.done()
        fake.named, fake.plugin.trouble = False, [None, HANG]
        await trio.sleep(10)
        assert fake.plugin.done() == ["retire", "standby"]
        with noted(caplog, "successor-announced"):
            fake.hosted.announce(b"successor")
            await trio.sleep(0.1)
            assert fake.plugin.done() == ["retire", "standby"]
        assert fake.plugin.successors == [None, b"successor"]
        assert fake.hosted.is_ready


@pytest.mark.parametrize("trouble", [HANG, PublisherError("too late")])
async def test_successor_that_cannot_be_announced_does_no_harm(
    trouble: Exception | str, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fake = Fake(named=True)
    with noted(caplog, "successor-not-announced"):
        async with background(fake.hosted.run):
            await trio.sleep(10)
            fake.named = False
            await trio.sleep(10)
            fake.plugin.done()
            fake.plugin.trouble = [trouble]
            fake.hosted.announce(b"successor")
            await trio.sleep(10)
            assert fake.plugin.done() == ["retire", "standby"]
            assert (fake.hosted.is_ready, fake.hosted.problem) == (True, "")


async def test_successor_is_not_announced_once_the_node_publishes_again(autojump_clock: Clock) -> None:
    async with running(named=True) as fake:
        await trio.sleep(10)
        fake.hosted.announce(b"successor")
        await trio.sleep(10)
        fake.named = False
        await trio.sleep(10)
        assert fake.plugin.successors == [None]


async def test_standby_that_fails_is_repeated_and_nothing_is_published_before(autojump_clock: Clock) -> None:
    fake = Fake(named=True)
    fake.plugin.trouble = [PublisherError("no router"), HANG, PublisherError("no router")]
    async with background(fake.hosted.run):
        await trio.sleep(60)
        assert not fake.hosted.is_ready
        assert not fake.hosted.confirmed.is_set()
        await trio.sleep(60)
        assert fake.plugin.done() == ["standby"] * 4 + ["publish"]


@contextmanager
def noted(caplog: pytest.LogCaptureFixture, event: str) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "test"):
        yield
    assert event in caplog.text


async def test_defect_of_a_plugin_costs_only_the_plugin(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fake = Fake(named=True)
    fake.plugin.trouble = [None, ZeroDivisionError("a defect")]
    with noted(caplog, "publisher-failed"):
        async with background(fake.hosted.run):
            await trio.sleep(1)
            assert not fake.hosted.is_ready
            assert fake.blocks_others() or fake.named
            await trio.sleep(10)
            assert fake.plugin.done() == ["standby", "publish", "left", "retire", "standby", "publish"]
