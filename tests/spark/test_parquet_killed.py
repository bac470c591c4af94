"""A process that stores rankings, or merges them, is killed at each call of the file system. No Java."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm.errors import GarlicFarmError
from garlicfarm_plugin_spark.compact import compact
from garlicfarm_plugin_spark.directory import LocalDirectory
from tests.spark.script import many_entries
from tests.spark.stored import ranked, write, write_in_batches

pytestmark = pytest.mark.spark

ROWS = ranked(many_entries(100))


def killed(directory: Path, *mutant: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.spark.parquet_child", str(directory), "each", *mutant],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_process_killed_at_any_call_leaves_the_files_of_an_undisturbed_one_once_it_ran_again(
    tmp_path: Path,
) -> None:
    done = killed(tmp_path)
    assert done.returncode == 0, done.stderr
    calls = {what: int(number) for what, number in map(str.split, done.stdout.splitlines())}
    assert calls["write"] > 60
    assert calls["compact"] > 30


@pytest.mark.parametrize(
    ("mutant", "sentence"),
    [("in-place", "write killed at call"), ("remove-first", "compact killed at call")],
)
def test_killed_writer_with_a_fault_is_found_out(tmp_path: Path, mutant: str, sentence: str) -> None:
    done = killed(tmp_path, mutant)
    assert done.returncode == 1
    assert sentence in done.stderr


def left(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.part"))


def test_unfinished_file_of_a_killed_writer_is_removed_by_compact(tmp_path: Path) -> None:
    """Of a batch that nothing repeats: a new checkpoint cuts the log elsewhere."""
    write_in_batches(tmp_path, ROWS, 1)
    folder = max(tmp_path.glob("farm=*/date=*"))
    (folder / ".1-2-3.parquet.part").write_bytes(b"PAR1")
    list(compact(tmp_path))
    assert left(tmp_path) == []


def test_unfinished_file_that_a_process_writes_stays_and_is_written_by_no_other(tmp_path: Path) -> None:
    (name,) = write(tmp_path / "elsewhere", ROWS[5:9])
    data = (tmp_path / "elsewhere" / name).read_bytes()
    directory = LocalDirectory(tmp_path / "rows")
    path = tmp_path / "rows" / name
    path.parent.mkdir(parents=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        directory.clear(str(path.parent.relative_to(tmp_path / "rows")))
        assert left(tmp_path) == [part]
        with pytest.raises(GarlicFarmError, match="cannot be written: another process writes it"):
            directory.add(name, data)
    directory.add(name, data)
    assert path.read_bytes() == data
    assert left(tmp_path) == []


def test_file_that_was_removed_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rank compact` came in between."""
    directory = LocalDirectory(tmp_path)
    opened = os.open

    def open_and_clear(path: Path, flags: int, mode: int = 0o777) -> int:
        found = opened(path, flags, mode)
        if str(path).endswith(".part"):
            monkeypatch.undo()
            directory.clear(".")
        return found

    monkeypatch.setattr(os, "open", open_and_clear)
    directory.add("file", b"all of it")
    assert (tmp_path / "file").read_bytes() == b"all of it"
    assert left(tmp_path) == []


def test_file_that_another_process_adds_first_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks with other ``--rows`` in one new directory, the second has to see what the first wrote."""
    opened = os.open

    def open_second(path: Path, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith(".part"):
            monkeypatch.undo()
            LocalDirectory(tmp_path).add(".rows", b"changes")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", open_second)
    LocalDirectory(tmp_path).add(".rows", b"entries")
    assert (tmp_path / ".rows").read_bytes() == b"changes"
    assert left(tmp_path) == []


@pytest.mark.slow
@pytest.mark.fuse
@pytest.mark.parametrize("mutant", [None, "names-unsynced", "contents-unsynced"])
def test_power_cut_loses_no_row_that_was_reported_stored(tmp_path: Path, mutant: str | None) -> None:
    command = ["unshare", "-rm", sys.executable, "-m", "tests.spark.parquet_power", str(tmp_path)]
    done = subprocess.run(
        [*command, "15" if mutant is None else "9", *([mutant] if mutant else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    if mutant is None:
        assert done.returncode == 0, done.stdout
        reported, unsynced = map(int, done.stdout.splitlines()[-1].split())
        assert reported > 10
        assert unsynced > 0
    else:
        assert done.returncode == 1, done.stdout
        assert "rows that were reported stored" in done.stdout


def test_directories_above_are_durable_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("garlicfarm_plugin_spark.directory.fsync_path", synced.append)
    LocalDirectory(tmp_path / "a" / "b" / "rows").check_writable("--sink")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


def test_directory_above_that_may_not_be_read_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(path: Path) -> None:
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("garlicfarm_plugin_spark.directory.fsync_path", sync)
    directory = LocalDirectory(tmp_path / "rows")
    directory.check_writable("--sink")
    directory.add("farm=farm/file", b"all of it")
    assert (tmp_path / "rows" / "farm=farm" / "file").read_bytes() == b"all of it"


def test_dates_that_are_deleted_beside_a_writer_are_made_again(tmp_path: Path) -> None:
    directory = LocalDirectory(tmp_path / "rows")
    for _ in range(2):
        directory.add("farm=farm/date=1970-01-01/file", b"all of it")
        assert (tmp_path / "rows/farm=farm/date=1970-01-01/file").read_bytes() == b"all of it"
        shutil.rmtree(tmp_path / "rows/farm=farm")
