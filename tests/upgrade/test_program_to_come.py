"""A release to come joins a farm of this tree and waits for all members; one that stays behind is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from garlicfarm.errors import EntryRefused
from tests.upgrade.future import FUTURE_LEVEL, program_to_come
from tests.upgrade.programs import TREE
from tests.upgrade.upgrade_farm import DEADLINE_S, STEADY, row, upgrade_farm

pytestmark = [pytest.mark.upgrade, pytest.mark.timeout(900)]

MARK = {"text": "here we were"}


async def test_farm_waits_for_all_members_before_it_follows_a_program_to_come(tmp_path: Path) -> None:
    future = program_to_come(tmp_path / "future")
    with trio.fail_after(DEADLINE_S):
        async with upgrade_farm(tmp_path, 3, TREE, raft=STEADY) as farm:
            await farm.begin(TREE)
            first, second, third = farm.farm.nodes
            await farm.exchange(first, future)
            await farm.lead(first)
            done = await farm.command(first, "farm", "level", "raise", "--yes", FUTURE_LEVEL)
            assert done.code
            for node_id in (second, third):
                assert f"member {node_id} runs garlicfarm {TREE.version}" in done.err
            assert f"member {first} runs" not in done.err
            with pytest.raises(EntryRefused, match="unknown action"):
                await farm.order("mark", MARK)
            await farm.exchange(second, future)
            await farm.exchange(third, future)

            # The third does not learn that the level is raised: it stands still, and then is gone.
            await farm.lead(first)
            await farm.raise_without(FUTURE_LEVEL, third)
            assert await farm.order("mark", MARK) is not None
            farm.choose(third, TREE)
            await farm.start([third])
            status = await farm.when(first, "it has no trouble", lambda said: row(said, third)["trouble"])
            told = row(status, third)
            assert f"member {third} runs garlicfarm {TREE.version}" in told["trouble"]
            assert f"the farm is at level {FUTURE_LEVEL}" in told["trouble"]
            assert "upgrade" in told["trouble"]
            assert told["trouble_since_ms"] > 0
            assert status["fault_tolerance"] == 0
            await farm.until("the leader does not log it", lambda: farm.logged(first, "event=cannot-follow"))
            told_level = f"the farm is at level {FUTURE_LEVEL}"
            await farm.until("it does not say why", lambda: farm.logged(third, told_level))
            await farm.stop(third)
            await farm.continues(third, future)
            await farm.when(first, "it has trouble", lambda said: not row(said, third)["trouble"])

            await farm.stop(third)
            error = await farm.refusal(third, TREE)
            assert error is not None
            assert f"level {FUTURE_LEVEL}" in error
            await farm.continues(third, future)
