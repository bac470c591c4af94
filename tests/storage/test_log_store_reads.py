from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import trio

from garlicfarm.errors import (
    Compacted,
    LocalProtocolError,
    StorageDamaged,
    StorageError,
    StorageMissing,
    StorageVersion,
)
from garlicfarm.levels import HIGHEST, algorithm_of
from garlicfarm.raft.types import Entry, HardState, Persist, SnapshotMeta, Storage
from garlicfarm.storage import (
    SNAPSHOTS,
    Genesis,
    LogStore,
    Snapshot,
    Writer,
    create_store,
    read_genesis,
    write_snapshot,
)
from garlicfarm.wire import ClusterServer, Configuration, ValueType, encode_configuration
from tests.storage.conftest import GENESIS, entry, write


def test_new_store_is_empty_and_knows_its_genesis(directory: Path) -> None:
    with closing(LogStore.open(directory, farm="farm")) as store:
        read_side: Storage = store
        assert read_side.initial_state() == (HardState(), GENESIS.configuration)
        assert (read_side.first_index(), read_side.last_index(), read_side.term(0)) == (1, 0, 0)
        assert read_side.snapshot() == SnapshotMeta(0, 0, GENESIS.configuration, 0)
        assert store.genesis == GENESIS
    assert {path.stat().st_mode & 0o777 for path in (directory / "log").iterdir()} == {0o600}


def test_genesis_without_configuration_gives_one_without_servers(tmp_path: Path) -> None:
    create_store(tmp_path / "farm", Genesis("farm", bytes(16), "farm", 2, None))
    with closing(LogStore.open(tmp_path / "farm", farm="farm")) as store:
        assert store.genesis.configuration is None
        assert store.initial_state() == (HardState(), Configuration(0, 0))


def test_open_of_a_missing_store_says_what_to_do_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageMissing, match=r"store is missing.*member remove ID.*node join") as caught:
        LogStore.open(tmp_path, farm="farm")
    assert "node init" not in str(caught.value), (
        "an empty voter under an old id can undo acknowledged entries"
    )
    assert list(tmp_path.iterdir()) == []


def test_open_for_another_farm_is_refused(directory: Path) -> None:
    with pytest.raises(StorageError, match="of farm 'farm', not of 'other'"):
        LogStore.open(directory, farm="other")


def test_create_over_a_store_refuses_and_changes_nothing(directory: Path) -> None:
    (segment,) = (directory / "log").glob("*.seg")
    before = segment.read_bytes()
    with pytest.raises(StorageError, match="never overwritten"):
        create_store(directory, GENESIS)
    assert segment.read_bytes() == before


def test_store_of_0_1_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"SQLite format 3")
    for use in (
        lambda: create_store(tmp_path, GENESIS),
        lambda: LogStore.open(tmp_path, farm="farm"),
        lambda: read_genesis(tmp_path),
    ):
        with pytest.raises(StorageVersion, match=r"holds log\.db, .* use the program that wrote it"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["log.db"]


def test_create_after_an_interrupted_one_starts_again(tmp_path: Path) -> None:
    (tmp_path / "log.part").mkdir()
    (tmp_path / "log.part" / "0000000001.seg").write_bytes(b"half a store")
    create_store(tmp_path, GENESIS)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    LogStore.open(tmp_path, farm="farm").close()


def test_store_of_another_version_of_the_algorithm_is_refused(tmp_path: Path) -> None:
    other, most = algorithm_of(HIGHEST + 1), algorithm_of(HIGHEST)
    create_store(tmp_path, Genesis("farm", bytes(16), "publisher", other, None))
    sentence = f"version {other} of the common algorithm; this program has 2 to {most}"
    with pytest.raises(StorageVersion, match=sentence):
        LogStore.open(tmp_path, farm="farm")


async def test_entries_of_tail_and_disk_obey_the_same_bounds(directory: Path) -> None:
    written = [entry(index, term=index // 4 + 1, value=bytes(10)) for index in range(1, 11)]
    store = LogStore.open(directory, farm="farm")
    await write(store, [Persist(0, HardState(3, 2, 10), None, tuple(written))])
    with closing(LogStore.open(directory, farm="farm")) as from_disk:
        for side in (store, from_disk):
            assert side.entries(1, 11, 1000) == written
            assert side.entries(4, 6, 1000) == written[3:5]
            assert side.entries(4, 11, 30) == written[3:6]
            assert side.entries(4, 11, 39) == written[3:6]
            assert side.entries(4, 11, 0) == written[3:4]
            assert [side.term(index) for index in range(11)] == [0, *(one.term for one in written)]
            assert side.initial_state()[0] == HardState(3, 2, 10)
            with pytest.raises(Compacted):
                side.entries(0, 2, 100)
            for lo, hi in ((3, 3), (10, 12), (11, 12)):
                with pytest.raises(LocalProtocolError):
                    side.entries(lo, hi, 100)
            with pytest.raises(LocalProtocolError):
                side.term(11)
    store.close()


async def test_initial_state_gives_the_configuration_in_force_at_the_commit_index(directory: Path) -> None:
    later = [Configuration(index, 0, (ClusterServer(index, f"ssl://{index}"),)) for index in (2, 4)]
    log = (
        entry(1),
        entry(2, value=encode_configuration(later[0]), kind=ValueType.CONFIGURATION),
        entry(3),
        entry(4, value=encode_configuration(later[1]), kind=ValueType.CONFIGURATION),
    )
    expected = [GENESIS.configuration, GENESIS.configuration, later[0], later[0], later[1]]
    for commit, configuration in enumerate(expected):
        store = LogStore.open(directory, farm="farm")
        await write(store, [Persist(commit, HardState(1, 1, commit), None, log if commit == 0 else ())])
        assert store.initial_state() == (HardState(1, 1, commit), configuration)
        store.close()


async def test_entry_that_changes_on_disk_while_open_is_damage_when_read(directory: Path) -> None:
    with closing(LogStore.open(directory, farm="farm")) as store:
        await write(store, [Persist(0, None, None, (entry(1), entry(2)))])
    (segment,) = (directory / "log").glob("*.seg")
    with closing(LogStore.open(directory, farm="farm")) as store:
        data = segment.read_bytes()
        segment.write_bytes(data.replace(b"value 2", b"value 3"))
        assert store.entries(1, 2, 100) == [entry(1)]
        with pytest.raises(StorageDamaged, match="entry 2"):
            store.entries(1, 3, 100)
        segment.write_bytes(data[:-30])
        with pytest.raises(StorageDamaged, match="entry 2"):
            store.term(2)


def test_first_entries_lie_in_the_new_log_and_no_member_votes_in_their_term(tmp_path: Path) -> None:
    configuration = msgspec.structs.replace(GENESIS.configuration, log_index=2)
    create_store(tmp_path / "farm", GENESIS, [b"one", configuration, b"two"])
    with closing(LogStore.open(tmp_path / "farm", farm="farm")) as store:
        assert store.initial_state() == (HardState(term=1), GENESIS.configuration)
        assert store.entries(1, 4, 1000) == [
            Entry(1, 1, ValueType.APPLICATION, b"one"),
            Entry(2, 1, ValueType.CONFIGURATION, encode_configuration(configuration)),
            Entry(3, 1, ValueType.APPLICATION, b"two"),
        ]


def test_size_is_told_though_a_file_is_deleted_meanwhile(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's thread deletes segments, and names new ones."""
    with closing(LogStore.open(directory, farm="farm")) as store:
        size = store.size_bytes()
        listed = [*store.path.iterdir(), store.path / "0000000000.seg"]
        with monkeypatch.context() as patch:
            patch.setattr(Path, "iterdir", lambda path: iter(listed))
            assert store.size_bytes() == size


async def test_snapshot_without_a_count_is_counted_where_the_log_reaches_back_to_its_beginning(
    directory: Path,
) -> None:
    change = encode_configuration(Configuration(2, 0, (ClusterServer(1, "ssl://b:27150"),)))
    log = (entry(1), entry(2, value=change, kind=ValueType.CONFIGURATION), entry(3), entry(4))
    with closing(LogStore.open(directory, farm="farm")) as store:
        await write(store, [Persist(1, HardState(1, 1, 4), None, log)])
    born = (GENESIS.farm_id, GENESIS.application, GENESIS.algorithm)
    write_snapshot(directory / SNAPSHOTS, Snapshot(*born, 3, 1, Configuration(2, 0), (), None, b"state"))
    with closing(LogStore.open(directory, farm="farm")) as store:
        assert store.snapshot().application_entries == 2
        assert store.restored.meta == store.snapshot()
        writer = Writer(store, lambda token: None)
        writer.compact(1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await writer.run()
    with closing(LogStore.open(directory, farm="farm")) as store:
        assert store.snapshot().application_entries is None
