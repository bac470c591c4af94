"""Services at the i2pd of later Debian suites, on private networks (make i2pd SUITE=…, make test-i2p)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import i2pd_of_suite
from tests.i2p import verdicts
from tests.i2p.script import over_i2p, run_script
from tests.i2p.test_ml_kem_over_i2p import ml_kem_was_used_where_it_is_there
from tests.i2p.test_service_options import requests_were_changed

TIMEOUT_S = 1400
HOPS = ("--hops", "1")
"""Since 2.57 i2pd hangs for ever once its tests of tunnels without hops have failed twice: it replaces the
last one while it holds the lock that the new one needs."""

TRIXIE = pytest.param("trixie", marks=pytest.mark.trixie)
FORKY = pytest.param("forky", marks=pytest.mark.forky)

pytestmark = over_i2p(TIMEOUT_S + 60)
both = pytest.mark.parametrize("suite", [TRIXIE, FORKY])


@pytest.fixture(autouse=True)
def _program(suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("I2PD", str(i2pd_of_suite(suite)))


@both
def test_members_on_standby_publish_nothing_and_a_move_loses_few_requests(tmp_path: Path) -> None:
    """Their bundles are replaced meanwhile."""
    told = run_script("keys_over_i2cp", tmp_path, *HOPS, "--carriers", "2", timeout_s=TIMEOUT_S)
    verdicts.bundles_were_replaced(told, lost_at_most=3)


@both
def test_service_offers_ml_kem_where_its_router_has_it(tmp_path: Path) -> None:
    ml_kem_was_used_where_it_is_there(tmp_path, hops=1)


@both
def test_sam_publishes_at_one_router_after_another(tmp_path: Path) -> None:
    told = run_script("sam_over_i2p", tmp_path / "routers", *HOPS, timeout_s=TIMEOUT_S)
    verdicts.sam_was_fetched(told)


@both
def test_meta_lease_set_is_stored_by_all_floodfills(tmp_path: Path) -> None:
    told = run_script("meta_over_i2cp", tmp_path / "routers", *HOPS, "--carriers", "3", timeout_s=TIMEOUT_S)
    verdicts.meta_was_stored(told)


@both
def test_service_gets_the_requests_of_real_clients_as_it_asks_for_them(tmp_path: Path) -> None:
    told = run_script("service_options", tmp_path, *HOPS, "--carriers", "3", timeout_s=TIMEOUT_S)
    requests_were_changed(told)
