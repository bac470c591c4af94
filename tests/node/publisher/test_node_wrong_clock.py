"""Real nodes, one of which has a wrong wall clock, or a router whose clock differs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm.admin.health import judge
from garlicfarm.node.publisher import clocks
from garlicfarm.publisher import ClockReading, Published, PublisherStatus
from garlicfarm.publishing.entries import encode_status
from tests.node.publisher.member import FakeContext, plugin, task_of
from tests.node.support.service_farm import Service, ServiceFarm, service_farm
from tests.publishing.scripted_log import T0, status
from tests.running import background, wait_until

SLEW_MS = 1000  # this machine's clock may be corrected meanwhile
ROUTER = "is at least 3 min behind its router's"


@pytest.fixture
async def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServiceFarm]:
    async with service_farm(tmp_path, monkeypatch) as farm:
        yield farm


async def test_router_with_another_date_moves_the_role_and_is_told_everywhere(
    farm: ServiceFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await farm.publisher()
    wrong, off_ms, status_of = farm.services[first], 190_000, Service.status

    async def dated(service: Service) -> PublisherStatus:
        now_ms = clocks.wall_ms()
        date = ClockReading(date_ms=now_ms + off_ms * (service is wrong), asked_ms=now_ms, answered_ms=now_ms)
        return msgspec.structs.replace(await status_of(service), router_date=date)

    node = farm.nodes.node(first)
    view: Any = node.farms["farm"]

    def offset_s() -> float | None:
        node.collect()
        labels = {"farm": "farm", "source": "router"}
        return node.metrics.registry.get_sample_value("garlicfarm_clock_offset_seconds", labels)

    assert (view.status()["clock"]["ahead_of_router_ms"], offset_s()) == (None, 0)
    assert judge(view.status()) == "healthy"
    monkeypatch.setattr(Service, "status", dated)
    index = farm.nodes.replica().applied_index
    second = await farm.publisher(other_than=first)
    assert "publishing" not in farm.statuses(first, index)[0]["meta"]
    told = view.status()
    (row,) = told["publishers"]
    assert row["problems"] == [f"this node's clock {ROUTER}: correct the wrong one"]
    assert told["problems"] == [
        f"the clock of member {first} {ROUTER}, so it does not offer itself to publish: correct the wrong one"
    ]
    clock = told["clock"]
    assert (clock["state"], clock["limit_ms"], clock["ahead_of_farm_ms"]) == ("off", 60_000, 0)
    assert clock["ahead_of_router_ms"] == pytest.approx(-190_000, abs=SLEW_MS)
    assert judge(told) == "degraded"
    assert offset_s() == pytest.approx(-190, abs=SLEW_MS / 1000)
    other: Any = farm.nodes.node(second).farms["farm"]
    clock = other.status()["clock"]
    assert clock.pop("ahead_of_router_ms") == pytest.approx(0, abs=SLEW_MS)
    assert clock == {"state": "agrees", "limit_ms": 60_000, "ahead_of_farm_ms": 0, "problem": ""}
    off_ms = 0
    await wait_until(lambda: view.status()["clock"]["state"] == "agrees")
    (row,) = view.status()["publishers"]
    (problem,) = row["problems"]
    assert problem.startswith("it could not publish recently, so this node offers itself again in ")


async def test_members_tell_each_other_the_time_when_they_connect(farm: ServiceFarm) -> None:
    """So a new process knows of its clock what the others know, before they have posted anything."""
    for node_id in farm.services:
        for other in farm.services.keys() - {node_id}:
            told = farm.nodes.replica(node_id).peers.told
            date_ms, asked_ms, answered_ms = await wait_until(partial(told, other))
            assert asked_ms <= date_ms <= answered_ms  # they share a clock


@pytest.mark.usefixtures("moved")
async def test_logins_show_a_wrong_clock_before_the_others_post(
    tmp_path: Path, unwritten: list[Published], autojump_clock: trio.testing.MockClock
) -> None:
    farm, made = FakeContext(1, 2), plugin(tmp_path)
    farm.hear(2)
    task = task_of(farm, tmp_path, made)
    async with background(task.run):
        await trio.sleep(1)
        assert task.core.publishing is False
        now_ms = T0 + 1000
        farm.told[2] = now_ms - 61_000, now_ms, now_ms
        await trio.sleep(2)
        assert task.core.publishing is None
        assert task.core.clock_problem == "is at least 61 s ahead of member 2's: correct the wrong one"


@pytest.mark.usefixtures("moved")
@pytest.mark.parametrize("off_s", [180, -180, 7 * 3600, -7 * 3600])
async def test_node_whose_clock_is_set_offers_itself_again_some_time_after_it_is_right(
    off_s: int,
    tmp_path: Path,
    unwritten: list[Published],
    moved: SimpleNamespace,
    autojump_clock: trio.testing.MockClock,
) -> None:
    farm, made = FakeContext(1, 2, 3), plugin(tmp_path)
    task = task_of(farm, tmp_path, made)
    farm.order("override", member=1, mode="on")

    async def hear() -> None:
        """The others post every 30 s, by right clocks."""
        while True:
            await trio.sleep(15)
            for member in (2, 3):
                date_ms = T0 + round(1000 * trio.current_time())
                document = status(member, date_ms, applied=farm.applied_index, interval_ms=30_000)
                farm.apply(encode_status(document))
            await trio.sleep(15)

    async with background(task.run), background(hear):
        await trio.sleep(100)
        assert task.core.publishing is True
        moved.wall_ms = 1000 * off_s
        await trio.sleep(2)
        assert task.core.publishing is None
        word = "ahead of" if off_s > 0 else "behind"
        (problem,) = task.describe()[0]["problems"]
        assert problem.startswith("this node's clock is at least ")
        assert problem.endswith(f" {word} the farm's: correct it")
        await trio.sleep(5)
        assert farm.fold.publisher != 1
        assert made.order is None
        await trio.sleep(300)
        assert task.core.publishing is None
        moved.wall_ms = 0
        await trio.sleep(60)
        (problem,) = task.describe()[0]["problems"]
        assert problem.startswith("it could not publish recently, so this node offers itself again in ")
        await trio.sleep(60)
        assert task.core.publishing is True
