"""A store of version 0.1 with one flipped bit anywhere: it is damaged, or reads as before; and the files stay
as they are. A sound one becomes segments."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import msgspec
import pytest

from garlicfarm.errors import StorageDamaged, StorageError, StorageVersion
from garlicfarm.raft.types import Entry, HardState, Persist
from garlicfarm.storage import SNAPSHOTS, Genesis, LogStore, Snapshot, read_genesis, write_snapshot
from garlicfarm.wire import ClusterServer, Configuration, ValueType, encode_configuration
from tests.storage import stored_by_sqlite

FRAME_BYTES = 24 + 4096
STEPS = 12


def contents(directory: Path) -> tuple[Any, ...]:
    with closing(LogStore.open(directory, farm="farm")) as store:
        return store.genesis, store.initial_state(), store.entries(1, store.last_index() + 1, 1 << 40)


def steps() -> list[Persist]:
    """Small, empty and overflowing values, Configurations, and a truncation that leaves free pages."""
    rnd = Random(3)
    found: list[Persist] = []
    index = 1
    for token in range(STEPS):
        entries = [
            Entry(index + i, token + 1, ValueType.APPLICATION, rnd.randbytes(rnd.choice((0, 20, 200, 6000))))
            for i in range(3)
        ]
        server = ClusterServer(1, "ssl://a:1")
        value = encode_configuration(Configuration(index + 3, index - 1, (server,)))
        entries.append(Entry(index + 3, token + 1, ValueType.CONFIGURATION, value))
        found.append(Persist(token, HardState(token + 1, 2, index + 2), None, tuple(entries)))
        index += 4
    large = Entry(index, STEPS, ValueType.APPLICATION, bytes(20_000))
    return [*found, Persist(STEPS, None, None, (large,)), Persist(STEPS + 1, None, index)]


@pytest.fixture
def directory(tmp_path: Path, genesis: Genesis) -> Path:
    stored_by_sqlite.create(tmp_path / "farm", genesis)
    return tmp_path / "farm"


@pytest.fixture
def stopped(directory: Path) -> Path:
    """A store that was closed in order: all is in the file, the WAL is empty."""
    stored_by_sqlite.opened(directory, steps()).close()
    assert [path.name for path in directory.iterdir()] == ["log.db"]
    return directory


@pytest.fixture
def killed(directory: Path, tmp_path: Path) -> Path:
    """What a killed process leaves: every step a transaction in the WAL, nothing in the file."""
    with closing(stored_by_sqlite.opened(directory, steps())):
        shutil.copytree(directory, tmp_path / "killed")
    return tmp_path / "killed"


def restore(directory: Path, files: dict[str, bytes]) -> None:
    """Let the directory hold these files, and nothing else."""
    shutil.rmtree(directory)
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)


def flip(directory: Path, name: str, positions: list[int]) -> tuple[int, int]:
    """Open the store with each of these bits flipped in turn; how many were found, how many harmless."""
    sound = {path.name: path.read_bytes() for path in directory.iterdir()}
    before = contents(directory)
    damaged = harmless = 0
    for position in positions:
        flipped = bytearray(sound[name])
        flipped[position // 8] ^= 1 << position % 8
        restore(directory, {**sound, name: bytes(flipped)})
        try:
            assert contents(directory) == before, f"bit {position} of {name} changed the contents"
            harmless += 1
        except StorageDamaged:
            damaged += 1
            for path_name in ("log.db", "log.db-wal"):
                if path_name in sound:
                    expected = flipped if path_name == name else sound[path_name]
                    assert (directory / path_name).read_bytes() == expected, f"bit {position} of {name}"
    restore(directory, sound)
    return damaged, harmless


@pytest.mark.slow
def test_flipped_bit_in_the_file_is_damage_or_harmless(stopped: Path) -> None:
    size = (stopped / "log.db").stat().st_size
    rnd = Random(1)
    header = range(100 * 8)
    page_headers = [page * 8 + bit for page in range(0, size, 4096) for bit in rnd.sample(range(8 * 8), 12)]
    anywhere = [rnd.randrange(size * 8) for _ in range(600)]
    damaged, harmless = flip(stopped, "log.db", [*header, *page_headers, *anywhere])
    assert damaged > harmless / 2


def test_flipped_bit_in_a_value_or_hard_state_or_meta_is_damage(stopped: Path) -> None:
    data = (stopped / "log.db").read_bytes()
    value = next(entry.value for step in steps() for entry in step.entries if len(entry.value) == 200)
    places = {
        "value": (data.index(value), 200),
        "farm id": (data.index(b"farm-id-16-bytes"), 16),
        "farm": (data.index(b"farmfarm-id"), 4),
        "first configuration": (data.index(b"ssl://a:27150"), 13),
        "hard state": (data.index(bytes((STEPS, 2, 4 * STEPS - 1))), 3),
    }
    for name, (start, length) in places.items():
        bits = [start * 8 + bit for bit in range(min(length, 20) * 8)]
        assert flip(stopped, "log.db", bits) == (len(bits), 0), name


def test_truncated_file_is_damage_or_harmless(stopped: Path) -> None:
    """Harmless: part of the last page, when that is a free one."""
    data = (stopped / "log.db").read_bytes()
    before = contents(stopped)
    restore(stopped, {"log.db": data})
    for size in (0, 1, 20, 100, 4096, len(data) // 2, len(data) - 5000, len(data) - 4096):
        (stopped / "log.db").write_bytes(data[:size])
        with pytest.raises(StorageDamaged):
            LogStore.open(stopped, farm="farm")
        assert (stopped / "log.db").read_bytes() == data[:size], size
    (stopped / "log.db").write_bytes(data[:-1])
    assert contents(stopped) == before


def test_flipped_bit_in_the_wal_of_a_killed_process_is_damage(killed: Path) -> None:
    size = (killed / "log.db-wal").stat().st_size
    rnd = Random(2)
    header = range(0, 32 * 8, 5)
    frame_headers = [
        (32 + frame * FRAME_BYTES) * 8 + rnd.randrange(24 * 8) for frame in range(size // FRAME_BYTES)
    ]
    anywhere = [rnd.randrange(size * 8) for _ in range(60)]
    last_frame = [(size - 1 - rnd.randrange(FRAME_BYTES)) * 8 for _ in range(10)]
    bits = [*header, *frame_headers, *anywhere, *last_frame]
    assert flip(killed, "log.db-wal", bits) == (len(bits), 0)


def test_flipped_bit_in_the_wal_index_is_harmless(killed: Path) -> None:
    bits = list(range(0, 136 * 8, 17))
    assert flip(killed, "log.db-shm", bits) == (0, len(bits))


def test_flipped_bit_in_a_wal_without_its_index_is_damage_in_all_but_the_last_transaction(
    killed: Path,
) -> None:
    (killed / "log.db-shm").unlink()
    wal = (killed / "log.db-wal").read_bytes()
    frames = len(wal) // FRAME_BYTES
    commits = [
        n for n in range(frames) if wal[32 + n * FRAME_BYTES + 4 : 32 + n * FRAME_BYTES + 8] != bytes(4)
    ]
    assert len(commits) >= STEPS
    last_transaction = (32 + (commits[-2] + 1) * FRAME_BYTES) * 8
    rnd = Random(4)
    bits = [rnd.randrange(last_transaction) for _ in range(60)]
    assert flip(killed, "log.db-wal", bits) == (len(bits), 0)


def open_with_wal(directory: Path, wal: bytes) -> tuple[HardState, int]:
    """Hard state and last index of a copy with this WAL, and no WAL index."""
    with TemporaryDirectory() as copy:
        shutil.copy(directory / "log.db", copy)
        (Path(copy) / "log.db-wal").write_bytes(wal)
        with closing(LogStore.open(Path(copy), farm="farm")) as store:
            return store.initial_state()[0], store.last_index()


def test_wal_torn_anywhere_by_a_power_cut_opens_with_the_steps_before(killed: Path) -> None:
    """Without a WAL index that knows better, a WAL that ends early is a crash, not damage."""
    wal = (killed / "log.db-wal").read_bytes()
    expected = {0: HardState(), **{step.token + 1: step.hard_state for step in steps()[:STEPS]}}
    seen: set[int] = set()
    for size in [0, 31, 32, 33, *range(40, len(wal), 7777), len(wal)]:
        state, last = open_with_wal(killed, wal[:size])
        assert state == expected[state.term]
        assert last - 4 * state.term in ((0, 1) if state.term == STEPS else (0,))
        seen.add(state.term)
    assert seen == set(range(STEPS + 1))


def test_pages_of_the_last_transaction_written_out_of_order_are_a_crash(killed: Path) -> None:
    """A power cut may keep later frames of the one unsynced transaction and lose earlier ones."""
    (killed / "log.db-shm").unlink()
    wal = bytearray((killed / "log.db-wal").read_bytes())
    frames = len(wal) // FRAME_BYTES
    commits = [
        n for n in range(frames) if wal[32 + n * FRAME_BYTES + 4 : 32 + n * FRAME_BYTES + 8] != bytes(4)
    ]
    first = 32 + (commits[-2] + 1) * FRAME_BYTES
    assert len(wal) - first > FRAME_BYTES, "the last transaction needs two frames for this test"
    wal[first : first + FRAME_BYTES] = bytes(FRAME_BYTES)
    (killed / "log.db-wal").write_bytes(wal)
    genesis, (state, _), entries = contents(killed)
    assert (genesis.farm, state.term, len(entries)) == ("farm", STEPS, 4 * STEPS + 1)


def test_shorter_wal_than_its_index_counts_is_damage(killed: Path) -> None:
    wal = (killed / "log.db-wal").read_bytes()
    (killed / "log.db-wal").write_bytes(wal[:-FRAME_BYTES])
    for _ in range(2):  # the evidence stays
        with pytest.raises(StorageDamaged, match="frame"):
            LogStore.open(killed, farm="farm")


def test_store_of_a_later_format_is_another_version_and_stays(stopped: Path) -> None:
    path = stopped / "log.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 3")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with pytest.raises(StorageDamaged, match="version 3"):  # one bit of the header, or two: meta says 2
        LogStore.open(stopped, farm="farm")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        row = (3, *db.execute("SELECT * FROM meta").fetchone()[1:-1])
        db.execute("UPDATE meta SET version = 3, crc32 = ?", (crc32(msgspec.msgpack.encode(row)),))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = path.read_bytes()
    with pytest.raises(StorageVersion, match="format version 3"):
        LogStore.open(stopped, farm="farm")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM entries WHERE idx = 5",
        "DELETE FROM entries WHERE idx = 1",
        "DELETE FROM entries WHERE idx >= 40",
        "DELETE FROM hard_state",
        "INSERT INTO hard_state SELECT * FROM hard_state",
        "DELETE FROM meta",
        "DROP INDEX configurations",
        "CREATE TABLE other(x)",
    ],
)
def test_rows_or_tables_missing_or_too_many_are_damage(stopped: Path, damage: str) -> None:
    with closing(sqlite3.connect(stopped / "log.db", isolation_level=None)) as db:
        db.execute(damage)
    with pytest.raises(StorageDamaged):
        LogStore.open(stopped, farm="farm")


def test_directory_in_the_place_of_the_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "log.db").mkdir()
    with pytest.raises(StorageError):
        LogStore.open(tmp_path, farm="farm")


# Conversion


def test_store_of_0_1_becomes_segments_once(killed: Path, genesis: Genesis) -> None:
    with closing(LogStore.open(killed, farm="farm")) as store:
        assert store.genesis == genesis
        assert store.initial_state()[0] == HardState(STEPS, 2, 4 * STEPS - 1)
        assert store.entries(1, 4 * STEPS + 1, 1 << 40) == [
            e for step in steps()[:STEPS] for e in step.entries
        ]
        assert (store.first_index(), store.last_index()) == (1, 4 * STEPS)
    assert [path.name for path in killed.iterdir()] == ["log"]
    assert read_genesis(killed) == genesis


def test_conversion_that_was_not_concluded_is(killed: Path) -> None:
    """The process died before it deleted the old files."""
    sound = {path.name: path.read_bytes() for path in killed.iterdir()}
    before = contents(killed)
    for name, data in sound.items():
        (killed / name).write_bytes(data)
    assert contents(killed) == before
    assert [path.name for path in killed.iterdir()] == ["log"]


def test_store_that_0_1_went_on_with_after_a_conversion_is_refused(killed: Path) -> None:
    """The node failed right after the conversion, so 0.1 was started again: its entries must not be lost."""
    shutil.copytree(killed, killed.parent / "old")
    LogStore.open(killed, farm="farm").close()
    stored_by_sqlite.opened(killed.parent / "old", [Persist(0, HardState(STEPS + 1, 1, 4))]).close()
    (killed.parent / "old" / "log.db").rename(killed / "log.db")
    before = {path: path.read_bytes() for path in (killed / "log.db", *(killed / "log").iterdir())}
    for _ in range(2):
        with pytest.raises(StorageError, match=r"two logs that differ, log and log\.db"):
            LogStore.open(killed, farm="farm")
        assert {path: path.read_bytes() for path in before} == before


def test_old_file_is_gone_from_the_disk_before_its_wal_and_before_the_log_is_written_to(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not bring it back, which would be another log then, nor without its WAL."""
    calls: list[str] = []

    def watching(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(file: Any, *arguments: Any, **options: Any) -> Any:
            path = Path(f"/proc/self/fd/{file}").readlink() if isinstance(file, int) else Path(file)
            calls.append(f"{name} {path.relative_to(killed.parent)}")
            return call(file, *arguments, **options)

        return watched

    with monkeypatch.context() as patch:
        for name in ("unlink", "fsync"):
            patch.setattr(os, name, watching(name, getattr(os, name)))
        LogStore.open(killed, farm="farm").close()
    at = calls.index("unlink killed/log.db")
    assert calls[at : at + 4] == [
        "unlink killed/log.db",
        "fsync killed",
        "unlink killed/log.db-wal",
        "unlink killed/log.db-shm",
    ]


def test_remains_of_a_conversion_that_cannot_be_removed_are_not_made_part_of_the_log(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (killed / "log.part").mkdir()
    (killed / "log.part" / "0000000002.seg").write_bytes(b"of an interrupted one")
    unlink = os.unlink

    def fails(path: Any, *arguments: Any, **options: Any) -> None:
        if str(path).endswith(".seg"):
            raise OSError(errno.EIO, "Input/output error")
        unlink(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fails)
        with pytest.raises(StorageError, match="Input/output error"):
            LogStore.open(killed, farm="farm")
    assert not (killed / "log").exists()
    assert contents(killed)[1][0] == HardState(STEPS, 2, 4 * STEPS - 1)


def test_log_of_0_1_that_begins_late_still_does(stopped: Path, genesis: Genesis) -> None:
    later = encode_configuration(Configuration(4, 0, (ClusterServer(1, "ssl://a:1"),)))
    stored_by_sqlite.compact(stopped, 10, 3, later, deleted=7)
    taken = Snapshot(genesis.farm_id, "log", 2, 12, 3, Configuration(4, 0), (), None, b"state")
    write_snapshot(stopped / SNAPSHOTS, taken)
    with closing(LogStore.open(stopped, farm="farm")) as store:
        assert (store.first_index(), store.last_index(), store.term(10)) == (11, 4 * STEPS, 3)
        assert store.entries(11, 12, 0) == [steps()[2].entries[2]]
        assert store.restored == taken


@pytest.mark.parametrize("call", ["fsync", "fdatasync", "pwrite", "rename"])
def test_conversion_that_fails_leaves_the_store_of_0_1(
    killed: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """At each of its calls, as if the process died there."""
    sound = {path.name: path.read_bytes() for path in killed.iterdir()}
    expected = contents(killed)
    real = getattr(os, call)
    for number in itertools.count():
        restore(killed, sound)
        left = [number]

        def fails(*arguments: Any, left: list[int] = left) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fails)
            try:
                LogStore.open(killed, farm="farm").close()
            except StorageError:
                if not (killed / "log").exists():
                    assert (killed / "log.db").read_bytes() == sound["log.db"]
                    assert (killed / "log.db-wal").read_bytes() == sound["log.db-wal"]
        assert contents(killed) == expected
        if left[0] >= 0:
            break
    assert number
