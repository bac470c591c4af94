"""Rules of the log on disk broken on purpose, each with the test that notices: ``python -m
tests.storage.mutants NAME`` runs that test on a store with the mutant, which is a change of the text of one
module; production code has no switch for it. Exit code 0: the test failed, by what it asserts.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

__all__ = ["MUTANTS", "Mutant"]

_ROOT = Path(__file__).parents[2]
NONE = "none"
"""The name of the mutant that is none: its test passes."""
SURVIVED, STUMBLED = 1, 2


class Mutant(NamedTuple):
    """A module of `garlicfarm` with each text replaced that must occur in it once. ``killed_by``: a test in
    this directory that fails with it: the file (without "test_" and ".py") and the test (without "test_")."""

    name: str
    module: str
    changes: Sequence[tuple[str, str]]
    killed_by: str

    def source(self) -> str:
        """The module's source with the changes; AssertionError where a text is not there once."""
        path = _ROOT / "garlicfarm" / f"{self.module.replace('.', '/')}.py"
        source = path.read_text(encoding="utf-8")
        for old, new in self.changes:
            assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in {path}"
            source = source.replace(old, new)
        return source


class _Patched(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, mutant: Mutant) -> None:
        self._name = f"garlicfarm.{mutant.module}"
        self._code = compile(mutant.source(), f"{mutant.module} ({mutant.name})", "exec")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


class _Failures:
    """How tests failed, as a plugin of pytest."""

    def __init__(self) -> None:
        self.found: list[BaseException] = []

    def pytest_exception_interact(self, call: pytest.CallInfo[None]) -> None:
        assert call.excinfo is not None
        error = call.excinfo.value
        while isinstance(error, BaseExceptionGroup):  # of the nursery that an async test runs in
            error = error.exceptions[0]
        self.found.append(error)


_EACH_CALL = "segments::each_call_may_be_the_last_one_and_each_of_the_next_open"
POWER, FAILED_SYNC = f"{_EACH_CALL}[0-0.0]", f"{_EACH_CALL}[5-None]"
KILL = f"{_EACH_CALL}[0-None]"
TORN = "segments::frame_torn_by_a_power_cut_is_cut_off_wherever_it_is_torn"
_SYNC = "        os.fdatasync(self._file)\n"
_SYNC_AT_OPEN = "                os.fsync(self._file)\n                fsync_path(directory)\n"

MUTANTS = (
    Mutant("does not sync a frame", "storage.appender", [(_SYNC, "")], POWER),
    Mutant(
        "tries a failed sync again",
        "storage.appender",
        [(_SYNC, f"        try:\n    {_SYNC}        except OSError:\n    {_SYNC}")],
        FAILED_SYNC,
    ),
    Mutant(
        "says that a frame is synced before it is",
        "storage.appender",
        [
            (
                _SYNC,
                "        _write(self._synced, encode_synced(end.number, end.offset + len(frame)), 0)\n"
                + _SYNC,
            )
        ],
        FAILED_SYNC,
    ),
    Mutant(
        "takes for durable what a failed sync left in memory",
        "storage.appender",
        [("if is_torn or log.unsynced:", "if is_torn:")],
        FAILED_SYNC,
    ),
    Mutant(
        "syncs the last frame at an open without writing it again",
        "storage.appender",
        [("                _write(self._file, log.unsynced, log.end.offset - len(log.unsynced))\n", "")],
        FAILED_SYNC,
    ),
    Mutant(
        "writes the last frame again at an open without syncing it",
        "storage.appender",
        [(_SYNC_AT_OPEN, "")],
        FAILED_SYNC,
    ),
    Mutant(
        "leaves what is torn where it is",
        "storage.appender",
        [("                os.ftruncate(self._file, log.end.offset)\n", "                pass\n")],
        TORN,
    ),
    Mutant(
        "writes frames into a segment whose name is not synced",
        "durable_files",
        [("missing_ok=True)\n    fsync_path(path.parent)\n", "missing_ok=True)\n")],
        POWER,
    ),
    Mutant(
        "names a segment before its header is synced",
        "durable_files",
        [("            os.fsync(file.fileno())\n", "")],
        POWER,
    ),
    Mutant(
        "leaves term, vote and commit index out of the frame",
        "storage.appender",
        [("            encoder.hard_state(state)\n", "            pass\n")],
        KILL,
    ),
    Mutant(
        "does not record a truncation",
        "storage.appender",
        [("                encoder.truncate(step.truncate_from)\n", "")],
        KILL,
    ),
    Mutant(
        "records a truncation after what takes the place of the entries",
        "storage.appender",
        [
            ("                encoder.truncate(step.truncate_from)\n", ""),
            (
                "            found.append(encoder.entries(step.entries))\n",
                "            found.append(encoder.entries(step.entries))\n"
                "            if step.truncate_from is not None:\n"
                "                encoder.truncate(step.truncate_from)\n",
            ),
        ],
        KILL,
    ),
    Mutant(
        "does not record that the log begins later",
        "storage.appender",
        [
            (
                "            begins = boundary\n            encoder.boundary(begins)\n",
                "            begins = boundary\n",
            )
        ],
        KILL,
    ),
    Mutant(
        "deletes a segment that is needed",
        "storage.appender",
        [("if number < min(before, self._log.end.number):", "if number < self._log.end.number:")],
        KILL,
    ),
    Mutant(
        "deletes segments before it is synced that the log begins later",
        "storage.writer",
        [
            (
                "                if batch or boundary:\n",
                "                if boundary:\n"
                "                    appender.delete_segments(self._store.index.oldest_segment() or 0)\n"
                "                if batch or boundary:\n",
            )
        ],
        "storage_writer::compaction_that_is_not_written_deletes_nothing",
    ),
    Mutant(
        "takes a frame without a look at its checksum",
        "storage.segments",
        [(" or crc32(view[first:after], end.checksum) != head[3]", "")],
        TORN,
    ),
    Mutant(
        "takes a damaged frame for a torn one",
        "storage.segments",
        [("    while at != -1:\n", "    while False:\n")],
        "segments::damaged_frame_with_a_sound_one_behind_it_is_damage_without_synced",
    ),
    Mutant(
        "does not compare a log with what was synced",
        "storage.segments",
        [("    if synced > end:\n", "    if False:\n")],
        "segments::log_cut_anywhere_is_damage",
    ),
    Mutant(
        "takes an older sync for that of the last frame",
        "storage.segments",
        [("    if synced == end:\n", "    if synced <= end:\n")],
        FAILED_SYNC,
    ),
    Mutant(
        "believes a commit index beyond the entries",
        "storage.segments",
        [("    if log.hard_state.commit > log.index.last:\n", "    if False:\n")],
        "segments::log_that_ends_before_its_commit_index_is_damage",
    ),
    Mutant(
        "takes a log for whole that lacks its first segment",
        "storage.segments",
        [("    if log.index.first != log.boundary.index + 1:\n", "    if False:\n")],
        "segments::segment_missing_is_damage",
    ),
    Mutant(
        "lets any segment follow another",
        "storage.segments",
        [("elif encode_header(log, log.index.last, number, header.mark) != data[:offset]:", "elif False:")],
        "segments::segments_of_different_logs_do_not_follow_each_other",
    ),
    Mutant(
        "reads segments that came back after a deletion that was not synced",
        "storage.segments",
        [("if numbers[-1] - number == len(numbers) - 1 - at]", "if number + at >= 0]")],
        f"{_EACH_CALL}[0-0.5]",
    ),
    Mutant(
        "returns an entry that changed on the disk",
        "storage.segments",
        [("        ) == checksum:\n", "        ):\n")],
        "log_reader::entry_damaged_is_damage",
    ),
    Mutant(
        "counts Configurations as Application entries",
        "storage.log_index",
        [("return upto - after - self._configurations(after, upto)", "return upto - after")],
        "log_index::application_entries_are_counted_and_found_as_one_by_one",
    ),
    Mutant(
        "finds a Configuration for an Application entry",
        "storage.log_index",
        [("            while (found :=", "            if (found :=")],
        "log_index::application_entries_are_counted_and_found_as_one_by_one",
    ),
    Mutant(
        "writes a snapshot without its count",
        "storage.snapshots",
        [("            snapshot.application_entries,\n", "")],
        "snapshots::snapshot_written_is_read_again",
    ),
    Mutant(
        "installs a received snapshot without its count",
        "storage.snapshots",
        [(", self.configuration, self.application_entries)", ", self.configuration)")],
        "snapshot_transfer::pieces_of_any_size_become_the_snapshot",
    ),
)


def main(name: str) -> int:
    """Run the test of a mutant."""
    mutant = next((mutant for mutant in MUTANTS if mutant.name == name), None)
    if mutant is not None:
        sys.meta_path.insert(0, _Patched(mutant))
    file, _, test = (mutant or MUTANTS[0]).killed_by.partition("::")
    failures = _Failures()
    arguments = ["-q", "-x", "-p", "no:cacheprovider", "--no-header"]
    pytest.main([*arguments, f"{Path(__file__).parent}/test_{file}.py::test_{test}"], plugins=[failures])
    # By what it asserts: a mutant that only stumbles would be killed by any test.
    if not failures.found:
        return SURVIVED
    return 0 if isinstance(failures.found[0], AssertionError | pytest.fail.Exception) else STUMBLED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
