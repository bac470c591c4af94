"""Services of other programs at real routers (make test-i2p)."""

from __future__ import annotations

from pathlib import Path

from tests.i2p.moved_in_over_i2p import CASES
from tests.i2p.script import over_i2p, run_script

TIMEOUT_S = 660

pytestmark = over_i2p(TIMEOUT_S + 30)


def test_services_of_each_signing_type_are_fetched(tmp_path: Path) -> None:
    told = run_script("moved_in_over_i2p", tmp_path, timeout_s=TIMEOUT_S)
    assert [(each["plugin"], each["type"], each["form"]) for each in told] == list(CASES)
