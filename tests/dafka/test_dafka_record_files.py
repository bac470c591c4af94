"""The files of a store: what was saved can be read, is told after a crash, and goes when it is old."""

from __future__ import annotations

import sqlite3
import subprocess
from collections import defaultdict
from contextlib import closing
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.errors import StorageDamaged, StorageError, StorageInUse, StorageVersion
from garlicfarm_plugin_dafka import record_files
from garlicfarm_plugin_dafka.record_files import RecordFiles, RecordReader
from garlicfarm_plugin_dafka.store_core import SavedPartition, Unsaved
from tests.dafka import record_child
from tests.dafka.record_power import CHILD, ENDLESS, Process

ALL = 1 << 62


def save(files: RecordFiles, partition: str, first: int, contents: list[bytes], now_ms: int = 0) -> None:
    files.save([Unsaved("t", partition, first, contents)], now_ms)


def read(files: RecordFiles, partition: str, first: int, end: int, max_bytes: int = ALL) -> list[bytes]:
    with closing(RecordReader(files)) as reader:
        return list(reader.read("t", partition, first, end, max_bytes=max_bytes))


def expire(files: RecordFiles, before_ms: int, max_bytes: int | None, is_live) -> list[tuple[str, str, int]]:
    """To the end; partitions and their tails."""
    tails: dict[tuple[str, str], int] = {}
    after: int | None = 0
    while after is not None:
        found, after = files.expire(before_ms, max_bytes, is_live, after)
        tails |= {(topic, partition): tail for topic, partition, tail in found}
    return [(*key, tail) for key, tail in tails.items()]


def live(topic: str, partition: str) -> bool:
    return True


def dead(topic: str, partition: str) -> bool:
    return False


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.lists(st.binary(max_size=40), min_size=1, max_size=20)),
            unique_by=lambda each: each[0],
        ),
        max_size=8,
    ),
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_what_is_saved_is_read_again_from_any_place_after_any_start(tmp_path_factory, batches, place):
    directory = tmp_path_factory.mktemp("store")
    model: defaultdict[str, list[bytes]] = defaultdict(list)
    for batch in batches:
        with closing(RecordFiles(directory)) as files:
            files.save([Unsaved("t", name, len(model[name]), contents) for name, contents in batch], 0)
        for name, contents in batch:
            model[name] += contents
    with closing(RecordFiles(directory)) as files:
        assert {(each.partition, each.tail, each.next) for each in files.partitions()} == {
            (name, 0, len(contents)) for name, contents in model.items() if contents
        }
        first, end = place
        for name in "abc":
            assert read(files, name, first, end) == model[name][first:end]


def test_a_long_batch_is_cut_and_read_in_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(record_files, "_CHUNK_RECORDS", 7)
    monkeypatch.setattr(record_files, "_CHUNK_BYTES", 100)
    contents = [bytes([number]) * Random(number).choice((0, 10, 30, 300)) for number in range(100)]
    with closing(RecordFiles(tmp_path)) as files:
        save(files, "p", 5, contents)
        assert read(files, "p", 5, ALL) == contents
        assert read(files, "p", 0, ALL) == []
        assert files.partitions() == [SavedPartition("t", "p", 5, 105)]
        at = 5
        while at < 105:
            page = read(files, "p", at, ALL, max_bytes=200)
            assert page == contents[at - 5 : at - 5 + len(page)]
            assert len(page) == 1 or sum(map(len, page)) <= 200
            at += len(page)


def test_records_that_leave_a_gap_are_refused(tmp_path):
    with closing(RecordFiles(tmp_path)) as files:
        save(files, "p", 0, [b"a"])
        with pytest.raises(StorageError, match=r"record 2 of .* 1 is next"):
            save(files, "p", 2, [b"c"])


def test_retention_by_age_deletes_the_oldest_and_tells_the_tail(tmp_path):
    with closing(RecordFiles(tmp_path)) as files:
        for number in range(10):
            save(files, "p", 3 * number, [b"x"] * 3, now_ms=1000 * number)
            save(files, "q", number, [b"y"], now_ms=1000 * number)
        assert expire(files, 0, None, live) == []
        assert sorted(expire(files, 4000, None, live)) == [("t", "p", 12), ("t", "q", 4)]
        assert read(files, "p", 11, ALL) == []
        assert read(files, "p", 12, ALL) == [b"x"] * 18
        assert expire(files, 4000, None, live) == []
    with closing(RecordFiles(tmp_path)) as files:
        assert files.partitions() == [SavedPartition("t", "p", 12, 30), SavedPartition("t", "q", 4, 10)]
        assert sorted(expire(files, ALL, None, live)) == [("t", "p", 27), ("t", "q", 9)]  # the newest stay
        assert sorted(expire(files, ALL, None, dead)) == [("t", "p", 30), ("t", "q", 10)]
        assert (files.partitions(), files.size_bytes) == ([], 0)
        save(files, "p", 30, [b"again"])
        assert files.partitions() == [SavedPartition("t", "p", 30, 31)]


def test_retention_by_bytes_deletes_no_more_than_it_has_to(tmp_path, monkeypatch):
    monkeypatch.setattr(record_files, "_EXPIRE_AT_ONCE", 4)
    with closing(RecordFiles(tmp_path)) as files:
        for number in range(50):
            save(files, f"p{number % 2}", number // 2, [bytes(1000)], now_ms=number)
        each = files.size_bytes // 50
        assert expire(files, 0, files.size_bytes, live) == []
        assert sorted(expire(files, 0, 10 * each, live)) == [("t", "p0", 20), ("t", "p1", 20)]
        assert files.size_bytes == 10 * each
        assert expire(files, 0, 0, live) == [("t", "p0", 24), ("t", "p1", 24)]


def test_retention_does_not_stop_at_what_it_keeps(tmp_path, monkeypatch):
    monkeypatch.setattr(record_files, "_EXPIRE_AT_ONCE", 2)
    with closing(RecordFiles(tmp_path)) as files:
        for number in range(6):
            save(files, f"kept{number}", 0, [b"x"])
        for number in range(6):
            save(files, "p", number, [b"x"])
        assert expire(files, ALL, None, live) == [("t", "p", 5)]


def test_the_clock_set_back_ages_nothing(tmp_path):
    with closing(RecordFiles(tmp_path)) as files:
        save(files, "p", 0, [b"x"], now_ms=5000)
        save(files, "p", 1, [b"x"], now_ms=100)
        assert expire(files, 4000, None, live) == []


def test_a_store_is_open_once(tmp_path):
    with closing(RecordFiles(tmp_path)), pytest.raises(StorageInUse):
        RecordFiles(tmp_path)
    RecordFiles(tmp_path).close()


def test_files_are_private(tmp_path):
    with closing(RecordFiles(tmp_path / "a" / "b")) as files:
        save(files, "p", 0, [b"x"])
        assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / "a" / "b").iterdir()} == {0o600}


def test_another_version_and_other_files_are_refused(tmp_path):
    RecordFiles(tmp_path).close()
    path = tmp_path / "records.sqlite"
    for pragma, error in (("user_version = 2", StorageVersion), ("application_id = 7", StorageDamaged)):
        with closing(sqlite3.connect(path)) as database:
            database.execute(f"PRAGMA {pragma}")
        with pytest.raises(error):
            RecordFiles(tmp_path)
    path.write_bytes(b"no database, " * 1000)
    with pytest.raises(StorageDamaged):
        RecordFiles(tmp_path)


def test_a_damaged_record_is_not_returned(tmp_path):
    with closing(RecordFiles(tmp_path)) as files:
        save(files, "p", 0, [b"some record"])
        save(files, "p", 1, [b"another one"])
    path = tmp_path / "records.sqlite"
    path.write_bytes(path.read_bytes().replace(b"another", b"anothER"))
    with closing(RecordFiles(tmp_path)) as files:
        assert read(files, "p", 0, 1) == [b"some record"]
        with pytest.raises(StorageDamaged, match=r"records 1 to 1 of topic t, partition p fail their check"):
            read(files, "p", 0, 2)


def test_a_directory_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        RecordFiles(tmp_path / "file" / "store")


def test_a_killed_process_loses_nothing_that_it_reported_saved(tmp_path):
    rnd = Random(3)
    reported: dict[str, int] = {}
    for seed in range(5):
        child = Process(tmp_path, seed, ENDLESS, [], reported)
        child.read(rnd.randint(2, 40))
        child.kill()
        record_child.check(tmp_path, reported)
    assert sum(reported.values()) > 100


def test_a_full_disk_ends_the_process_and_loses_nothing(tmp_path):
    # A file that may not grow is to SQLite what a full disk is.
    command = ["prlimit", "--fsize=500000", *CHILD, str(tmp_path), "1", str(ENDLESS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=240)
    *lines, last = done.stdout.decode().splitlines()
    assert last.startswith("StorageError")
    record_child.check(tmp_path, {line.split()[1]: int(line.split()[2]) for line in lines})
