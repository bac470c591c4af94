"""The Meta LeaseSet over I2CP, on a private network of real routers (make test-i2p)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.i2p
@pytest.mark.i2pd
@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.timeout(480)
def test_floodfills_store_each_newer_meta_lease_set_and_the_session_outlives_its_router(
    tmp_path: Path,
) -> None:
    """A floodfill checks the signature before it stores, the offline one of a bundle, too."""
    command = ["unshare", "--map-root-user", "--net", sys.executable, "-m", "tests.i2p.meta_over_i2cp"]
    ended = subprocess.run(
        [*command, str(tmp_path / "routers")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=450,
        check=False,
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [each["what"] for each in told] == [
        *("taken", "stored") * 2,
        "another",
        *("killed", "taken again", "taken", "stored"),
        *("taken", "stored", "retired"),
    ]

    def all_of(what: str) -> list[dict[str, Any]]:
        return [each for each in told if each["what"] == what]

    assert [each["counts"] for each in all_of("stored")] == [[1, 1], [2, 2], [3, 3], [4, 4]]
    (another,) = all_of("another")
    assert "refuses the session (invalid, status 3): either another client has a session" in another["error"]
    (killed,) = all_of("killed")
    assert "has closed the connection" in killed["problems"][0]
    assert all_of("retired")[0]["is_publishing"] is False
