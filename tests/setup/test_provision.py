"""What a plan says of one member, in its node's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from garlicfarm.config import load
from garlicfarm.setup.provision import MemberPlan, create_node

INSIDE = f"i2p://{'a' * 52}.b32.i2p:27150"


@pytest.mark.parametrize(
    ("proxy", "table"),
    [("http://127.0.0.1:4445", {"proxy": "http://127.0.0.1:4445"}), ("", None)],
    ids=["named", "default"],
)
def test_member_inside_i2p_dials_through_the_proxy_of_its_router(
    tmp_path: Path, proxy: str, table: dict[str, str] | None
) -> None:
    create_node(tmp_path / "node", 1, MemberPlan(endpoint=INSIDE, proxy=proxy))
    assert load(tmp_path / "node" / "garlicfarm.toml", {}).transport.get("i2p") == table
