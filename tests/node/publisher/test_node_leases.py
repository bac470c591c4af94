"""Leases on heartbeats in real nodes (D24): a dead publisher is replaced without a status in its turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.support.service_farm import ServiceFarm, service_farm
from tests.running import wait_until


async def _killed(farm: ServiceFarm, *, leads: bool) -> tuple[int, int]:
    """Kill the publisher, and wait for the next one; both."""
    first = await farm.publisher()
    if leads:
        await farm.lead(first)
    elif await farm.nodes.leader() == first:
        await farm.lead(next(node_id for node_id in farm.services if node_id != first))
    await farm.kill(first)
    rest = sorted(farm.nodes.running)
    await wait_until(lambda: any(farm.services[node_id].order for node_id in rest))
    (second,) = (node_id for node_id in rest if farm.services[node_id].order)
    return first, second


@pytest.mark.parametrize("leads", [False, True])
async def test_publisher_that_is_killed_is_found_lost_and_replaced(
    leads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service_farm(tmp_path, monkeypatch, lease_ms=1_000, interval_ms=600_000) as farm:
        first, second = await _killed(farm, leads=leads)
        (lost,) = farm.entries(second, "lost")
        assert lost["member"] == first
        assert farm.fold(second).is_lost(first)
        assert farm.calls[-1] == (second, "publish")
        assert (first, "retire") not in farm.calls
        # Its next process offers itself again, and is not named meanwhile.
        farm.services[first].is_dead = False
        await farm.nodes.start(first)
        await wait_until(lambda: not farm.fold(second).is_lost(first))
        assert farm.fold(second).publisher == second


@pytest.mark.parametrize("has_tunnels", [True, False])
async def test_next_process_of_a_publisher_releases_what_the_killed_one_held(
    has_tunnels: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its lease, of ten minutes, is over, and whether or not it gets ready itself."""
    async with service_farm(tmp_path, monkeypatch, lease_ms=600_000, interval_ms=600_000) as farm:
        first = await farm.publisher()
        await farm.kill(first)
        if not has_tunnels:
            farm.without_tunnels.add(first)
        begun = len(farm.calls)
        await farm.nodes.start(first)
        await wait_until(lambda: any(call == "publish" for _, call in farm.calls[begun:]))
        (at,) = {node_id for node_id, call in farm.calls[begun:] if call == "publish"}
        assert farm.fold(at).publisher == at
        assert has_tunnels or at != first
        assert farm.fold(at).boot(first) == 2
        assert farm.entries(at, "lost") == []
