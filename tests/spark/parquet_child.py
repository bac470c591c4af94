"""A process that stores rankings and is killed: ``parquet_child.py DIRECTORY WHAT CALL [MUTANT]``.

WHAT is ``write``, which stores each of `BATCHES` and prints ``stored NUMBER`` once it is, or ``compact``. The
process kills itself just before its call of the file system with the number CALL, from 1, or never (0). A
write counts twice: nothing of it is done, or half of it.

``… DIRECTORY each`` does that for every CALL in turn, in children of its own, and then once more undisturbed,
which must leave the same files as if nothing had happened. Prints how many calls there were.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow

from garlicfarm_plugin_spark import compact as compact_module
from garlicfarm_plugin_spark.compact import compact
from garlicfarm_plugin_spark.directory import LocalDirectory
from garlicfarm_plugin_spark.parquet import ParquetSink, encoded, parts, unrepeated
from tests.spark.script import many_entries
from tests.spark.stored import Batch, ranked, read_rankings, table_of

DAY_MS = 86_400_000
_ROWS = [
    {**row, "farm_time_ms": row["farm_time_ms"] + number // 25 * DAY_MS}
    for number, row in enumerate(ranked(many_entries(200))[3:75])
]
BATCHES = [_ROWS[begin : begin + 15] for begin in range(0, len(_ROWS), 15)]
CALLS = ("open", "ftruncate", "write", "fsync", "rename", "mkdir", "unlink")


def kill_at(call: int, *, is_synced: bool) -> None:
    """Kill this process there. Without a power cut nothing depends on what is synced."""
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counting(*given: Any, **options: Any) -> Any:
            step()
            if name == "write":
                if calls + 1 == call:
                    function(given[0], given[1][: len(given[1]) // 2])
                step()
            return None if name == "fsync" and not is_synced else function(*given, **options)

        return counting

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name), name))
    fcntl.flock = counted(fcntl.flock, "flock")


def write_in_place() -> None:
    """A file has its name from the first byte on."""

    def add(self: LocalDirectory, file: str, data: bytes, *, replace: bool = False) -> None:
        path = self._path / file
        if not path.exists():
            self._make(path.parent)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, data)
            os.fsync(descriptor)
            os.close(descriptor)

    LocalDirectory.add = add  # type: ignore[method-assign]


def remove_before_merging() -> None:
    """The files that are merged are removed before the merged one is there."""
    unlink = Path.unlink

    class Removing(LocalDirectory):
        def add(self, file: str, data: bytes, *, replace: bool = False) -> None:
            for path in Path(self.name, file).parent.glob("*.parquet"):
                path.unlink()
            super().add(file, data, replace=replace)

    def unlink_if_there(path: Path, missing_ok: bool = True) -> None:
        unlink(path, missing_ok=True)

    setattr(compact_module, "LocalDirectory", Removing)  # noqa: B010
    setattr(Path, "unlink", unlink_if_there)  # noqa: B010


def sync_no_directory() -> None:
    """The names of files are not synced."""
    fsync = os.fsync

    def only_files(descriptor: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            fsync(descriptor)

    setattr(os, "fsync", only_files)  # noqa: B010


def sync_no_file() -> None:
    """A file has its name before its contents are synced."""
    fsync = os.fsync

    def only_directories(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            fsync(descriptor)

    setattr(os, "fsync", only_directories)  # noqa: B010


MUTANTS = {
    "in-place": write_in_place,
    "remove-first": remove_before_merging,
    "names-unsynced": sync_no_directory,
    "contents-unsynced": sync_no_file,
}


def run(directory: Path, what: str) -> None:
    if what == "compact":
        for _ in compact(directory):
            pass
        return
    sink: Any = ParquetSink(None, str(directory))  # type: ignore[arg-type]
    for number, batch in enumerate(BATCHES):
        sink(Batch(batch), number)
        print("stored", number, flush=True)


def forked(directory: Path, what: str, call: int) -> int:
    """The status of the child: 0 if it was done before it was to be killed."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        kill_at(call, is_synced=False)
        run(directory, what)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.*")}


def files() -> dict[str, bytes]:
    """Those of the batches, each made once."""
    return {name: encoded(part) for batch in BATCHES for name, part in parts(table_of(batch))}


def rows(directory: Path) -> pyarrow.Table:
    return read_rankings(directory, ["ranking", "state_sha256"])


def each_call(directory: Path) -> None:
    written, merged = directory / "written", directory / "merged"
    assert forked(written, "write", 0) == 0
    expected = tree(written)
    assert expected == {**files(), ".rows": b"changes 2\n"}
    shutil.copytree(written, merged)
    assert forked(merged, "compact", 0) == 0
    assert unrepeated(rows(merged)).num_rows == len(_ROWS)
    for what, before, after in (("write", None, expected), ("compact", written, tree(merged))):
        for call in count(1):
            place = directory / what / str(call)
            if before is None:
                place.parent.mkdir(exist_ok=True)
            else:
                shutil.copytree(before, place)
            status = forked(place, what, call)
            assert status in (0, signal.SIGKILL)
            if before is not None:
                assert rows(place).equals(rows(before)), f"compact killed at call {call} lost rows"
            assert forked(place, what, 0) == 0, f"{what} killed at call {call} cannot be repeated"
            assert tree(place) == after, f"{what} killed at call {call} leaves other files"
            if status == 0:
                print(what, call - 1)
                break


if __name__ == "__main__":
    if sys.argv[2] == "each":
        for name in sys.argv[3:]:
            MUTANTS[name]()
        each_call(Path(sys.argv[1]))
    else:
        for name in sys.argv[4:]:
            MUTANTS[name]()
        kill_at(int(sys.argv[3]), is_synced=True)
        run(Path(sys.argv[1]), sys.argv[2])
