"""ML-KEM is offered where the router has it, and nowhere else, over a private network of real routers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from garlicfarm.lab.i2pd import i2pd_program
from tests.i2p.script import over_i2p, run_script

pytestmark = over_i2p(400)


def has_ml_kem() -> bool:
    """Whether the program that runs as routers was built with it, by what it says of itself."""
    text = subprocess.run([i2pd_program(), "--version"], capture_output=True, text=True, check=True).stdout
    numbers = re.search(r"version (\d+)\.(\d+).*OpenSSL (\d+)\.(\d+)", text, re.DOTALL)
    assert numbers is not None, text
    major, minor, *openssl = map(int, numbers.groups())
    return (major, minor) >= (2, 58) and tuple(openssl) >= (3, 5)


def test_service_offers_ml_kem_where_its_router_has_it(tmp_path: Path) -> None:
    told = {each.pop("what"): each for each in run_script("ml_kem_over_i2p", tmp_path, timeout_s=380)}
    text = "ML-KEM-768 with X25519, or X25519" if has_ml_kem() else "X25519"
    assert told == {"encryption": {"text": text}, "client": {"text": "site"}}
