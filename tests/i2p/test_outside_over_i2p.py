"""What is seen from outside, through real routers (make test-i2p)."""

from __future__ import annotations

from pathlib import Path

from tests.i2p.script import over_i2p, run_script

TIMEOUT_S = 600

pytestmark = over_i2p(TIMEOUT_S + 30)


def test_standby_asks_the_network_for_the_service_that_its_own_router_has(tmp_path: Path) -> None:
    told = {facts["what"]: facts for facts in run_script("outside_over_i2p", tmp_path, timeout_s=TIMEOUT_S)}
    assert told["measures"]["asks_network"]
    assert told["nobody publishes"] == {"what": "nobody publishes", "ok": False, "asked": {}}
    assert [*told["published"]["asked"]] == ["2"]
    assert told["control"]["is_reached"]
    assert told["gone"]["asked_standby"] == 0
