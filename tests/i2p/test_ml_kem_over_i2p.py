"""ML-KEM is offered where the router has it, and nowhere else, over a private network of real routers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from garlicfarm.i2p.lease_set import ML_KEM_768, X25519
from garlicfarm.lab.i2pd_files import i2pd_program
from garlicfarm_plugin_i2cp.ml_kem import PROBE_S
from tests.i2p.script import over_i2p, run_script

TIMEOUT_S = 1300
LOST = 3
"""Requests of a client, which asks each second, at an orderly move."""

pytestmark = over_i2p(TIMEOUT_S + 30)


def versions() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the program that runs as routers, and of its OpenSSL, by what it says of itself."""
    text = subprocess.run([i2pd_program(), "--version"], capture_output=True, text=True, check=True).stdout
    numbers = re.search(r"version (\d+)\.(\d+).*OpenSSL (\d+)\.(\d+)", text, re.DOTALL)
    assert numbers is not None, text
    major, minor, *openssl = map(int, numbers.groups())
    return (major, minor), tuple(openssl)


def ml_kem_was_used_where_it_is_there(directory: Path, *, hops: int) -> None:
    i2pd, openssl = versions()
    is_tried, has_it = i2pd >= (2, 58), i2pd >= (2, 58) and openssl >= (3, 5)
    wait_s = 200 if has_it else PROBE_S + 30 if is_tried else 0
    found = run_script("ml_kem_over_i2p", directory, str(wait_s), str(hops), timeout_s=TIMEOUT_S)
    told = {each["what"]: each for each in found}
    assert told["standby"]["counts"] == [0, 0, 0]
    assert told["elected"]["encryption"] == ("ML-KEM-768 with X25519, or X25519" if has_it else "X25519")
    if not is_tried:
        return
    for what in ("moved", "moved again"):
        assert told[what]["encryption"] == told["elected"]["encryption"]
        assert max(told[what]["lost"]) <= LOST
    for what in ("elected", "moved"):
        assert told[what]["chosen"] == [[ML_KEM_768 if has_it else X25519], [X25519]]


def test_service_offers_ml_kem_where_its_router_has_it(tmp_path: Path) -> None:
    ml_kem_was_used_where_it_is_there(tmp_path, hops=0)
