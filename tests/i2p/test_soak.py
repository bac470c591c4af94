"""The soak judges, skips and waits as it says; and a short form of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.crash.crash_checks import Violation
from tests.i2p import farm_over_i2p, soak

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.i2p.soak"]


def status(node: int = 1, leader: int | None = None, *errors: str | None) -> dict[str, Any]:
    members: list[dict[str, Any]] = [{"id": each, "error": None} for each in (1, 2, 3)]
    for member, error in zip((each for each in members if each["id"] != node), errors, strict=False):
        member["error"] = error
    return {"node": node, "leader": leader, "term": 7, "quorum": leader is not None, "members": members}


@pytest.mark.parametrize(("must_run", "code"), [("", 0), ("curl", 0), ("curl i2pd", 1)])
def test_soak_without_i2pd_says_so(must_run: str, code: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--must-run", must_run],
        cwd=ROOT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert "soak-i2p: skipped: i2pd: " in done.stdout
    assert "apt-get install i2pd" in done.stdout


@pytest.mark.parametrize(
    ("silent", "failures", "error"),
    [([], 0, None), ([], 1, None), ([], 2, Violation), ([(1, 3)], 1, farm_over_i2p.Unreached)],
    ids=["at-once", "after-an-echo", "never", "silent"],
)
async def test_soak_that_does_not_begin_is_its_routers_fault_only_where_they_are_silent(
    monkeypatch, silent, failures, error
):
    monkeypatch.setattr(farm_over_i2p, "silent", lambda sides: silent)
    left = [Violation("not every node reached every other one")] * failures

    async def lead() -> dict[str, Any]:
        return status(leader=1)

    async def connected(within_s: float) -> None:
        if left:
            raise left.pop()

    begun: Any = SimpleNamespace(lead=lead, connected=connected, tell=lambda *_, **__: None)
    if error is None:
        await soak.Soak.begin(begun, {})
    else:
        with pytest.raises(error):
            await soak.Soak.begin(begun, {})
    assert not left


@pytest.mark.i2p
@pytest.mark.i2pd
@pytest.mark.tun
@pytest.mark.slow
@pytest.mark.timeout(1230)
def test_soak_short() -> None:
    done = subprocess.run(
        [*COMMAND, "--acts", "delay", "--minutes", "0.5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    told = told[-4:]  # networks in which two routers never got through to each other were given up before
    assert [each["what"] for each in told] == ["election", "connected", "delay", "check"]
    assert told[2]["rtt_p50_s"] > 2.0
    assert told[3]["acknowledged"] > 0
