"""The clocks of a member's part in publishing follow Trio's, which jumps, and no thread waits for a disk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from garlicfarm.node.publisher import clocks
from garlicfarm.publisher import Published
from garlicfarm.publishing.member_standing import Now
from tests.publishing.scripted_log import T0


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """``slept_ms``: how long the machine has been suspended, which Trio's clock does not see. ``wall_ms``:
    how far the wall clock is from `T0` at Trio's zero, beyond that."""
    moved = SimpleNamespace(slept_ms=0, wall_ms=0)

    def now() -> Now:
        boot_ms = round(trio.current_time() * 1000) + moved.slept_ms
        return Now(boot_ms, T0 + boot_ms + moved.wall_ms)

    monkeypatch.setattr(clocks, "now", now)
    return moved


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> list[Published]:
    """What would be written: without a thread, whose time is not Trio's."""
    written: list[Published] = []

    async def run_sync(write: Any, published: Published, **how: Any) -> None:
        written.append(published)
        await trio.sleep_forever()  # as a disk that hangs

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    return written
