"""The Meta LeaseSet over I2CP, on a private network of real routers (make test-i2p)."""

from __future__ import annotations

from typing import Any

from tests.i2p.script import over_i2p, run_script

pytestmark = over_i2p(480)


def test_floodfills_store_each_newer_meta_lease_set_and_the_session_outlives_its_router(tmp_path):
    """A floodfill checks the signature before it stores, the offline one of a bundle, too."""
    told = run_script("meta_over_i2cp", tmp_path / "routers", timeout_s=450)
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
