"""In which order the private networks are set up."""

from __future__ import annotations

import pytest

FIRST = (
    *("test_i2pd_of_today", "test_hostile_over_i2p", "test_changes_over_i2cp", "test_service_over_i2cp"),
    *("test_sam_over_i2p", "test_renewed_over_i2cp", "test_keys_over_i2cp"),
)
"""What takes longest: from 15 minutes down to five. A client of the fifth may even wait ten minutes, until
leases of a dead router have expired."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(FIRST)))
