from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from garlicfarm.errors import ConfigError, PublisherError, first_error
from garlicfarm.plugins import make_publisher
from garlicfarm.publisher import Published, PublisherSite, PublisherStatus, PublishOrder
from garlicfarm.testing import publisher_suite
from garlicfarm.testing.publisher_suite import PublisherSuite
from garlicfarm_plugin_simulated.publisher import SimulatedPublisher, SimulatedPublisherConfig

SITE = PublisherSite(farm="farm", node_id=1, directory=Path("nowhere"))
ORDER = PublishOrder(due_index=7, published_ms=1_000, expires_ms=601_000, lease_set=b"signed")


async def _refuse(call: str) -> None:
    raise PublisherError(f"{call} is refused")


class TestSimulatedPublisher(PublisherSuite):
    @pytest.fixture
    def publisher(self) -> SimulatedPublisher:
        return SimulatedPublisher(SimulatedPublisherConfig(), Path(), SITE)

    @pytest.fixture
    def unreachable_publisher(self) -> SimulatedPublisher:
        publisher = SimulatedPublisher(SimulatedPublisherConfig(), Path(), SITE)
        publisher.on_call = _refuse
        return publisher

    @pytest.fixture
    def kill_router(self, publisher: SimulatedPublisher) -> Callable[[], None]:
        return publisher.kill_router


async def test_simulated_publisher_is_found_by_name_and_keeps_its_order_until_it_is_left() -> None:
    publisher = make_publisher("simulated", {}, Path(), SITE)
    assert isinstance(publisher, SimulatedPublisher)
    async with publisher:
        published = await publisher.publish(ORDER)
        assert (published.published_ms, published.lease_set) == (1_000, b"signed")
        assert publisher.order == ORDER
        status = await publisher.status()
        assert (status.is_publishing, status.since_ms, status.until_ms) == (True, 1_000, 601_000)
        await publisher.retire(b"the next one's")
        assert (publisher.order, publisher.successor) == (None, b"the next one's")
        await publisher.publish(ORDER)
    assert publisher.order is None


async def test_call_that_a_test_fails_changes_nothing() -> None:
    publisher = SimulatedPublisher(SimulatedPublisherConfig(), Path(), SITE)
    async with publisher:
        await publisher.publish(ORDER)
        publisher.on_call = _refuse
        for call in (publisher.standby(), publisher.retire(None)):
            with pytest.raises(PublisherError, match="is refused"):
                await call
        assert publisher.order == ORDER


def test_simulated_publisher_with_a_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown key 'seed'"):
        make_publisher("simulated", {"seed": 1}, Path(), SITE)


# The suite notices what breaks the contract


class _StandbyKeepsPublishing(SimulatedPublisher):
    async def standby(self) -> None:
        await trio.lowlevel.checkpoint()


class _RetireFailsWithoutPublication(SimulatedPublisher):
    async def retire(self, successor: bytes | None) -> None:
        if self.order is None:
            raise PublisherError("nothing is published")
        await super().retire(successor)


class _RetireReadsTheSuccessor(SimulatedPublisher):
    async def retire(self, successor: bytes | None) -> None:
        if successor is not None:
            raise PublisherError("the successor's LeaseSet is malformed")
        await super().retire(successor)


class _StatusWaitsForThePublication(SimulatedPublisher):
    lock: trio.Lock

    async def publish(self, order: PublishOrder) -> Published:
        self.lock = trio.Lock()
        async with self.lock:
            await trio.sleep(0.05)
            return await super().publish(order)

    async def status(self) -> PublisherStatus:
        async with self.lock:
            return await super().status()


class _LeavesASocketOpen(SimulatedPublisher):
    def __init__(self) -> None:
        super().__init__(SimulatedPublisherConfig(), Path(), SITE)
        self.sockets: list[trio.socket.SocketType] = []

    async def publish(self, order: PublishOrder) -> Published:
        self.sockets.append(trio.socket.socket())
        return await super().publish(order)


class _StandbyEndsWithASuccessor(SimulatedPublisher):
    async def retire(self, successor: bytes | None) -> None:
        await super().retire(successor)
        if successor is not None:
            self.kill_router()


class _RepeatsAnOrder(SimulatedPublisher):
    async def publish(self, order: PublishOrder) -> Published:
        published = await super().publish(order)
        self.order = None
        return published


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (_StandbyKeepsPublishing, PublisherSuite.test_standby_ends_a_publication),
        (_RetireFailsWithoutPublication, PublisherSuite.test_retiring_twice_and_before_anything_is_published),
        (_RetireReadsTheSuccessor, PublisherSuite.test_retiring_for_a_malformed_successor_retires),
        (
            _StandbyEndsWithASuccessor,
            PublisherSuite.test_successor_known_only_on_standby_changes_nothing_there,
        ),
        (_RepeatsAnOrder, PublisherSuite.test_publication_stands_until_it_is_retired),
    ],
)
async def test_suite_fails_a_publisher_that_breaks_the_contract(broken, check):
    publisher = broken(SimulatedPublisherConfig(), Path(), SITE)
    with pytest.raises((AssertionError, PublisherError)):
        await check(PublisherSuite(), publisher, _order)


async def test_suite_fails_a_status_that_waits_for_a_call() -> None:
    publisher = _StatusWaitsForThePublication(SimulatedPublisherConfig(), Path(), SITE)
    with pytest.raises(BaseExceptionGroup) as caught:
        await PublisherSuite().test_status_during_a_call_waits_for_nothing(publisher, _order, "publish")
    assert "status waits for something" in str(first_error(caught.value))


class _NoticesNothing(SimulatedPublisher):
    async def wait_changed(self) -> None:
        await trio.sleep_forever()


async def test_suite_fails_a_publisher_that_does_not_tell_of_its_router(monkeypatch):
    monkeypatch.setattr(publisher_suite, "ANSWER_TIMEOUT_S", 0.1)
    publisher = _NoticesNothing(SimulatedPublisherConfig(), Path(), SITE)
    with pytest.raises(BaseExceptionGroup) as caught:
        await PublisherSuite().test_router_that_dies_is_noticed_without_a_call(
            publisher, publisher.kill_router, _order, True
        )
    assert isinstance(first_error(caught.value), trio.TooSlowError)


async def test_suite_fails_a_publisher_that_leaves_a_descriptor_open(monkeypatch):
    monkeypatch.setattr(publisher_suite, "ANSWER_TIMEOUT_S", 0.1)
    publisher = _LeavesASocketOpen()
    with pytest.raises(AssertionError, match="descriptors stay open"):
        await PublisherSuite().test_leaving_ends_what_was_opened(publisher, _order)
    for each in publisher.sockets:
        each.close()


def _order(due_index: int, published_ms: int) -> PublishOrder:
    return PublishOrder(due_index=due_index, published_ms=published_ms, expires_ms=published_ms + 600_000)
