"""A router that dies moves the role at once, and a role that moves in order loses nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from garlicfarm.i2p.encoding import decode
from garlicfarm.i2p.lease_set import decode_lease_set
from tests.node.support.service_farm import KEYS, ServiceFarm, service_farm
from tests.running import wait_until


@pytest.fixture
async def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServiceFarm]:
    async with service_farm(tmp_path, monkeypatch) as farm:
        yield farm


async def test_router_that_dies_costs_two_statuses_of_its_member_and_one_of_the_next(
    farm: ServiceFarm,
) -> None:
    first = await farm.publisher()
    index = farm.nodes.replica().applied_index
    farm.services[first].kill_router()
    second = await farm.publisher(other_than=first)
    withdrawn, released = farm.statuses(first, index)
    assert "publishing" not in withdrawn["meta"]
    assert "publishing" not in released["meta"]
    assert withdrawn["config"]["node"]["applied"] < released["config"]["node"]["applied"]
    (published,) = farm.statuses(second, index)
    lease_set = decode_lease_set(decode(published["config"]["node"]["leaseSet"]))
    assert published["meta"]["publishing"] is True
    assert lease_set.destination == KEYS.destination
    assert lease_set.published_s * 1000 <= published["meta"]["lastPublishedTime"]
    # One whose router is gone has no clients left to tell.
    await wait_until(lambda: farm.services[first].serves_s == 0)
    assert (first, "announce") not in farm.calls


async def test_member_on_standby_whose_router_dies_is_not_named(farm: ServiceFarm) -> None:
    first = await farm.publisher()
    second, third = (node_id for node_id in farm.services if node_id != first)
    index = farm.nodes.replica().applied_index
    farm.services[second].kill_router()
    await wait_until(lambda: farm.statuses(second, index))
    farm.services[first].kill_router()
    assert await farm.publisher(other_than=first) == third
    (withdrawn,) = farm.statuses(second, index)
    assert "publishing" not in withdrawn["meta"]
    assert (second, "publish") not in farm.calls


async def test_role_that_moves_in_order_loses_nothing(farm: ServiceFarm) -> None:
    """The predecessor stops before the next one begins, continues to serve, and is told of it once."""
    first = await farm.publisher()
    for _ in range(2):
        first = await _move_from(farm, first)


async def _move_from(farm: ServiceFarm, first: int) -> int:
    """Move the role in order; returns its new holder."""
    begun, before = len(farm.calls), farm.services[first]
    begun_s = before.serves_s
    await farm.override(first, "off")
    second = await farm.publisher(other_than=first)
    await wait_until(lambda: (first, "announce") in farm.calls[begun:])
    assert farm.calls[begun:] == [(first, "retire"), (second, "publish"), (first, "announce")]
    assert before.successor == decode(farm.fold().report(second).lease_set)
    assert before.serves_s == farm.services[second].serves_s > begun_s
    assert before.order is None
    return second
