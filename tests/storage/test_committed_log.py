"""A log that is read whole, by a program that is no node."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import trio

from garlicfarm.errors import StorageDamaged, StorageMissing
from garlicfarm.raft.types import HardState, Persist
from garlicfarm.storage import (
    SNAPSHOTS,
    LogStore,
    Snapshot,
    Writer,
    committed_log,
    read_committed,
    write_snapshot,
)
from tests.storage.conftest import GENESIS, entry, write

LOG = [entry(index) for index in range(1, 10)]


@pytest.fixture
async def stored(directory: Path) -> Path:
    """Nine entries, of which seven are known to be committed."""
    with closing(LogStore.open(directory, farm="farm")) as store:
        await write(store, [Persist(0, HardState(1, 1, 7), None, tuple(LOG))])
    return directory


def snapshot(index: int) -> Snapshot:
    born = GENESIS.farm_id, GENESIS.application, GENESIS.algorithm
    return Snapshot(*born, index, 1, GENESIS.configuration, (), None, b"state %d" % index)


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def compact(directory: Path, upto: int) -> None:
    with closing(LogStore.open(directory, farm="farm")) as store:
        writer = Writer(store, lambda token: None)
        writer.compact(upto)
        with trio.CancelScope() as scope:
            scope.cancel()
            await writer.run()


async def test_entries_read_are_those_known_to_be_committed(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_log, "_PAGE_BYTES", 20)  # two entries each
    found = read_committed(stored)
    assert (found.genesis, found.begins, found.entries) == (GENESIS, None, LOG[:7])


async def test_read_changes_nothing_even_where_a_crash_tore_the_log(stored: Path) -> None:
    (segment,) = (stored / "log").glob("*.seg")
    with segment.open("ab") as file:
        file.write(b"torn")
    before = files(stored)
    assert read_committed(stored).entries == LOG[:7]
    assert files(stored) == before


async def test_log_that_reaches_back_to_its_beginning_is_read_from_there(stored: Path) -> None:
    write_snapshot(stored / SNAPSHOTS, snapshot(5))
    found = read_committed(stored)
    assert (found.begins, found.entries) == (None, LOG[:7])


async def test_compacted_log_is_read_from_the_oldest_state_that_it_continues(stored: Path) -> None:
    for index in (2, 4, 6):
        write_snapshot(stored / SNAPSHOTS, snapshot(index))
    await compact(stored, 3)  # no entry 3 any more, to continue the state of 2
    found = read_committed(stored)
    assert (found.begins.index, found.begins.state) == (4, b"state 4")
    assert found.entries == LOG[4:7]


async def test_oldest_state_of_a_running_node_is_the_same_and_a_damaged_one_is_passed_over(
    stored: Path,
) -> None:
    for index in (2, 4, 6):
        write_snapshot(stored / SNAPSHOTS, snapshot(index))
    await compact(stored, 3)
    with closing(LogStore.open(stored, farm="farm")) as store:
        write_snapshot(stored / SNAPSHOTS, snapshot(9))  # received, and not in use yet
        assert store.oldest_state() == snapshot(4)
        (file,) = (stored / SNAPSHOTS).glob("4-*.snap")
        file.write_bytes(file.read_bytes()[:-1])
        assert store.oldest_state() == snapshot(6)
        (file,) = (stored / SNAPSHOTS).glob("6-*.snap")
        file.unlink()
        assert store.oldest_state() is None


async def test_compacted_log_without_a_sound_state_is_damaged(stored: Path) -> None:
    write_snapshot(stored / SNAPSHOTS, snapshot(4))
    await compact(stored, 3)
    (file,) = (stored / SNAPSHOTS).glob("*.snap")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StorageDamaged, match="the log begins after 3, without a snapshot of that"):
        read_committed(stored)


def test_directory_without_a_log_is_missing_one(tmp_path: Path) -> None:
    with pytest.raises(StorageMissing, match="there is no log in"):
        read_committed(tmp_path)
