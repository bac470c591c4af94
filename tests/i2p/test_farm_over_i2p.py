"""A farm over a private I2P network of real routers (make test-i2p)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("farm_over_i2p.py")
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 660


@pytest.mark.i2p
@pytest.mark.i2pd
@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 30)
def test_farm_over_real_routers_lives_through_a_join_deaths_and_leader_changes(tmp_path: Path) -> None:
    command = [
        "unshare",
        "--map-root-user",
        "--net",
        "env",
        f"PYTHONPATH={ROOT}",
        sys.executable,
        str(SCRIPT),
    ]
    ended = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [each["what"] for each in told] == [
        "routers",
        "election",
        "replication",
        "publisher",
        "join",
        "restart",
        "hand-over",
        "leader-change",
    ]
    last = told[-1]
    assert last["leader"] != told[-2]["leader"] != told[1]["leader"]
    assert last["term"] > told[-2]["term"] > told[1]["term"]
