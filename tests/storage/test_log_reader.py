from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.errors import Compacted, LocalProtocolError, StorageDamaged, StorageError
from garlicfarm.raft.types import Entry, Persist
from garlicfarm.storage import LogReader, LogStore, reader
from garlicfarm.storage.segments import read_entries
from garlicfarm.wire import Configuration, ValueType, encode_configuration
from tests.storage.conftest import entry, write

CONFIGURATIONS = {1, 4, 5, 6, 10}


LOG = [
    entry(index, value=encode_configuration(Configuration(index, 0)), kind=ValueType.CONFIGURATION)
    if index in CONFIGURATIONS
    else entry(index, value=b"%010d" % index)
    for index in range(1, 11)
]
"""Ten entries, of 10 bytes where they are an application's."""


@pytest.fixture
async def store(directory: Path) -> AsyncIterator[LogStore]:
    with closing(LogStore.open(directory, farm="farm")) as store:
        await write(store, [Persist(0, None, None, tuple(LOG))])
        yield store


async def test_entries_read_end_at_each_of_their_bounds(store: LogStore) -> None:
    reader = LogReader(store)
    assert reader.entries(0, 10, 1000) == LOG
    assert reader.entries(2, 7, 1000) == LOG[2:7]
    assert reader.entries(6, 10, 2 * (10 + 21)) == LOG[6:8]
    assert reader.entries(6, 10, 2 * (10 + 21) - 1) == LOG[6:7]
    assert reader.entries(6, 10, 0) == LOG[6:7]


async def test_entries_after_what_is_gone_are_compacted(store: LogStore) -> None:
    reader = LogReader(store)
    store.on_compacting(3)
    for upto in (1, 3, 10):
        with pytest.raises(Compacted) as caught:
            reader.entries(0, upto, 1000)
        assert caught.value.first_index == 4
    assert reader.entries(3, 5, 1000) == LOG[3:5]


async def test_entries_whose_segment_is_deleted_while_they_are_looked_for_are_compacted(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(*arguments: Any) -> list[Entry]:
        for segment in store.path.glob("*.seg"):
            store.on_compacting(3)
            segment.unlink()
        return read_entries(*arguments)

    monkeypatch.setattr(reader, "read_entries", overtaken)
    with pytest.raises(Compacted) as caught:
        LogReader(store).entries(0, 10, 1000)
    assert caught.value.first_index == 4
    with pytest.raises(StorageError, match="No such file"):
        LogReader(store).entries(3, 10, 1000)


async def test_entry_damaged_is_damage(store: LogStore) -> None:
    segment = next(store.path.glob("*.seg"))
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"%010d" % 3, b"%010d" % 4))
    with pytest.raises(StorageDamaged, match="entry 3"):
        LogReader(store).entries(0, 10, 1000)
    segment.write_bytes(data[: data.index(b"%010d" % 9)])
    with pytest.raises(StorageDamaged, match="entry 9"):
        LogReader(store).entries(7, 10, 1000)
    with pytest.raises(StorageDamaged, match="ends before"):
        LogReader(store).entries(10, 11, 1000)


async def test_entries_are_readable_from_any_thread(store: LogStore) -> None:
    assert await trio.to_thread.run_sync(LogReader(store).entries, 0, 10, 1000) == LOG


async def test_entries_of_an_empty_range_are_refused(store: LogStore) -> None:
    with pytest.raises(LocalProtocolError):
        LogReader(store).entries(4, 4, 1000)
