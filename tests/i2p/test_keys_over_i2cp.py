"""New keys of a service over I2CP, through real routers (make test-i2p)."""

from __future__ import annotations

from pathlib import Path

from tests.i2p.script import over_i2p, run_script

TIMEOUT_S = 700

pytestmark = over_i2p(TIMEOUT_S + 30)


def test_new_bundles_are_used_without_a_restart_and_an_orderly_move_loses_at_most_one_request(
    tmp_path: Path,
) -> None:
    told = {facts["what"]: facts for facts in run_script("keys_over_i2cp", tmp_path, timeout_s=TIMEOUT_S)}
    assert told["unpublished"]["counts"] == [0, 0, 0]
    assert told["standby"] == {"what": "standby", "is_ready": True, "is_new": True}
    assert "holds new keys" in told["moved"]["problems"][0]
    assert told["moved"]["text"] == "node 2"
    assert told["moved"]["lost"] <= 1
    assert told["back"]["is_new"]
    assert told["back"]["text"] == "node 1"
    assert told["alone"]["is_new"]
    assert told["alone"]["is_ready"]
