"""Nodes in memory."""

from __future__ import annotations

import pytest

from tests.dafka.memory_network import MemoryNetwork


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()
