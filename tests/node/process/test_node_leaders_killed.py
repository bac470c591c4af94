"""The publisher keeps the role and what it has published while one leader after another is killed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.errors import NoQuorum, NotLeader, ProposalDropped, UnreachableError
from garlicfarm.lab.processes import FAST, ProcessFarm, process_farm
from garlicfarm.setup.provision import FarmPlan
from tests.node.support.cluster import simulated_member

KILLS = 20
INTERVAL_MS, STALENESS = 1000, 60
"""A lease of 44 s: not how fast this machine is decides, but whether a new leader is a reason to stop."""
MARGIN = 1_000_000
"""By its score no other member takes the role: simulated routers get better and worse with time."""


@pytest.mark.slow
async def test_publisher_keeps_its_role_and_session_while_leaders_are_killed(tmp_path: Path) -> None:
    publishers = ({"plugin": "simulated"},)
    members = {node_id: simulated_member(node_id, publishers=publishers) for node_id in (1, 2, 3)}
    async with process_farm(tmp_path / "farm", members, FarmPlan(raft=FAST)) as farm:
        async with farm.nodes[1].client() as client:
            await client.administer(farm.name, "staleness", {"R": STALENESS})
            await client.administer(farm.name, "publisher", {"margin": MARGIN})
            await client.administer(farm.name, "interval", {"ms": INTERVAL_MS})
        named = await _until(farm, 1, lambda status: status["publisher"])
        publisher: int = named["publisher"]
        begun = await _until(farm, publisher, lambda status: _session(status)[1])
        terms: set[int] = set()
        for _ in range(KILLS):
            before = await _lead_elsewhere(farm, publisher)
            terms.add(before["term"])
            await farm.kill(before["leader"])
            after = await _until(farm, publisher, partial(_has_new_leader, before))
            assert after["publisher"] == publisher, after["events"]
            assert _session(after) == ("publishing", _session(begun)[1])
            await farm.start(before["leader"])
        assert len(terms) == KILLS
        log = farm.nodes[publisher].log_file.read_text()
    assert "not-publishing" not in log
    assert "publication-lost" not in log


def _session(status: dict[str, Any]) -> tuple[str, int | None]:
    """What the publisher does, and since when it publishes."""
    own = status["publishers"][0]
    return own["state"], own["since_ms"]


def _has_new_leader(before: dict[str, Any], status: dict[str, Any]) -> bool:
    """Whether another leader has committed a status: something after the Configuration of its term."""
    is_new = status["leader"] and status["term"] > before["term"]
    return bool(is_new and status["applied"] > before["last_index"] + 1)


async def _until(
    farm: ProcessFarm, node_id: int, condition: Callable[[dict[str, Any]], Any]
) -> dict[str, Any]:
    with trio.fail_after(120):
        async with farm.nodes[node_id].client() as client:
            while not condition(status := await client.status(farm.name)):  # noqa: ASYNC110 - a process
                await trio.sleep(0.1)
    return status


async def _lead_elsewhere(farm: ProcessFarm, publisher: int) -> dict[str, Any]:
    """The farm as the publisher sees it, once another member leads."""
    while True:
        status = await _until(farm, publisher, lambda status: status["leader"])
        if status["leader"] != publisher:
            return status
        try:
            async with farm.nodes[publisher].client() as client:
                await client.step_down(farm.name)
        except (NotLeader, NoQuorum, ProposalDropped, UnreachableError):
            await trio.sleep(0.1)
