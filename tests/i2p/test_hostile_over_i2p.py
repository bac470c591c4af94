"""A service under attack, on a private network of real routers (make test-i2p)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.i2p.hostile_over_i2p import ATTACKS, DEADLINE_S
from tests.i2p.script import over_i2p, run_script

ANSWERED_AT_LEAST = 0.95

pytestmark = over_i2p(DEADLINE_S + 60)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    told = run_script("hostile_over_i2p", tmp_path_factory.mktemp("hostile"), timeout_s=DEADLINE_S)
    return {each.pop("what"): each for each in told}


@pytest.mark.parametrize("attack", ATTACKS)
def test_honest_clients_are_served_during_an_attack(told: dict[str, dict[str, Any]], attack: str) -> None:
    """Those that were served before, and those that come for the first time, near and far."""
    shares = {who: clients["answered"] for who, clients in told[attack]["clients"].items()}
    assert len(shares) == 4
    assert min(shares.values()) >= ANSWERED_AT_LEAST, shares
