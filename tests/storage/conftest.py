"""Stores to write to, and what a test needs to look into them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from garlicfarm.raft.types import Entry, Persist
from garlicfarm.storage import Genesis, LogStore, Writer, appender, create_store
from garlicfarm.wire import ClusterServer, Configuration, ValueType

GENESIS = Genesis(
    "farm", b"farm-id-16-bytes", "log", 2, Configuration(0, 0, (ClusterServer(1, "ssl://a:27150"),))
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a new store."""
    create_store(tmp_path / "farm", GENESIS)
    return tmp_path / "farm"


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new segment after each 2,000 bytes."""
    monkeypatch.setattr(appender, "SEGMENT_BYTES", 2000)


async def write(store: LogStore, steps: list[Persist]) -> list[int]:
    """Write steps through a `Writer`, which closes the log's files. Returns the tokens reported."""
    tokens: list[int] = []
    writer = Writer(store, tokens.append)
    for step in steps:
        writer.submit(step)
    with trio.CancelScope() as scope:
        scope.cancel()
        await writer.run()
    return tokens


def entry(
    index: int, term: int = 1, value: bytes | None = None, kind: ValueType = ValueType.APPLICATION
) -> Entry:
    return Entry(index, term, kind, b"value %d" % index if value is None else value)
