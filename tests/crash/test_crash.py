"""Short forms of the crash test: kills, power cuts, and a node that acknowledges before it syncs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0  # ends what hangs; three nodes and a client on a busy machine take their time


async def run(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.crash.run", *arguments]
    with trio.fail_after(DEADLINE_S):
        done = await trio.run_process(
            command,
            cwd=ROOT,
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    return done.returncode, done.stdout.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("log", "3", "300"), ("publisher", "3", "50")], ids=["log", "publisher"]
)
async def test_crash_short(arguments: tuple[str, str, str]) -> None:
    phase, kills, acks = arguments
    code, output = await run("--phase", phase, "--kills", kills, "--acks", acks)
    assert code == 0, output
    assert "all promises were kept" in output


@pytest.mark.slow
@pytest.mark.fuse
async def test_power_loss_keeps_acknowledged() -> None:
    code, output = await run("--phase", "power", "--kills", "2", "--acks", "300")
    assert code == 0, output
    assert "2 power cuts" in output


@pytest.mark.slow
@pytest.mark.fuse
async def test_power_loss_mutant_is_caught() -> None:
    code, output = await run("--phase", "power", "--mutant", "unsynced", "--kills", "1", "--acks", "0")
    assert code == 1, output
    assert "acknowledged entries are missing" in output
