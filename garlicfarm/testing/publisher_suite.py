"""The checks that every publisher plugin has to pass.

For the author of a plugin::

    from garlicfarm.publisher import PublisherSite
    from garlicfarm.testing import PublisherSuite

    class TestMyPublisher(PublisherSuite):
        @pytest.fixture
        def publisher(self, tmp_path):
            site = PublisherSite(farm="farm", node_id=1, directory=tmp_path / "site")
            return MyPublisher(MyPublisher.Config(address="…"), tmp_path, site)

The suite enters the publisher itself. Override `unreachable_publisher` and `kill_router` too, where you can,
and `order` if yours needs a signed Meta LeaseSet. Needs pytest-trio with ``trio_mode = true``, and a system
with /dev/fd.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from garlicfarm.errors import PublisherError
from garlicfarm.publisher import (
    ClientRules,
    KeyReport,
    Published,
    Publisher,
    PublisherStatus,
    PublishOrder,
)

T = TypeVar("T")
Order = Callable[[int, int], PublishOrder]

ANSWER_TIMEOUT_S = 120.0
"""A guard against hanging: a real router may take a minute to publish."""
NOW_MS = time.time_ns() // 1_000_000
LIFETIME_MS = 6 * 3_600_000  # more than a run of all tests takes


class PublisherSuite:
    """Subclass it and define the fixture `publisher`."""

    @pytest.fixture
    def publisher(self) -> Publisher:
        """A publisher in working order, made and not entered."""
        raise NotImplementedError("define the fixture `publisher`")

    @pytest.fixture
    def unreachable_publisher(self) -> Publisher:
        """A publisher of the same class whose router does not answer; without it, that check is skipped."""
        pytest.skip("no fixture unreachable_publisher")

    @pytest.fixture
    def kill_router(self) -> Callable[[], None]:
        """Kills the router of `publisher`; without it (it has none, or cannot tell) those checks are
        skipped."""
        pytest.skip("no fixture kill_router")

    @pytest.fixture
    def order(self) -> Order:
        """Makes an order from ``due_index`` and ``published_ms``; this one has no Meta LeaseSet."""
        return lambda due_index, published_ms: PublishOrder(
            due_index=due_index, published_ms=published_ms, expires_ms=published_ms + LIFETIME_MS
        )

    async def test_class_declares_api_version_and_config(self, publisher: Publisher) -> None:
        assert type(publisher).api_version == 1
        assert issubclass(type(publisher).Config, msgspec.Struct)
        assert isinstance(publisher.config, type(publisher).Config)

    @pytest.mark.parametrize("name", sorted({*Publisher.__abstractmethods__, "wait_changed"}))
    async def test_signature_is_that_of_the_contract(self, publisher: Publisher, name: str) -> None:
        ours, theirs = getattr(Publisher, name), getattr(type(publisher), name)
        assert inspect.iscoroutinefunction(theirs)
        assert list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters)

    async def test_rules_for_clients_are_taken_at_any_time(self, publisher: Publisher, order: Order) -> None:
        rules = ClientRules(banned=frozenset([bytes(32)]), allowed=frozenset([bytes(range(32))]))
        answer = publisher.restrict_clients(rules)
        assert type(answer) is bool
        async with _publishing(publisher, order):
            assert publisher.restrict_clients(ClientRules()) is answer
            assert (await _status(publisher)).is_publishing

    async def test_destination_and_key_have_their_form(self, publisher: Publisher) -> None:
        async with publisher:
            destination, key = publisher.destination, publisher.key
        if destination is not None:
            assert len(destination) >= 387
            assert len(destination) == 387 + int.from_bytes(destination[385:387], "big")
        if key is not None:
            _check_form(key, KeyReport)
            assert len(bytes.fromhex(key.transient)) == 8
            assert key.expires_ms > 0

    async def test_standby_publishes_nothing(self, publisher: Publisher) -> None:
        async with _standing_by(publisher):
            assert not (await _status(publisher)).is_publishing
            await _done(publisher.standby)
            assert not (await _status(publisher)).is_publishing

    async def test_publisher_is_ready_on_standby_and_while_it_publishes(
        self, publisher: Publisher, order: Order
    ) -> None:
        async with _standing_by(publisher):
            assert (await _status(publisher)).is_ready
            await _done(publisher.publish, order(1, NOW_MS))
            assert (await _status(publisher)).is_ready
            await _done(publisher.retire, None)
            await _done(publisher.standby)
            assert (await _status(publisher)).is_ready

    async def test_publication_stands_until_it_is_retired(self, publisher: Publisher, order: Order) -> None:
        async with _publishing(publisher, order) as published:
            _check_published(published)
            assert (await _status(publisher)).is_publishing
            await _done(publisher.retire, None)
            assert not (await _status(publisher)).is_publishing

    async def test_standby_ends_a_publication(self, publisher: Publisher, order: Order) -> None:
        async with _publishing(publisher, order):
            await _done(publisher.standby)
            assert not (await _status(publisher)).is_publishing

    async def test_equal_orders_are_one(self, publisher: Publisher, order: Order) -> None:
        async with _publishing(publisher, order) as first:
            status = await _status(publisher)
            assert await _done(publisher.publish, order(1, NOW_MS)) == first
            assert (await _status(publisher)).since_ms == status.since_ms
            await _done(publisher.retire, None)

    async def test_retiring_twice_and_before_anything_is_published(
        self, publisher: Publisher, order: Order
    ) -> None:
        async with _standing_by(publisher):
            await _done(publisher.retire, None)
            await _done(publisher.publish, order(1, NOW_MS))
            await _done(publisher.retire, None)
            await _done(publisher.retire, None)
            assert not (await _status(publisher)).is_publishing

    async def test_retiring_for_a_malformed_successor_retires(
        self, publisher: Publisher, order: Order
    ) -> None:
        """What another member reports must not keep this one publishing."""
        async with _publishing(publisher, order):
            await _done(publisher.retire, b"no LeaseSet")
            assert not (await _status(publisher)).is_publishing

    async def test_successor_known_only_on_standby_changes_nothing_there(
        self, publisher: Publisher, order: Order
    ) -> None:
        async with _publishing(publisher, order):
            await _done(publisher.retire, None)
            await _done(publisher.standby)
            await _done(publisher.retire, b"no LeaseSet")
            status = await _status(publisher)
            assert status.is_ready
            assert not status.is_publishing

    async def test_retired_publisher_publishes_a_later_order(
        self, publisher: Publisher, order: Order
    ) -> None:
        async with _publishing(publisher, order):
            await _done(publisher.retire, None)
            await _done(publisher.standby)
            _check_published(await _done(publisher.publish, order(2, NOW_MS + 1000)))
            assert (await _status(publisher)).is_publishing
            await _done(publisher.retire, None)

    @pytest.mark.parametrize("call", ["standby", "publish", "retire"])
    async def test_status_during_a_call_waits_for_nothing(
        self, publisher: Publisher, order: Order, call: str
    ) -> None:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "standby": publisher.standby,
            "publish": lambda: publisher.publish(order(1, NOW_MS)),
            "retire": lambda: publisher.retire(None),
        }
        answers: list[PublisherStatus] = []

        async def ask() -> None:
            answers.append(await publisher.status())

        async with publisher:
            for earlier in list(calls)[: list(calls).index(call)]:
                await _done(calls[earlier])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_done, calls[call])
                await wait_all_tasks_blocked()
                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
                assert answers, f"status waits for something while {call} runs"
            await _done(publisher.retire, None)
        _check_form(answers[0], PublisherStatus)

    @pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.005])
    async def test_cancelled_publication_can_be_retired(
        self, publisher: Publisher, order: Order, after_s: float
    ) -> None:
        async with _standing_by(publisher):
            with trio.move_on_after(after_s):
                await publisher.publish(order(1, NOW_MS))
            await _done(publisher.retire, None)
            assert not (await _status(publisher)).is_publishing
            await _done(publisher.standby)
            _check_published(await _done(publisher.publish, order(2, NOW_MS + 1000)))
            await _done(publisher.retire, None)

    @pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.005])
    async def test_cancelled_standby_can_be_called_again(self, publisher: Publisher, after_s: float) -> None:
        async with publisher:
            with trio.move_on_after(after_s):
                await publisher.standby()
            await _done(publisher.standby)
            assert not (await _status(publisher)).is_publishing

    async def test_publisher_left_and_entered_again_publishes(
        self, publisher: Publisher, order: Order
    ) -> None:
        for turn in range(2):
            async with publisher as entered:
                assert entered is publisher
                await _done(publisher.standby)
                assert not (await _status(publisher)).is_publishing
                await _done(publisher.publish, order(1 + turn, NOW_MS + 1000 * turn))

    async def test_leaving_ends_what_was_opened(self, publisher: Publisher, order: Order) -> None:
        opened: list[_Open] = []
        for turn in range(2):  # the first turn opens what the process keeps
            async with publisher:
                await _done(publisher.standby)
                await _done(publisher.publish, order(1 + turn, NOW_MS + 1000 * turn))
            opened.append(_Open())
        first, second = opened
        for _ in range(round(ANSWER_TIMEOUT_S / 0.01)):  # a router in this process closes its own ends
            if second.descriptors <= first.descriptors and second.tasks <= first.tasks:
                break
            await trio.sleep(0.01)
            second = _Open()
        assert second.descriptors <= first.descriptors, "descriptors stay open when the publisher is left"
        assert second.tasks <= first.tasks, "tasks go on when the publisher is left"

    async def test_unreachable_publisher_is_entered_and_raises_publisher_error(
        self, unreachable_publisher: Publisher, order: Order
    ) -> None:
        async with unreachable_publisher:  # the farm starts and continues without its router
            with pytest.raises(PublisherError) as caught:
                await _get_ready_and_publish(unreachable_publisher, order(1, NOW_MS))
            assert not (await _status(unreachable_publisher)).is_publishing
        _check_sentence(str(caught.value))

    @pytest.mark.parametrize("is_published", [False, True])
    async def test_router_that_dies_is_noticed_without_a_call(
        self,
        publisher: Publisher,
        kill_router: Callable[[], None],
        order: Order,
        is_published: bool,
    ) -> None:
        """`wait_changed` returns, or the node would notice only when it asks again."""
        async with _standing_by(publisher):
            if is_published:
                await _done(publisher.publish, order(1, NOW_MS))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_done, publisher.wait_changed)
                await wait_all_tasks_blocked()
                kill_router()
            while (status := await _status(publisher)).is_ready:
                await _done(publisher.wait_changed)
            assert not status.is_publishing
            with pytest.raises(PublisherError):
                await _done(publisher.standby)


@asynccontextmanager
async def _standing_by(publisher: Publisher) -> AsyncIterator[None]:
    async with publisher:
        await _done(publisher.standby)
        yield


@asynccontextmanager
async def _publishing(publisher: Publisher, order: Order) -> AsyncIterator[Published]:
    async with _standing_by(publisher):
        yield await _done(publisher.publish, order(1, NOW_MS))


async def _done(method: Callable[..., Awaitable[T]], *arguments: object) -> T:
    with trio.fail_after(ANSWER_TIMEOUT_S):
        return await method(*arguments)


async def _get_ready_and_publish(publisher: Publisher, order: PublishOrder) -> None:
    await _done(publisher.standby)
    await _done(publisher.publish, order)


async def _status(publisher: Publisher) -> PublisherStatus:
    status = await _done(publisher.status)
    _check_form(status, PublisherStatus)
    for problem in status.problems:
        _check_sentence(problem)
    if status.since_ms is not None and status.until_ms is not None:
        assert status.since_ms <= status.until_ms
    return status


def _check_published(published: Published) -> None:
    _check_form(published, Published)
    assert published.published_ms > 0


def _check_sentence(text: str) -> None:
    assert text.strip()
    assert text.isprintable()


def _check_form(given: Any, form: type[msgspec.Struct]) -> None:
    """Constructing a Struct checks nothing; decoding does."""
    assert type(given) is form
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=form) == given


class _Open:
    """How many descriptors this process has open, and how many tasks Trio has."""

    def __init__(self) -> None:
        self.descriptors = len(os.listdir("/dev/fd"))
        self.tasks = trio.lowlevel.current_statistics().tasks_living
