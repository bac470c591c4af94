"""What a publisher finds of its own destination, through real routers (make test-i2p)."""

from __future__ import annotations

from pathlib import Path

from tests.i2p.script import over_i2p, run_script

TIMEOUT_S = 600

pytestmark = over_i2p(TIMEOUT_S + 30)


def test_stranger_finds_nobody_then_the_publisher_then_who_has_the_same_keys(tmp_path: Path) -> None:
    reported = run_script("own_look_up_over_i2p", tmp_path, timeout_s=TIMEOUT_S)
    told = {facts["what"]: facts for facts in reported}
    assert told["nobody publishes"]["seen"] == [False, False]
    assert told["published"]["seen"] == [True, True]
    assert [*told["published"]["asked"]] == ["1"]
    assert told["elsewhere"]["seen"] == [True, False]
    assert told["elsewhere"]["asked"]
