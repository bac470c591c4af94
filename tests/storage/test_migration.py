"""A log that was raised to a level is rewritten in its format: all of it is there after whatever happens."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

import pytest

from garlicfarm.errors import StorageDamaged, StorageError
from garlicfarm.raft.types import HardState, Persist, SnapshotMeta
from garlicfarm.storage import SNAPSHOTS, LogStore, create_store, log_store, read_committed, read_genesis
from garlicfarm.storage.appender import Appender
from garlicfarm.storage.migration import KEPT, NEW
from garlicfarm.storage.segments import Genesis, genesis_of_log, list_segments, read_log
from garlicfarm.wire import Configuration
from tests.storage import mixed_store
from tests.storage.conftest import GENESIS, entry, write
from tests.storage.mixed_store import Contents, contents, contents_of, finish, is_there, process, small_pieces
from tests.storage.segment_headers import levels

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Contents]:
    directory = tmp_path_factory.mktemp("mixed") / "farm"
    return directory, mixed_store.make_mixed_store(directory)


@pytest.fixture
def mixed(tmp_path: Path, made: tuple[Path, Contents]) -> Path:
    """A store with segments of format 4, and then of format 5."""
    return shutil.copytree(made[0], tmp_path / "farm")


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


async def test_mixed_log_is_rewritten_and_the_old_one_kept_until_the_next_start(
    mixed: Path, made: tuple[Path, Contents]
) -> None:
    old = files(mixed / "log")
    with small_pieces(), closing(LogStore.open(mixed, farm="farm")) as store:
        assert store.not_migrated == ""
        assert store.restored is not None
        assert store.restored.index == 5
        assert contents_of(store) == made[1]
        assert {*levels(mixed / "log")} == {(5, 1)}
        assert len(list_segments(mixed / "log")) > 2
        assert (mixed / KEPT).exists()
        assert files(mixed / KEPT) == old
        size = store.size_bytes()
        assert size == sum(map(len, (*old.values(), *files(mixed / "log").values())))
        await write(store, [Persist(1, HardState(3, 2, 17), None, (entry(18, 3),))])
    with closing(LogStore.open(mixed, farm="farm")) as store:
        assert contents_of(store)[2] == [*made[1][2], entry(18, 3)]
        assert store.size_bytes() < size * 0.7
    assert not (mixed / KEPT).exists()


def test_log_of_level_0_is_never_rewritten(directory: Path) -> None:
    mixed_store.write(
        directory, [Persist(0, HardState(1, 0, 1), None, (entry(1), mixed_store.raising(2, 0)))]
    )
    (directory / KEPT).mkdir()
    before, number = files(directory / "log"), (directory / "log").stat().st_ino
    LogStore.open(directory, farm="farm").close()
    assert (files(directory / "log"), (directory / "log").stat().st_ino) == (before, number)
    assert (directory / KEPT).exists()


def test_log_whose_older_segments_hold_nothing_is_not_rewritten(mixed: Path) -> None:
    mixed_store.write(mixed, [], SnapshotMeta(12, 2, Configuration(12, 0, mixed_store.SERVERS, 1), 11))
    shutil.rmtree(mixed / SNAPSHOTS)
    snapshot = read_log(mixed / "log").boundary
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_store, "_restorable", lambda *_: (None, []))
        LogStore.open(mixed, farm="farm").close()
    assert snapshot.index == 12
    assert {*levels(mixed / "log")} == {(5, 1)}
    assert not (mixed / KEPT).exists()


@pytest.mark.parametrize("error", [0, errno.ENOSPC, errno.EIO])
def test_each_call_of_a_migration_may_be_the_last_one_or_fail(
    tmp_path: Path, made: tuple[Path, Contents], error: int
) -> None:
    """And one of the next start, too."""
    rnd, directory = Random(5), tmp_path / "farm"
    said: list[str] = []
    failures: list[StorageError] = []
    for dies_at in itertools.count(1):
        shutil.copytree(made[0], directory)
        has_come = open_until(directory, dies_at, error, made[1], said, failures)
        is_there(directory)
        open_until(directory, rnd.randint(1, 60), error, made[1], said, failures)
        is_there(directory)
        with small_pieces():
            finish(directory, made[1])
        shutil.rmtree(directory)
        if not has_come:
            break
    assert dies_at > 30
    assert all(f"{os.strerror(error)}. It is used as it is; the next start" in each for each in said)
    assert not any(isinstance(each, StorageDamaged) for each in failures)
    assert (len(said) > dies_at / 2, len(failures) > 3) == (bool(error), bool(error))


def open_until(
    directory: Path, dies_at: int, error: int, held: Contents, said: list[str], failures: list[StorageError]
) -> bool:
    """Open a store in a process that dies or in which a call fails, and note what is said of that."""
    with small_pieces(), process(dies_at, error) as has_come:
        try:
            store = LogStore.open(directory, farm="farm")
        except StorageError as failure:
            failures.append(failure)
            return has_come()
        with closing(store):
            assert contents_of(store) == held
            if store.not_migrated:
                said.append(store.not_migrated)
                assert {*levels(directory / "log")} == {(4, 0), (5, 1)}
                assert not (directory / NEW).exists()
    return has_come()


def test_each_name_of_a_migration_is_durable_before_the_next_one_is_given(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def watched(name: str, call: Callable[..., object], *arguments: object) -> object:
        path = arguments[0]
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        calls.append(f"{name} {Path(str(path)).relative_to(mixed.parent)}")
        return call(*arguments)

    for name in ("fsync", "fdatasync", "pwrite", "rename"):
        monkeypatch.setattr(os, name, partial(watched, name, getattr(os, name)))
    with small_pieces():
        LogStore.open(mixed, farm="farm").close()
    first = calls.index("rename farm/log")
    assert calls[first:] == ["rename farm/log", "fsync farm", "rename farm/log.new", "fsync farm"]
    written = [call.partition(" ")[2] for call in calls[:first] if call.startswith("pwrite")]
    assert {*written} > {"farm/log.new/0000000001.seg", "farm/log.new/synced"}
    for path in {*written}:
        last = max(at for at, call in enumerate(calls[:first]) if call == f"pwrite {path}")
        assert {f"fsync {path}", f"fdatasync {path}"} & {*calls[last:first]}, path
    assert calls[first - 1] == "fsync farm/log.new"
    assert "fsync farm" in calls[:first]


async def test_store_that_cannot_be_migrated_is_used_as_it_is_and_the_next_start_tries_again(
    mixed: Path, made: tuple[Path, Contents]
) -> None:
    with process(10, errno.ENOSPC):
        store = LogStore.open(mixed, farm="farm")
    with closing(store):
        said = f"{mixed / 'log'} is at level 1, and cannot be rewritten in format version 5: No space left"
        assert store.not_migrated.startswith(said)
        await write(store, [Persist(1, HardState(3, 2, 17), None, (entry(18, 3),))])
    assert {*levels(mixed / "log")} == {(4, 0), (5, 1)}
    assert contents(mixed)[2] == [*made[1][2], entry(18, 3)]
    assert {*levels(mixed / "log")} == {(5, 1)}


def test_copy_of_a_log_that_is_not_migrated_is_in_the_format_of_its_level(
    mixed: Path, tmp_path: Path, made: tuple[Path, Contents]
) -> None:
    with process(10, errno.ENOSPC):
        store = LogStore.open(mixed, farm="farm")
    (tmp_path / "copy").mkdir()
    with closing(store):
        assert store.not_migrated
        store.copy_to(tmp_path / "copy", bytes(16), HardState(4, 0, 18), entry(18, 4))
    assert levels(tmp_path / "copy" / "log") == [(5, 1)]
    assert read_log(tmp_path / "copy" / "log").index.last == 18


@pytest.mark.parametrize("left", [NEW, KEPT])
def test_store_with_half_of_what_a_migration_leaves_is_damaged_not_missing(mixed: Path, left: str) -> None:
    (mixed / "log").rename(mixed / left)
    before = files(mixed / left)
    for attempt in (
        lambda: LogStore.open(mixed, farm="farm"),
        lambda: read_committed(mixed),
        lambda: read_genesis(mixed),
    ):
        with pytest.raises(StorageDamaged, match=f"there is no log beside {left}. Nothing was changed"):
            attempt()
    with pytest.raises(StorageError, match="holds a store already; a store is never overwritten"):
        create_store(mixed, GENESIS)
    assert files(mixed / left) == before


def test_genesis_read_while_a_start_renames_the_log_is_that_of_the_store(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log disappears after it was found, and its successor, too."""
    names = iter([("log", KEPT), (NEW, "log")])
    shutil.copytree(mixed / "log", mixed / NEW)

    def read(path: Path) -> Genesis:
        for old, new in itertools.islice(names, 1):
            (mixed / old).rename(mixed / new)
        return genesis_of_log(path)

    monkeypatch.setattr(log_store, "genesis_of_log", read)
    assert read_genesis(mixed) == GENESIS
    assert next(names, None) is None


def test_migrated_log_that_is_not_the_old_one_does_not_replace_it(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, entries_from = files(mixed / "log"), "garlicfarm.storage.migration.entries_from"
    monkeypatch.setattr(entries_from, lambda *_: iter([mixed_store.large(index) for index in range(4, 15)]))
    with pytest.raises(StorageDamaged, match="is not what was written there"):
        LogStore.open(mixed, farm="farm")
    assert files(mixed / "log") == before


def test_migration_takes_no_more_memory_than_a_page(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write_batch = Appender.write

    def watched(self: Appender, steps: list[Persist], boundary: SnapshotMeta | None = None) -> object:
        sizes.append(sum(len(each.value) for step in steps for each in step.entries))
        return write_batch(self, steps, boundary)

    monkeypatch.setattr(Appender, "write", watched)
    with small_pieces():
        LogStore.open(mixed, farm="farm").close()
    assert len(sizes) > 2
    assert max(sizes) < mixed_store.PAGE_BYTES + 200


@pytest.mark.slow
@pytest.mark.fuse
def test_power_lost_in_a_migration_loses_nothing_and_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    command = ["unshare", "-rm", sys.executable, "-m", "tests.storage.migration_rounds", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    rounds, unsynced = map(int, done.stdout.split())
    assert rounds > 60
    assert unsynced > 0, "nothing was there to be lost"
