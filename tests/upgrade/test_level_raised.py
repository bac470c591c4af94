"""A farm that was upgraded is raised: from then on 0.2.0 refuses its stores, and says so without harm."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import trio

from garlicfarm.levels import HIGHEST
from garlicfarm.storage.segments import list_segments
from tests.crash.crash_checks import FARM
from tests.running import wait_until
from tests.upgrade.programs import TREE, Program
from tests.upgrade.upgrade_farm import DEADLINE_S, STEADY, row, upgrade_farm

pytestmark = [pytest.mark.upgrade, pytest.mark.history, pytest.mark.timeout(900)]

NEWER = "has format version 5, this program, garlicfarm 0.2.0, knows 4. Nothing was changed; use the version"


async def test_raised_farm_refuses_0_2_0_and_continues_with_this_tree(
    baseline: Program, tmp_path: Path
) -> None:
    with trio.fail_after(DEADLINE_S):
        async with upgrade_farm(tmp_path, 3, baseline) as farm:
            async with farm.judged():
                await farm.roll(TREE)
                await farm.raise_level()
                for node_id in farm.farm.nodes:
                    await farm.when(
                        node_id, "it was not raised", lambda said: said["level"]["in_force"] == HIGHEST
                    )
                leader = await farm.who_leads()
                back = next(node_id for node_id in farm.farm.nodes if node_id != leader)
                await farm.stop(back)
                error = await farm.refusal(back, baseline)
                assert error is not None
                assert NEWER in error
                await farm.continues(back, TREE)
                async with farm.farm.nodes[back].client() as client:
                    policy = await client.policy(FARM)
                assert policy["orders"][f"level {HIGHEST}"]["by"] == "local"
            assert farm.figures["linearizable reads"] > 0


async def test_member_that_missed_the_raise_and_starts_0_2_0_is_named_until_it_is_upgraded(
    baseline: Program, tmp_path: Path
) -> None:
    with trio.fail_after(DEADLINE_S):
        async with upgrade_farm(tmp_path, 3, baseline, raft=STEADY) as farm:
            await farm.begin(TREE)
            first, _, third = farm.farm.nodes
            await farm.lead(first)
            await farm.raise_without(HIGHEST, third)
            farm.choose(third, baseline)
            await farm.start([third])
            status = await farm.when(first, "it has no trouble", lambda said: row(said, third)["trouble"])
            assert re.fullmatch(
                f"member {third} runs .*garlicfarm 0.2.*, and the farm is at level {HIGHEST}: upgrade it",
                row(status, third)["trouble"],
            )
            assert await farm.who_leads() == first
            await farm.until("nothing was committed", farm.post_fresh)
            await farm.stop(third)
            await farm.continues(third, TREE)
            await farm.when(first, "it has trouble", lambda said: not row(said, third)["trouble"])


@pytest.mark.parametrize("moment", ["asked", "leader writes", "follower writes"])
async def test_members_killed_while_the_level_rises_keep_usable_stores(
    moment: str, baseline: Program, tmp_path: Path
) -> None:
    with trio.fail_after(DEADLINE_S):
        async with upgrade_farm(tmp_path, 3, baseline) as farm:
            await farm.begin(TREE)
            leader = await farm.who_leads()
            await farm.when(leader, "others are missing", lambda said: not said["level"]["hindered_by"])
            writer = leader if moment != "follower writes" else leader % 3 + 1
            segments = farm.farm.nodes[writer].directory / "data" / "farms" / FARM / "log"
            before = len(list_segments(segments))
            asked = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(farm.ask_to_raise, HIGHEST, asked.set)
                await asked.wait()
                if moment != "asked":
                    await wait_until(lambda: len(list_segments(segments)) > before, every_s=0.0001)
                farm.signal(signal.SIGKILL, farm.farm.nodes)
            for node_id in farm.farm.nodes:
                await farm.farm.kill(node_id)  # which notes that it is down
                error = await farm.refusal(node_id, baseline)
                assert error is None or NEWER in error
                await farm.farm.kill(node_id)
            await farm.begin(TREE)
            await farm.raise_level()
