"""Remote sensing leaves the router that it asks alive (make test-i2p)."""

from __future__ import annotations

from pathlib import Path

from tests.i2p.script import over_i2p, run_script

TIMEOUT_S = 600

pytestmark = over_i2p(TIMEOUT_S + 30)


def test_router_outlives_many_measurements(tmp_path: Path) -> None:
    (told,) = run_script("measure_many", tmp_path, "10", timeout_s=TIMEOUT_S)
    assert told["is_running"]
    assert told["reached"] >= 10
