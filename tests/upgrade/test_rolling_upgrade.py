"""A farm is upgraded node by node while it serves, and taken back on the same stores; nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from garlicfarm.cli.exits import Exit
from tests.crash.crash_checks import leaves
from tests.upgrade.future import Edits, edited_copy
from tests.upgrade.programs import TREE, Program
from tests.upgrade.upgrade_farm import DEADLINE_S, SNAPSHOT_EVERY, UpgradeFarm, upgrade_farm

pytestmark = [pytest.mark.upgrade, pytest.mark.history, pytest.mark.timeout(900)]


async def there_and_back(tmp_path: Path, nodes: int, before: Program, after: Program) -> dict[str, float]:
    """Upgrade a farm and take it back, under load and kills; what was seen of it, in figures."""
    with trio.fail_after(DEADLINE_S):
        async with upgrade_farm(tmp_path, nodes, before, seed=nodes) as farm:
            async with farm.judged():
                await farm.roll(after)
                await farm.roll(before)
            return farm.figures


@pytest.mark.parametrize("nodes", [3, 5])
async def test_farm_rolled_to_this_tree_and_back_keeps_every_promise(
    nodes: int, baseline: Program, tmp_path: Path
) -> None:
    figures = await there_and_back(tmp_path, nodes, baseline, TREE)
    assert figures["linearizable reads"] > 0
    assert figures["publishers"] >= 3


@pytest.mark.parametrize(
    ("edits", "sentence"),
    [
        (
            {"garlicfarm/publishing/fold.py": {"_MAX_NOTE_AUTHORS = 1024": "_MAX_NOTE_AUTHORS = 4"}},
            f"with {TREE.version} served another state at index",
        ),
        (
            {"garlicfarm/storage/appender.py": {"level = max(log.level,": "level = max(1, log.level,"}},
            "has format version 5, this program, garlicfarm 0.2.0, knows 4",
        ),
    ],
    ids=["folds-otherwise", "writes-the-next-format-at-once"],
)
async def test_roll_to_a_program_with_a_mistake_finds_it(
    edits: Edits, sentence: str, baseline: Program, tmp_path: Path
) -> None:
    mistaken = edited_copy(tmp_path / "mistaken", edits)
    with pytest.raises(ExceptionGroup) as raised:
        await there_and_back(tmp_path, 3, baseline, mistaken)
    assert [str(error) for error in leaves(raised.value) if sentence not in str(error)] == []


async def next_to_upgrade(farm: UpgradeFarm) -> int | None:
    """Do what `node upgrade-check` says until it names a member that may be stopped now, 0 once there is
    none left; None: it says to wait."""
    leader = await farm.who_leads()
    config = farm.farm.nodes[leader].directory / "garlicfarm.toml"
    done = await TREE.run("node", "upgrade-check", "--config", config, "-o", "json")
    if done.code == Exit.OK:
        found = json.loads(done.out)
        assert [row["role"] for row in found["members"] if row["id"] == found["next"]] in ([], ["follower"])
        return int(found["next"] or 0)
    if "garlicfarm leader stepdown" in done.out:
        await farm.command(leader, "leader", "stepdown")
    return None


async def test_farm_is_upgraded_as_upgrade_check_says(baseline: Program, tmp_path: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with upgrade_farm(tmp_path, 3, baseline) as farm, farm.judged():
            upgraded = []
            while node_id := await farm.until("no node was safe to stop", lambda: next_to_upgrade(farm)):
                await farm.stop(node_id)
                await farm.continues(node_id, TREE)
                upgraded.append(node_id)
            assert sorted(upgraded) == sorted(farm.farm.nodes)


async def test_snapshots_pass_between_the_programs_both_ways(baseline: Program, tmp_path: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with upgrade_farm(tmp_path, 3, baseline, keep_entries=1) as farm:
            await farm.begin(baseline)
            first, second, third = farm.farm.nodes
            for sender, receiver in ((TREE, baseline), (baseline, TREE)):
                await farm.exchange(first, sender)
                await farm.exchange(second, sender)
                await farm.stop(third)
                for _ in range(2 * SNAPSHOT_EVERY):
                    await farm.until("nothing was committed", farm.post_fresh)
                await farm.continues(third, receiver)
                await farm.until("no snapshot came", lambda: farm.logged(third, "event=snapshot-restored"))
                _, states = await farm.settle()
                assert len({*states.values()}) == 1
