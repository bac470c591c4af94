"""A ban is in force at every member, over real routers (make test-i2p)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.i2p.script import over_i2p, run_script

TIMEOUT_S = 600

pytestmark = over_i2p(TIMEOUT_S + 60)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came about, in order."""
    told = run_script("bans_over_i2p", tmp_path_factory.mktemp("bans"), timeout_s=TIMEOUT_S)
    return {each.pop("what"): each for each in told}


def test_banned_client_is_refused_by_the_publisher_though_another_member_was_told(told) -> None:
    assert {*told["banned"]["banned"]} == {None}
    assert {*told["banned"]["other"]} - {None}


def test_banned_client_is_refused_by_the_next_publisher_too(told: dict[str, dict[str, Any]]) -> None:
    assert {*told["moved"]["banned"]} == {None}
    nodes = {text.split()[1] for text in told["moved"]["other"] if text}
    assert nodes
    assert str(told["answered"]["publisher"]) not in nodes


def test_client_is_served_again_once_its_ban_is_over(told: dict[str, dict[str, Any]]) -> None:
    assert {*told["over"]["banned"]} == {None}
    assert told["over"]["text"]
