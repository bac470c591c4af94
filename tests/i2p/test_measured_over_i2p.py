"""Remote sensing through real routers (make test-i2p)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600

pytestmark = [
    pytest.mark.i2p,
    pytest.mark.i2pd,
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(TIMEOUT_S + 30),
]


def test_leaf_of_another_router_is_measured_as_it_is(tmp_path: Path) -> None:
    command = ["unshare", "--map-root-user", "--net", sys.executable, "-m", "tests.i2p.measured_over_i2p"]
    ended = subprocess.run(
        [*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told: dict[str, dict[str, Any]] = {}
    for line in ended.stdout.splitlines():
        facts = json.loads(line)
        told[facts["what"]] = facts
    for reached in ("reached", "reached again"):
        assert told[reached]["ok"]
        assert told[reached]["fetched_ms"] <= told[reached]["ms"]
    # Floodfills still have the LeaseSet, so a look-up alone would find the service of a dead router.
    for silent in ("service down", "router dead"):
        assert told[silent]["fetched_ms"] is not None
        assert not told[silent]["ok"]
    assert told["never published"]["fetched_ms"] is None
    assert not told["never published"]["ok"]
    assert told["streams"]["counts"] == [None, 0, 1, 2]
