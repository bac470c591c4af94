"""The lab with Spark: it ends only when Spark has said what the nodes say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import trio

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm.cli.lab_rank import RankProcess
from garlicfarm.errors import GarlicFarmError
from garlicfarm.lab.processes import ProcessFarm, process_farm

pytestmark = pytest.mark.spark

HANG_S = 800.0


def test_lab_until_ranked_ends_with_equal_rankings_and_leaves_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "garlicfarm", "lab", "--until", "ranked"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(
        r"leader [123], publisher [123]\nranked by Spark as by the nodes at index \d+\n", ended.stdout
    )
    assert list(tmp_path.iterdir()) == []


async def saying(farm: ProcessFarm, log_file: Path, text: bytes) -> RankProcess:
    """A rank process that wrote ``text`` and is there still."""
    rank = RankProcess(farm, log_file)
    async with trio.open_nursery() as nursery:
        command = [
            sys.executable,
            "-c",
            f"import sys, time; print({text.decode()!r}, flush=True); time.sleep(600)",
        ]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        nursery.start_soon(rank.read, process)
        with trio.fail_after(HANG_S):
            while rank.newest is None:  # noqa: ASYNC110  (another process writes)
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    process.kill()
    await process.wait()
    return rank


async def test_lab_compares_spark_with_the_node_byte_for_byte(tmp_path: Path) -> None:
    async with process_farm(tmp_path / "farm", 1) as farm:
        (node,) = farm.nodes.values()
        index = 0
        async with node.client() as client:
            with trio.fail_after(HANG_S):
                while not index:  # else another entry has come meanwhile, as the first ones of a leader do
                    ranking = await client.ranking("farm")
                    rank = await saying(farm, tmp_path / "rank.log", msgspec.json.encode(ranking))
                    with trio.move_on_after(10):
                        index = await rank.wait_equal()
        assert index == ranking["index"]
        wrong = {**ranking, "R": 99}
        rank = await saying(farm, tmp_path / "rank.log", msgspec.json.encode(wrong))
        with (
            trio.fail_after(HANG_S),
            pytest.raises(GarlicFarmError, match="differs from that of node 1"),
        ):
            await rank.wait_equal()


async def test_lab_whose_spark_process_ends_says_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "rank.log").write_text("starting\nerror: no Java\n")
    async with process_farm(tmp_path / "farm", 1, start=False) as farm:
        rank = RankProcess(farm, tmp_path / "rank.log")
        process = await trio.lowlevel.open_process([sys.executable, "-c", ""], stdout=subprocess.PIPE)
        with trio.fail_after(HANG_S), pytest.raises(GarlicFarmError, match="ended: error: no Java"):
            await rank.read(process)
        await process.wait()
