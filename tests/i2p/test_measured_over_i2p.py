"""Remote sensing through real routers (make test-i2p)."""

from __future__ import annotations

from pathlib import Path

from tests.i2p.script import over_i2p, run_script

TIMEOUT_S = 600

pytestmark = over_i2p(TIMEOUT_S + 30)


def test_leaf_of_another_router_is_measured_as_it_is(tmp_path: Path) -> None:
    reported = run_script("measured_over_i2p", tmp_path, timeout_s=TIMEOUT_S)
    told = {facts["what"]: facts for facts in reported}
    for reached in ("reached", "reached again"):
        assert told[reached]["ok"]
        assert told[reached]["fetched_ms"] <= told[reached]["ms"]
    assert told["many"]["is_running"]
    # Floodfills still have the LeaseSet, so a look-up alone would find the service of a dead router.
    for silent in ("service down", "router dead"):
        assert told[silent]["fetched_ms"] is not None
        assert not told[silent]["ok"]
    assert told["never published"]["fetched_ms"] is None
    assert not told["never published"]["ok"]
    assert told["streams"]["counts"] == [None, 0, 1, 2]
