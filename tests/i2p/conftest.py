"""In which order the private networks are set up."""

from __future__ import annotations

import pytest

FIRST = (
    *("test_sam_over_i2p", "test_i2pd_of_today", "test_hostile_over_i2p", "test_service_over_i2cp"),
    *("test_meta_farm", "test_soak"),
)
"""A client of the first may wait ten minutes, until leases of a dead router have expired, so it begins first.
pytest-xdist gives a worker whose module has two tests a second module at once: that is the short one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(FIRST)))
