"""The lab's web site moves to another node when the router that serves it is killed: its client follows."""

from __future__ import annotations

import re
import sys

from tests.i2p.script import output_of, over_i2p

TIMEOUT_S = 400

pytestmark = over_i2p(TIMEOUT_S)


def test_site_is_served_by_another_node_after_its_router_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-m", "garlicfarm", "lab", "--until", "moved"]
    printed = output_of(command, TIMEOUT_S)
    told = re.fullmatch(
        r"leader [123], publisher [123]\n"
        r"node ([123]) serves the site; its router is killed\n"
        r"node ([123]) serves it \d+ s later\n",
        printed,
    )
    assert told is not None, printed
    assert told[1] != told[2]
    assert list(tmp_path.iterdir()) == []
