"""Nodes in memory and on loopback, and a tower of either implementation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.lab.processes import free_ports
from garlicfarm.transport import Endpoint
from garlicfarm_plugin_dafka.sockets import Context, open_context
from garlicfarm_plugin_dafka.tower import Tower
from tests.dafka.c_programs import c_tower
from tests.dafka.memory_network import MemoryNetwork
from tests.dafka.meshes import plain_tower


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The autojump clock would jump on while a thread works."""

    async def run_sync(function: Any, *arguments: Any, **options: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.fixture
async def context() -> AsyncIterator[Context]:
    async with open_context() as opened:
        yield opened


@pytest.fixture
async def tower() -> AsyncIterator[Tower]:
    async with plain_tower() as opened:
        yield opened


@pytest.fixture(params=["our tower", "C tower"])
async def either_tower(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Endpoint]:
    if request.param == "our tower":
        async with plain_tower() as ours:
            yield ours.endpoint
    else:
        async with c_tower(tmp_path, *free_ports(2)) as endpoint:
            yield endpoint
