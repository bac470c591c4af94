"""A farm on real routers whose publisher gets new keys while it runs, and looks itself up (make test-i2p)."""

from __future__ import annotations

from pathlib import Path

from tests.i2p.script import over_i2p, run_script

TIMEOUT_S = 600

pytestmark = over_i2p(TIMEOUT_S + 30)


def test_publisher_whose_bundle_is_replaced_hands_over_and_uses_it_without_a_restart(tmp_path: Path) -> None:
    told = {facts["what"]: facts for facts in run_script("renewed_over_i2cp", tmp_path, timeout_s=TIMEOUT_S)}
    assert told["seen"]["text"].startswith("a stranger at this router reached it in")
    assert told["moved"]["text"] == told["moved"]["by"]
    assert told["moved"]["lost"] <= 1
    assert "used" in told
