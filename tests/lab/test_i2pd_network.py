"""What plans make of the routers of a private network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("i2pd_network_script.py")
HELLO = "HELLO REPLY RESULT=OK VERSION=3.1"


@pytest.mark.i2pd
@pytest.mark.netns
@pytest.mark.slow
def test_routers_do_what_their_plans_say_and_come_back_by_id(tmp_path: Path) -> None:
    command = ["unshare", "--map-root-user", "--net", sys.executable, str(SCRIPT), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert all(found.pop("stored"))
    assert found == {
        "ids": [1, 2, 3, 4],
        "leaves": [0, 0, 391, 0],
        "proxies": ["", "", "", "http://127.0.0.1:4447"],
        "hello": ["", "", HELLO, HELLO],
        "dead": True,
        "restarted": True,
        "running": True,
        "hello again": HELLO,
    }
