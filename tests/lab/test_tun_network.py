"""The network of hosts whose links fail on command."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("tun_network_script.py")
THERE_AND_BACK_S = 0.6


@pytest.mark.netns
@pytest.mark.tun
def test_wires_are_late_and_cut_as_they_are_told_but_for_host_0() -> None:
    command = ["unshare", "--map-root-user", "--net", sys.executable, str(SCRIPT)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["fair"] < THERE_AND_BACK_S <= found["slow"] < math.inf, found
    assert found["from host 0"] < THERE_AND_BACK_S, found
    assert found["cut"] == math.inf, found
    assert found["lost"] > 0, found
    assert found["other link down"] < THERE_AND_BACK_S, found
    assert found["link down"] == math.inf, found
    assert found["listener at host 1"] == ["the host"], found
