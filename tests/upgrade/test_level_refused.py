"""A level that cannot be raised yet, or was raised already, and nodes that cannot follow the farm's."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from garlicfarm.credentials.users import LOCAL_USER
from garlicfarm.lab.processes import NodeProcess, free_ports
from garlicfarm.levels import HIGHEST, LOWEST
from garlicfarm.publishing.documents import StatusDocument
from garlicfarm.publishing.entries import encode_status
from tests.crash.crash_checks import FARM
from tests.upgrade.programs import TREE, Done, Program
from tests.upgrade.upgrade_farm import DEADLINE_S, STEADY, UpgradeFarm, row, upgrade_farm

pytestmark = [pytest.mark.upgrade, pytest.mark.history, pytest.mark.timeout(900)]


async def refused(farm: UpgradeFarm, node_id: int, *words: str) -> str:
    """Ask a node to raise the level: it does not, and says these words, in one line. Returns that."""
    done = await farm.command(node_id, "farm", "level", "raise", "--yes", HIGHEST)
    assert done.code
    return error_of(done, *words)


def error_of(done: Done, *words: str) -> str:
    """The one line that a command has written."""
    [line] = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert [word for word in words if word not in line] == [], line
    return line


async def token(farm: UpgradeFarm, node_id: int, file: Path) -> Path:
    """A token with which a node joins, in a new file."""
    done = await farm.command(node_id, "member", "token", "--out", file)
    assert done.code == 0, done.err
    return file


async def join(program: Program, token: Path, directory: Path) -> Done:
    """Join with a new node in ``directory``."""
    [port] = free_ports(1)
    where = ("--endpoint", f"ssl://127.0.0.1:{port}", "--admin-url", "https://127.0.0.1:0")
    return await program.run("node", "join", directory, "--token-file", token, *where)


async def fill(farm: UpgradeFarm, node_id: int) -> None:
    """Let the log have some MB, so that bringing in a new member takes a moment."""
    note = StatusDocument(FARM, 1, 0, config={"by": LOCAL_USER, "text": "x" * 20_000})
    async with farm.farm.nodes[node_id].client() as client:
        for _ in range(10):
            await client.post_batch(FARM, [encode_status(note)] * 40)


async def test_level_is_not_raised_before_all_members_can_and_are_there(
    baseline: Program, tmp_path: Path
) -> None:
    with trio.fail_after(DEADLINE_S):
        async with upgrade_farm(tmp_path, 3, baseline, raft=STEADY) as farm:
            await farm.begin(baseline)
            first, second, third = farm.farm.nodes
            await farm.exchange(first, TREE)
            await farm.lead(second)
            await refused(farm, first)  # 0.2.0 leads, which has no levels
            await farm.lead(first)
            said = await refused(farm, first, f"member {second} runs", f"member {third} runs", "upgrade it")
            assert f"member {first} runs" not in said
            await farm.exchange(second, TREE)
            await farm.lead(first)
            said = await refused(farm, first, f"member {third} runs", "upgrade it")
            assert f"member {second} runs" not in said
            await farm.exchange(third, TREE)
            await farm.lead(first)
            await farm.stop(third)
            await farm.when(first, "it is connected", lambda said: row(said, third)["role"] == "unreachable")
            await refused(farm, first, f"member {third} is not connected")
            status = await farm.when(first, "it does not answer", lambda _: True)
            assert (status["level"]["in_force"], status["level"]["highest"]) == (LOWEST, HIGHEST)
            assert [f"member {third} is not" in each for each in status["level"]["hindered_by"]] == [True]
            await farm.continues(third, TREE)
            await farm.raise_level()
            done = await farm.command(await farm.who_leads(), "farm", "level", "raise", "--yes")
            assert done.code == 0
            assert f"is at level {HIGHEST} already" in done.err


async def test_level_raised_twice_at_once_and_beside_a_join_is_raised_once(
    baseline: Program, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    with trio.fail_after(DEADLINE_S):
        async with upgrade_farm(tmp_path, 3, baseline, raft=STEADY) as farm:
            await farm.begin(baseline)
            for node_id in farm.farm.nodes:
                await farm.exchange(node_id, TREE)
            leader = await farm.who_leads()
            await fill(farm, leader)
            file = await token(farm, leader, tmp_path / "token")
            joined: list[Done] = []

            async def join_beside() -> None:
                joined.append(await join(TREE, file, new))

            async def joins() -> bool | None:
                members = await farm.ask(farm.farm.nodes[leader], lambda client: client.members(FARM))
                return (members is not None and bool(members["joining"] or joined)) or None

            async with trio.open_nursery() as nursery:
                nursery.start_soon(join_beside)
                await farm.until("it did not join", joins)
                for _ in range(2):
                    nursery.start_soon(farm.ask_to_raise, HIGHEST, lambda: None)
            [done] = joined
            assert done.code == 0, done.err
            farm.farm.nodes[4] = NodeProcess(4, new)
            await farm.continues(4, TREE)
            await farm.raise_level()
            for node_id in farm.farm.nodes:
                await farm.when(
                    node_id, "it was not raised", lambda said: said["level"]["in_force"] == HIGHEST
                )


async def test_0_2_0_that_would_join_a_raised_farm_is_refused_and_leaves_nothing(
    baseline: Program, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    with trio.fail_after(DEADLINE_S):
        async with upgrade_farm(tmp_path, 3, baseline, raft=STEADY) as farm:
            await farm.begin(TREE)
            old = await token(farm, 1, tmp_path / "old-token")
            await farm.raise_level()
            for file in (old, await token(farm, 1, tmp_path / "new-token")):
                done = await join(baseline, file, new)
                assert done.code
                error_of(done)
                assert not new.exists()
            done = await join(TREE, old, new)
            assert done.code == 0, done.err
