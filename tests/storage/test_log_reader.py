from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

from garlicfarm.errors import Compacted, LocalProtocolError, StorageDamaged, StorageError
from garlicfarm.raft.types import Entry, Persist
from garlicfarm.storage import LogReader, LogStore
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
) -> Iterator[LogReader]:
    store = LogStore.open(directory, farm="farm")
    await write(store, [Persist(0, None, None, tuple(log))])
    with closing(LogReader(directory)) as reader:
        yield reader
    store.close()


async def test_page_of_all_types_ends_at_each_of_its_bounds(reader: LogReader, log: list[Entry]) -> None:
    assert reader.page(0, 100, 1000, 10, True) == (log, 10)
    assert reader.page(2, 100, 1000, 7, True) == (log[2:7], 7)
    assert reader.page(2, 3, 1000, 10, True) == (log[2:5], 5)
    assert reader.page(6, 100, 25, 10, True) == (log[6:8], 8)
    assert reader.page(6, 100, 0, 10, True) == (log[6:7], 7)
    assert reader.page(10, 100, 1000, 10, True) == ([], 10)
    assert reader.page(8, 100, 1000, 5, True) == ([], 8)


async def test_page_of_applications_passes_over_other_types(reader: LogReader, log: list[Entry]) -> None:
    assert reader.page(0, 100, 1000, 10, False) == ([log[1], log[2], *log[6:9]], 10)
    assert reader.page(3, 3, 1000, 10, False) == ([], 6)
    assert reader.page(3, 100, 10, 10, False) == ([log[6]], 7)
    assert reader.page(9, 100, 10, 10, False) == ([], 10)


async def test_page_after_what_is_gone_is_compacted(
    reader: LogReader, directory: Path, log: list[Entry]
) -> None:
    with closing(sqlite3.connect(directory / "log.db", isolation_level=None)) as other:
        other.execute("DELETE FROM entries WHERE idx < 4")
    with pytest.raises(Compacted) as caught:
        reader.page(2, 100, 1000, 10, True)
    assert caught.value.first_index == 4
    assert reader.page(3, 2, 1000, 10, True) == (log[3:5], 5)


async def test_page_with_a_damaged_entry_is_damage(reader: LogReader, directory: Path) -> None:
    with closing(sqlite3.connect(directory / "log.db", isolation_level=None)) as other:
        other.execute("UPDATE entries SET term = 9 WHERE idx = 3")
        with pytest.raises(StorageDamaged, match="entry 3"):
            reader.page(0, 100, 1000, 10, True)
        other.execute("DELETE FROM entries WHERE idx = 3")
        with pytest.raises(StorageDamaged, match="gap"):
            reader.page(0, 100, 1000, 10, True)


async def test_page_is_readable_from_any_thread(reader: LogReader, log: list[Entry]) -> None:
    assert await trio.to_thread.run_sync(reader.page, 0, 100, 1000, 10, True) == (log, 10)


async def test_page_without_a_limit_is_refused(reader: LogReader) -> None:
    with pytest.raises(LocalProtocolError):
        reader.page(0, 0, 1000, 10, True)


def test_reader_of_a_missing_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        LogReader(tmp_path)
