"""A hosted publisher: what its core wants is carried out, whatever the plugin makes of it."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm.errors import PublisherError
from garlicfarm.i2p.encoding import encode
from garlicfarm.node.publisher.backend_check import BackendCheck
from garlicfarm.node.publisher.hosted_publisher import MIN_WATCH_S
from garlicfarm.publisher import KeyReport, Published, Publisher, PublisherSite, PublisherStatus, PublishOrder
from garlicfarm.publishing.documents import DestinationStatus
from tests.node.publisher.hosting import running
from tests.publishing.publisher_bench import HANG, LEASE_S

pytestmark = pytest.mark.usefixtures("moved")

Clock = trio.testing.MockClock
SHIELD = "shield"
BAD_CLEANUP = "raise when cancelled"
SITE = PublisherSite(farm="farm", node_id=1, directory=Path("unused"))
DEFECT = ZeroDivisionError("a defect")
PROBLEM = "ZeroDivisionError: a defect"


class Plugin(Publisher):
    """It notes its calls, and has the troubles that it is given, each once, by the name of the call."""

    Config = msgspec.Struct

    def __init__(self, **trouble: Any) -> None:
        super().__init__(None, Path(), SITE)
        self.calls: list[tuple[float, str]] = []
        self.trouble = trouble
        self.is_entered = False
        self.stands = False
        self.is_ready = True
        self.says: Any = None  # in answer to an order, in place of its own
        self.answer: Any = None  # of `status`, the same
        self.successors: list[bytes | None] = []
        self.changed = trio.Event()
        self.ends = trio.Event()  # before that it cannot be left
        self.ends.set()

    async def _do(self, what: str) -> None:
        self.calls.append((round(trio.current_time(), 1), what))
        await self._have_trouble(what)

    async def _have_trouble(self, what: str) -> None:
        trouble = self.trouble.pop(what, None)
        if isinstance(trouble, Exception):
            raise trouble
        if trouble == SHIELD:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)
        try:
            await trio.sleep(math.inf if trouble in (HANG, BAD_CLEANUP) else 0)
        finally:
            if trouble == BAD_CLEANUP:
                raise DEFECT

    async def __aenter__(self) -> Self:
        assert not self.is_entered
        await self._have_trouble("enter")
        self.is_entered = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        with trio.CancelScope(shield=True):
            await self.ends.wait()
        self.is_entered = self.stands = False
        await self._do("leave")

    async def standby(self) -> None:
        assert self.is_entered
        await self._do("standby")
        self.stands = False

    async def publish(self, order: PublishOrder) -> Published:
        assert self.is_entered
        self.stands = True
        await self._do("publish")
        return cast(Published, self.says or Published(published_ms=order.published_ms))

    async def retire(self, successor: bytes | None) -> None:
        assert self.is_entered
        self.successors.append(successor)
        await self._do("retire")
        self.stands = False

    async def status(self) -> PublisherStatus:
        await self._have_trouble("status")
        return self.answer or PublisherStatus(is_publishing=self.stands, is_ready=self.is_ready)

    async def wait_changed(self) -> None:
        await self._have_trouble("wait_changed")
        await self.changed.wait()

    def lose_router(self) -> None:
        self.stands = self.is_ready = False
        self.changed.set()
        self.changed = trio.Event()

    def done(self) -> list[str]:
        calls, self.calls = [what for _, what in self.calls], []
        return calls


async def test_publishes_while_named_retires_after_and_when_the_node_ends(autojump_clock: Clock) -> None:
    plugin = Plugin()
    async with running(plugin) as host:
        await trio.sleep(20)
        assert plugin.done() == ["standby"]
        host.give(is_due=True)
        await trio.sleep(10)
        assert plugin.done() == ["publish"]
        assert host.core.status == PublisherStatus(is_publishing=True)
        assert len(host.published) == 1
        host.give(is_due=False)
        await trio.sleep(10)
        assert plugin.done() == ["retire", "standby"]
        host.core.announce(b"successor")
        host.give(is_due=False)
        await trio.sleep(1)
        assert plugin.done() == ["retire", "standby"]
        assert plugin.successors == [None, b"successor"]
        host.give(is_due=True)
        await trio.sleep(1)
    assert plugin.done() == ["publish", "retire", "leave"]


@pytest.mark.parametrize("trouble", [HANG, SHIELD])
async def test_attempt_is_cancelled_with_the_role_and_retired(trouble: str, autojump_clock: Clock) -> None:
    plugin = Plugin(publish=trouble)
    async with running(plugin, is_due=True) as host:
        await trio.sleep(1)
        host.give(is_due=False)
        await trio.sleep(0.5)
        assert plugin.done() == ["standby", "publish", *(["retire", "standby"] if trouble == HANG else [])]
        await trio.sleep(5)
        # One that does not let itself be cancelled answers in its own time: nobody hears it.
        assert plugin.done() == ([] if trouble == HANG else ["retire", "standby"])
        assert host.core.published is None
        assert not host.is_exposed


async def test_lease_ends_a_publisher_that_answers_nothing(
    moved: SimpleNamespace, autojump_clock: Clock
) -> None:
    plugin = Plugin(publish=HANG, retire=HANG)
    async with running(plugin, is_due=True, lease_end_ms=20_000):
        await trio.sleep(12)
        plugin.trouble["status"] = HANG
        await trio.sleep(18)
        assert plugin.calls[1:4] == [(0, "publish"), (15, "retire"), (20, "leave")]


async def test_left_at_once_where_the_machine_slept_beyond_the_lease(
    moved: SimpleNamespace, autojump_clock: Clock
) -> None:
    plugin = Plugin()
    async with running(plugin, is_due=True, lease_end_ms=45_000) as host:
        await trio.sleep(20)
        plugin.done()
        moved.slept_ms = 3_600_000
        await trio.sleep(1.1)
        assert plugin.done() == ["leave"]
        await trio.sleep(10)
        assert plugin.done() == ["retire", "standby"]
        assert not host.is_exposed


async def test_node_that_ends_gives_no_time_beyond_the_lease(autojump_clock: Clock) -> None:
    plugin = Plugin(retire=HANG)
    async with running(plugin, is_due=True, lease_end_ms=20_000) as host:
        await trio.sleep(10)
        host.role.lease_end_ms = 12_000
    assert plugin.calls[-2:] == [(10, "retire"), (12, "leave")]


async def test_plugin_that_cannot_be_left_blocks_others_for_one_lease(autojump_clock: Clock) -> None:
    plugin = Plugin(retire=HANG)
    plugin.ends = trio.Event()
    async with running(plugin, is_due=True) as host:
        try:
            await trio.sleep(10)
            host.give(is_due=False)
            await trio.sleep(15)
            assert (host.core.row.is_ready, host.is_exposed) == (False, True)
            await trio.sleep(LEASE_S)
            assert not host.is_exposed
            assert plugin.done() == ["standby", "publish", "retire"]
        finally:
            plugin.ends.set()
        await trio.sleep(10)
        assert plugin.done() == ["leave", "retire", "standby"]


@pytest.mark.parametrize("call", ["enter", "standby", "publish", "status", "wait_changed", "retire", "leave"])
async def test_defect_of_a_plugin_costs_only_the_plugin(call: str, autojump_clock: Clock) -> None:
    plugin = Plugin(**{call: DEFECT})
    async with running(plugin, is_due=True) as host:
        if call in ("retire", "leave"):
            await trio.sleep(10)
            host.give(is_due=False)
            plugin.trouble |= {"status": DEFECT} if call == "leave" else {}
        await trio.sleep(2)
        assert (host.core.state, host.core.problem) == ("outside", PROBLEM)
        assert not plugin.is_entered
        assert set(host.logged) - {"publishing", "not-publishing"} == {"publisher-failed"}
        host.give(is_due=True)
        await trio.sleep(6)
        assert (host.core.state, host.core.problem, plugin.stands) == ("publishing", "", True)


async def test_defect_while_the_node_ends_does_not_reach_it(autojump_clock: Clock) -> None:
    async with running(Plugin(status=BAD_CLEANUP)) as host:
        await trio.sleep(3)
    assert host.core.problem == PROBLEM


async def test_publisher_without_a_status_is_left(autojump_clock: Clock) -> None:
    plugin = Plugin(status=HANG)
    async with running(plugin, is_due=True) as host:
        await trio.sleep(12)
        assert plugin.done() == ["standby", "publish", "leave"]
        assert host.core.problem == "it has given no status within 10 s"


class BadKey(Plugin):
    is_bad = False

    @property
    def key(self) -> KeyReport | None:
        return cast(Any, 7) if self.is_bad else None


LEAF = DestinationStatus(destination=encode(bytes(391)))


@pytest.mark.parametrize(
    "answer",
    [
        SimpleNamespace(is_publishing=True),
        PublisherStatus(is_publishing=True, problems=cast(Any, (7,))),
        PublisherStatus(is_publishing=True, since_ms=-1),
        PublisherStatus(is_publishing=True, leaf=LEAF),  # it has no destination
        None,  # but a key that is none
    ],
)
async def test_status_that_no_farm_would_take_is_a_defect(answer: Any, autojump_clock: Clock) -> None:
    plugin = BadKey()
    async with running(plugin) as host:
        plugin.answer, plugin.is_bad = answer, answer is None
        await trio.sleep(2)
        assert plugin.done()[-1] == "leave"
        assert host.core.status == PublisherStatus(is_publishing=False)
        assert host.core.problem


@pytest.mark.parametrize(
    "answer", [7, Published(published_ms=-1), Published(published_ms=1, lease_set=bytes(5000))]
)
async def test_publication_that_no_farm_would_take_is_a_defect(answer: Any, autojump_clock: Clock) -> None:
    plugin = Plugin()
    plugin.says = answer
    async with running(plugin, is_due=True) as host:
        await trio.sleep(2)
        assert plugin.done() == ["standby", "publish", "leave"]
        assert (host.published, host.core.published) == ([], None)


async def test_plugin_that_says_that_its_router_is_gone_is_heard_at_once(autojump_clock: Clock) -> None:
    plugin = Plugin()
    async with running(plugin, is_due=True) as host:
        await trio.sleep(20.5)
        plugin.trouble["standby"] = PublisherError("no router")
        plugin.lose_router()
        await trio.sleep(0.05)
        assert (host.core.state, host.core.problem) == ("not ready", "no router")


async def test_plugin_that_changes_all_the_time_is_not_asked_all_the_time(autojump_clock: Clock) -> None:
    asked = 0

    class Counted(Plugin):
        async def status(self) -> PublisherStatus:
            nonlocal asked
            asked += 1
            return await super().status()

    plugin = Counted()
    plugin.changed.set()
    async with running(plugin):
        await trio.sleep(10)
    assert 10 < asked <= 10 / MIN_WATCH_S + 1


async def test_what_a_check_finds_is_told(monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock) -> None:
    async def fail(check: BackendCheck) -> None:
        await trio.lowlevel.checkpoint()
        check.is_up, check.problem = False, "it is down"

    monkeypatch.setattr(BackendCheck, "test", fail)

    class OfService(Plugin):
        targets = ("127.0.0.1:1",)

    async with running(OfService()) as host:
        await trio.sleep(1)
        assert (host.core.is_up, host.core.problems()) == (False, ["it is down"])


async def test_plugin_is_told_which_of_its_targets_are_down_when_that_changes(monkeypatch, autojump_clock):
    found = iter([True, True, False, False, True])

    async def test(check: BackendCheck) -> None:
        await trio.lowlevel.checkpoint()
        check.is_up = next(found, True)

    monkeypatch.setattr(BackendCheck, "test", test)

    class OfService(Plugin):
        targets = ("127.0.0.1:1",)

        def __init__(self) -> None:
            super().__init__()
            self.told: list[frozenset[str]] = []

        def leave_out(self, targets: frozenset[str]) -> None:
            self.told.append(targets)
            if targets:
                raise DEFECT

    plugin = OfService()
    async with running(plugin):
        await trio.sleep(60)
    assert plugin.told == [{"127.0.0.1:1"}, frozenset()]
