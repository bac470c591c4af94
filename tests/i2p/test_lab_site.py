"""The lab's web site moves to another node when the router that serves it is killed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 400

pytestmark = [
    pytest.mark.i2p,
    pytest.mark.i2pd,
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(TIMEOUT_S),
]


def test_site_is_served_by_another_node_after_its_router_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-m", "garlicfarm", "lab", "--until", "moved"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = re.fullmatch(
        r"leader [123], publisher [123]\n"
        r"node ([123]) serves the site; its router is killed\n"
        r"node ([123]) serves a newcomer, \d+ s later\n",
        ended.stdout,
    )
    assert told is not None, ended.stdout
    assert told[1] != told[2]
    assert list(tmp_path.iterdir()) == []
