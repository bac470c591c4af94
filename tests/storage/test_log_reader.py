from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest
import trio

from garlicfarm.errors import Compacted, LocalProtocolError, StorageDamaged, StorageError
from garlicfarm.raft.types import Entry, Persist
from garlicfarm.storage import LogReader, LogStore
from garlicfarm.storage.tables import encode_boundary
from garlicfarm.wire import Configuration, ValueType, encode_configuration

CONFIGURATIONS = {1, 4, 5, 6, 10}


@pytest.fixture
def log(entry: Callable[..., Entry]) -> list[Entry]:
    """Ten entries, of 10 bytes where they are an application's."""
    return [
        entry(index, value=encode_configuration(Configuration(index, 0)), kind=ValueType.CONFIGURATION)
        if index in CONFIGURATIONS
        else entry(index, value=b"%010d" % index)
        for index in range(1, 11)
    ]


@pytest.fixture
async def reader(
    directory: Path, write: Callable[[LogStore, list[Persist]], Awaitable[list[int]]], log: list[Entry]
) -> AsyncIterator[LogReader]:
    store = LogStore.open(directory, farm="farm")
    await write(store, [Persist(0, None, None, tuple(log))])
    with closing(LogReader(directory)) as reader:
        yield reader
    store.close()


async def test_entries_read_end_at_each_of_their_bounds(reader: LogReader, log: list[Entry]) -> None:
    assert reader.entries(0, 10, 1000) == log
    assert reader.entries(2, 7, 1000) == log[2:7]
    assert reader.entries(6, 10, 2 * (10 + 21)) == log[6:8]
    assert reader.entries(6, 10, 2 * (10 + 21) - 1) == log[6:7]
    assert reader.entries(6, 10, 0) == log[6:7]


async def test_entries_after_what_is_gone_are_compacted(
    reader: LogReader, directory: Path, log: list[Entry]
) -> None:
    with closing(sqlite3.connect(directory / "log.db", isolation_level=None)) as other:
        other.execute("DELETE FROM entries WHERE idx < 3")  # the third is still to be deleted
        boundary = encode_boundary(3, 1, None)
        other.execute("UPDATE boundary SET idx = ?, term = ?, configuration = ?, crc32 = ?", boundary)
    for upto in (1, 3, 10):
        with pytest.raises(Compacted) as caught:
            reader.entries(0, upto, 1000)
        assert caught.value.first_index == 4
    assert reader.entries(3, 5, 1000) == log[3:5]


async def test_entry_damaged_is_damage(reader: LogReader, directory: Path) -> None:
    with closing(sqlite3.connect(directory / "log.db", isolation_level=None)) as other:
        other.execute("UPDATE entries SET term = 9 WHERE idx = 3")
        with pytest.raises(StorageDamaged, match="entry 3"):
            reader.entries(0, 10, 1000)
        other.execute("DELETE FROM entries WHERE idx = 3")
        with pytest.raises(StorageDamaged, match="gap"):
            reader.entries(0, 10, 1000)
        other.execute("DELETE FROM entries WHERE idx > 8")
        with pytest.raises(StorageDamaged, match="ends before"):
            reader.entries(8, 10, 1000)


async def test_entries_are_readable_from_any_thread(reader: LogReader, log: list[Entry]) -> None:
    assert await trio.to_thread.run_sync(reader.entries, 0, 10, 1000) == log


async def test_entries_of_an_empty_range_are_refused(reader: LogReader) -> None:
    with pytest.raises(LocalProtocolError):
        reader.entries(4, 4, 1000)


def test_reader_of_a_missing_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        LogReader(tmp_path)
