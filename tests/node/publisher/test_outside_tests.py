"""Tests of what the publisher serves: carried out through this node's router, and answered for others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import encode
from garlicfarm.levels import OUTSIDE
from garlicfarm.node.publisher.outside_tests import AGAIN_S
from garlicfarm.publishing.documents import ConnectTest, DestinationStatus, RemoteStatus, RouterStatus
from garlicfarm.router import MEASUREMENT_TIMEOUT_S, Router
from tests.node.publisher.member import FakeContext, task_of
from tests.publishing.scripted_log import configuration, destination

Clock = trio.testing.MockClock
LEAF, OTHER = (destination_hash(destination(seed)) for seed in (12, 13))
CONTROL = bytes(range(32))


class TestedRouter:
    """``down``: what does not answer, which takes ``down_s``. ``trouble``: raised by each measurement, None:
    it hangs."""

    __test__ = False

    def __init__(self) -> None:
        self.measures_served = False
        self.control: bytes | None = None
        self.down: set[bytes] = set()
        self.down_s = 1.0
        self.most_at_once = 0
        self._under_way = 0
        self.trouble: list[RouterError | None] = []
        self.asked: list[tuple[float, bytes]] = []
        self.ends: list[RouterError] = []  # of answering
        self.answers = 0

    async def get_local_router_status(self) -> RouterStatus:
        await trio.lowlevel.checkpoint()
        return RouterStatus()

    async def get_local_leaf_hash(self, master_hash: bytes) -> bytes | None:
        raise NotSupported("no")

    async def get_local_leaf_status(self, leaf: bytes) -> DestinationStatus:
        raise NotSupported("no")

    async def get_remote_measured_status(self, hash_: bytes) -> RemoteStatus | None:
        self.asked.append((trio.current_time(), hash_))
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            await trio.sleep(self.down_s if hash_ in self.down else 1)
        finally:
            self._under_way -= 1
        if self.trouble:
            error = self.trouble.pop(0)
            if error is None:
                await trio.sleep_forever()
            assert error is not None
            raise error
        test = ConnectTest(ms=1000, ok=hash_ not in self.down)
        return RemoteStatus(hash=encode(hash_), fetch_time_ms=5, connect_test=test)

    async def answer_tests(self) -> None:
        self.answers += 1
        if self.ends:
            raise self.ends.pop(0)
        self.control = CONTROL
        try:
            await trio.sleep_forever()
        finally:
            self.control = None


@pytest.fixture
def farm(moved: SimpleNamespace, tmp_path: Path) -> FakeContext:
    """Member 2 publishes leaf 12, and 3 has 13. This node, 1, has a router."""
    made = FakeContext(1, 2, 3)
    raised = msgspec.structs.replace(configuration(1, 2, 3, index=1), level=OUTSIDE)
    made.fold.configure(1, raised)
    made.hear(2, leaves=(12,), mode="on", sequence=1)
    made.hear(3, leaves=(13,), sequence=1)
    assert made.fold.publisher == 2
    made.hear(2, leaves=(12,), mode="on", publishing=True, sequence=2, applied=made.applied_index)
    made.router = cast(Router, TestedRouter())
    return made


def router_of(farm: FakeContext) -> TestedRouter:
    return cast(TestedRouter, farm.router)


async def run_for(seconds: float, farm: FakeContext) -> None:
    with trio.move_on_after(seconds):
        await task_of(farm, Path("none")).run()


def reports(farm: FakeContext) -> list[Any]:
    return [document["config"]["node"].get("outside") for document in farm.said()]


async def test_status_says_that_the_service_answers_and_shows_what_was_measured(
    farm: FakeContext, autojump_clock: Clock
) -> None:
    await run_for(70, farm)
    assert reports(farm)[-1] == {"publisher": 2, "since": farm.fold.due_since, "failed": 0}
    newest = farm.said()[-1]
    assert encode(LEAF) in [one["hash"] for one in newest["remoteDestinations"]]
    assert newest["config"]["node"]["control"] == encode(CONTROL)


async def test_service_that_does_not_answer_is_reported_with_the_control_that_did(
    farm: FakeContext, autojump_clock: Clock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, 95, farm)
        await trio.sleep(5)
        router_of(farm).down = {LEAF}
    assert reports(farm)[-1] == {
        "publisher": 2,
        "since": farm.fold.due_since,
        "failed": 3,
        "control": encode(OTHER),
    }


async def test_tests_that_take_long_are_carried_out_side_by_side(
    farm: FakeContext, autojump_clock: Clock
) -> None:
    """Three of the service, and one of a control."""
    router = router_of(farm)
    router.down_s = 35
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, 140, farm)
        await trio.sleep(5)
        router.down = {LEAF}
    assert [report["failed"] for report in reports(farm) if report][-1] == 3
    assert router.most_at_once >= 4


async def test_router_that_refuses_or_hangs_tests_nothing(farm: FakeContext, autojump_clock: Clock) -> None:
    router = router_of(farm)
    router.down = {LEAF}
    router.trouble = [error for _ in range(20) for error in (RouterError("no"), None)]
    await run_for(6 * MEASUREMENT_TIMEOUT_S, farm)
    assert [*filter(None, reports(farm))] == []
    assert "not-measured" in farm.notes


async def test_router_that_never_can_is_asked_no_more(farm: FakeContext, autojump_clock: Clock) -> None:
    router = router_of(farm)
    router.trouble = [NotSupported("no") for _ in range(9)]
    await run_for(300, farm)
    assert [*filter(None, reports(farm))] == []
    assert len(router.asked) == 2  # the other one was remote sensing's


@pytest.mark.parametrize("measures_served", [True, False])
async def test_standby_tests_what_its_own_router_serves_only_where_that_asks_the_network(
    farm: FakeContext, autojump_clock: Clock, measures_served: bool
) -> None:
    router = router_of(farm)
    farm.section.leaf = [SimpleNamespace(destination=destination(12))]
    router.measures_served = measures_served
    await run_for(70, farm)
    assert any(hash_ == LEAF for _, hash_ in router.asked) is measures_served
    assert bool([*filter(None, reports(farm))]) is measures_served


async def test_test_of_a_turn_that_is_over_is_cancelled(farm: FakeContext, autojump_clock: Clock) -> None:
    router = router_of(farm)
    router.trouble = [None, None]  # of remote sensing, too
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, 45, farm)
        await trio.sleep(10)
        farm.order("override", member=2, mode="off")
        farm.hear(2, leaves=(12,), publishing=False, sequence=9, applied=farm.applied_index)
        assert farm.fold.publisher == 3
        farm.hear(3, leaves=(13,), publishing=True, sequence=9, applied=farm.applied_index)
    assert any(hash_ == OTHER and 10 <= time < 12 for time, hash_ in router.asked)


async def test_answering_begins_anew_after_it_has_ended(farm: FakeContext, autojump_clock: Clock) -> None:
    router = router_of(farm)
    router.ends = [RouterError("the session ended")]
    await run_for(AGAIN_S + 45, farm)
    assert router.answers == 2
    assert farm.said()[-1]["config"]["node"]["control"] == encode(CONTROL)
    assert "control" not in farm.said()[0]["config"]["node"]
    assert "tests-not-answered" in farm.notes
