"""A node that ends, or is drained, has handed over what it did before: three real nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.node.support.service_farm import ServiceFarm, service_farm
from tests.running import wait_until


@pytest.fixture
async def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServiceFarm]:
    async with service_farm(tmp_path, monkeypatch) as farm:
        yield farm


@pytest.mark.parametrize("leads", [False, True])
async def test_publisher_that_is_stopped_ends_when_its_successor_publishes(
    leads: bool, farm: ServiceFarm
) -> None:
    first = await farm.publisher()
    others = [node_id for node_id in farm.services if node_id != first]
    begun = len(farm.calls)
    await farm.lead(first if leads else others[0])
    assert farm.nodes.replica(first).is_leader is leads
    index = farm.nodes.replica(first).applied_index
    await farm.nodes.stop(first)
    second = farm.fold(others[0]).publisher
    assert farm.calls[begun:] == [(first, "retire"), (second, "publish"), (first, "announce")]
    statuses = farm.statuses(first, index, of=others[0])  # perhaps also one in turn
    told, released = (
        next(each for each in order if "draining" in each["config"]) for order in (statuses, statuses[::-1])
    )
    assert told["config"]["draining"] is released["config"]["draining"] is True
    assert told["sequence"] < released["sequence"]
    assert told["meta"]["publishConfig"] == "off"
    assert "publishing" not in told["meta"]
    assert "publishing" not in released["meta"]
    await wait_until(lambda: farm.nodes.replica(others[0]).leader_id in others)


async def test_drained_node_stays_up_and_takes_part_again_when_it_is_told_to(farm: ServiceFarm) -> None:
    first = await farm.publisher()
    node = farm.nodes.node(first)
    assert not node.draining.report()["safe"]
    await node.draining.set(True)
    second = await farm.publisher(other_than=first)
    await wait_until(lambda: node.draining.report()["safe"])
    assert node.draining.report() == {"drained": True, "safe": True, "holds": []}
    assert not farm.nodes.replica(first).is_leader
    # Of three, one is enough to be drained: another one more would leave no majority.
    await farm.nodes.node(second).draining.set(True)
    await wait_until(lambda: farm.fold(first).is_draining(second))
    assert any("majority" in held for held in node.draining.report()["holds"])
    await farm.nodes.node(second).draining.set(False)
    await node.draining.set(False)
    await wait_until(lambda: not (farm.fold().is_draining(first) or farm.fold().is_draining(second)))
    await wait_until(lambda: len(farm.fold().eligible()) == 3)


async def test_mark_outlasts_a_restart(farm: ServiceFarm) -> None:
    first = await farm.publisher()
    await farm.nodes.node(first).draining.set(True)
    second = await farm.publisher(other_than=first)
    await farm.nodes.stop(first)
    index = farm.nodes.replica(second).applied_index
    await farm.nodes.start(first)
    assert farm.nodes.node(first).draining.is_drained
    await wait_until(lambda: farm.statuses(first, index, of=second))
    assert all(status["config"]["draining"] for status in farm.statuses(first, index, of=second))
    await farm.override(first, "on")
    await wait_until(lambda: farm.fold(second).mode(first) == "on")
    assert farm.fold(second).publisher == second


async def test_nodes_that_stop_at_once_do_not_wait_for_each_other(farm: ServiceFarm) -> None:
    await farm.publisher()
    await farm.nodes.stop()
    assert all(service.order is None for service in farm.services.values())


async def test_last_one_that_can_publish_goes_on_though_it_is_drained(farm: ServiceFarm) -> None:
    first = await farm.publisher()
    for other in farm.services.keys() - {first}:
        farm.services[other].kill_router()
    await wait_until(lambda: farm.fold(first).eligible() == [first])
    node = farm.nodes.node(first)
    await node.draining.set(True)
    await wait_until(lambda: farm.fold(first).is_draining(first))
    assert farm.services[first].order is not None
    assert farm.fold(first).publisher == first
    assert "it publishes, and no other member can" in node.draining.report()["holds"][0]


async def test_node_without_a_successor_ends_at_its_bound_and_gives_the_role_back(farm: ServiceFarm) -> None:
    first = await farm.publisher()
    farm.nodes.environ["GARLICFARM_NODE__SHUTDOWN_TIMEOUT_S"] = "4"
    await farm.nodes.stop(first)
    await farm.nodes.start(first)
    others = sorted(farm.services.keys() - {first})
    await wait_until(lambda: farm.fold(first).newest(first)[1].meta.publishing is not None)
    for other in others:
        farm.services[other].kill_router()
    assert await farm.publisher() == first
    begun = len(farm.calls)
    await farm.nodes.stop(first)
    assert farm.calls[begun:] == [(first, "retire")]
    await wait_until(lambda: all(first not in farm.fold(other).holders for other in others))
