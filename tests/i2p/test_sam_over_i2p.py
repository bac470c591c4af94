"""The publisher plugin sam at real routers (make test-i2p)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.i2p.script import over_i2p, run_script

TIMEOUT_S = 3600

pytestmark = over_i2p(TIMEOUT_S + 60)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came about, in order."""
    return run_script("sam_over_i2p", tmp_path_factory.mktemp("sam"), timeout_s=TIMEOUT_S)


def test_service_is_fetched_from_one_publisher_after_another(told: list[dict[str, Any]]) -> None:
    assert [each["what"] for each in told] == [
        *("no-sam", "no-sam"),
        *("published", "fetched"),  # at A; fetched through C
        *("published", "fetched"),  # at B, after A has retired; D
        "killed",
        *("published", "fetched"),  # at A again; E
        "hangs",
        "published",  # at A, whose process was stopped
        *("published", "fetched"),  # another service, with a bundle
    ]
    assert told[-2]["transient"]


def test_what_is_wrong_is_told_in_a_sentence(told: list[dict[str, Any]]) -> None:
    nothing, proxy, killed, hanging = (each["problem"] for each in told if "problem" in each)
    assert "nothing listens at the SAM address" in nothing
    assert "is that" in proxy
    assert "SAM port" in proxy
    assert "closed the SAM connection" in killed
    assert "does not answer within 5 s" in hanging
