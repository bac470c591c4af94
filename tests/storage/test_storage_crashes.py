"""Processes that die, disks that fail: what was reported durable is there, and nothing is tried twice."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from garlicfarm.storage import LogStore
from tests.storage import storage_child

CHILD = (sys.executable, storage_child.__file__)


def check_against_model(directory: Path, seed: int, start: tuple[Any, Any], reported: int) -> tuple[Any, Any]:
    """The store is in the state after some step from ``reported`` on; returns that state."""
    with closing(LogStore.open(directory, farm="farm")) as store:
        found = storage_child.contents(store)
    state, log = start
    if reported == -1 and found == start:
        return found
    for step in storage_child.steps(seed, len(log), state):
        state, log = storage_child.applied(state, log, step)
        if step.token >= reported and found == (state, log):
            return found
        assert step.token < reported + 20, f"{found[0]}, {len(found[1])} entries is no state after {reported}"
    raise AssertionError


def run_child(command: list[str], directory: Path, seed: int, **options: int) -> tuple[list[int], str]:
    """Run the child to its end; the tokens reported, and the line that tells of an error."""
    arguments = [str(directory), str(seed), *(f"{name}={number}" for name, number in options.items())]
    done = subprocess.run([*command, *CHILD, *arguments], stdout=subprocess.PIPE, check=True, timeout=240)
    lines = done.stdout.decode().splitlines()
    tokens = [int(line.split()[1]) for line in lines if line.startswith("durable")]
    assert tokens == sorted(set(tokens))
    errors = [line for line in lines if not line.startswith("durable")]
    return tokens, "".join(errors)


@pytest.mark.slow
def test_killed_writer_loses_nothing_reported_and_shows_no_half_step(directory: Path) -> None:
    rnd = Random(20)
    with closing(LogStore.open(directory, farm="farm")) as store:
        start = storage_child.contents(store)
    for seed in range(20):
        command = [*CHILD, str(directory), str(seed), "segment_bytes=50000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            lines = [child.stdout.readline() for _ in range(rnd.randint(0, 60))]
            child.kill()
            lines += child.stdout.readlines()
        tokens = [int(line.split()[1]) for line in lines if line.endswith(b"\n")]
        reported = tokens[-1] if tokens else -1
        start = check_against_model(directory, seed, start, reported)
    assert len(start[1]) > 100


@pytest.mark.strace
def test_each_batch_is_synced_once_before_it_is_reported(directory: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-y", "-o", str(trace), "-e", "trace=fdatasync,fsync,write"]
    tokens, error = run_child(command, directory, 1, steps=30)
    assert (tokens[-1], error) == (29, "")
    text = trace.read_text()
    calls = re.findall(r'sync\(.*\.seg|sync\(|write\(1[^"]*"durable \d+', text)
    reports = [number for number, call in enumerate(calls) if call.startswith("write")]
    assert len(reports) >= 20
    assert "sync(" not in calls[reports[0] : reports[-1]]  # nothing but the segment
    syncs = [number for number, call in enumerate(calls[: reports[-1]]) if call.endswith(".seg")]
    assert len(syncs) == len(reports)
    # The writer may be at the next batch while the other thread reports one.
    assert all(synced < reported for synced, reported in zip(syncs, reports, strict=True))


ONE = 1 << 40  # one segment for all
EACH = 0  # a segment for each batch: synced, renamed and its directory synced before the frame is written


@pytest.mark.strace
@pytest.mark.parametrize(
    ("fault", "segment_bytes"),
    [
        ("fdatasync:error=EIO:when=9", ONE),
        ("pwrite64:error=EIO:when=30", ONE),  # each other one says how far the log is synced
        ("pwrite64:error=ENOSPC:when=41", ONE),
        ("fdatasync:error=EIO:when=9", EACH),
        ("pwrite64:error=ENOSPC:when=9", EACH),
        ("fsync:error=EIO:when=9", EACH),
        ("fsync:error=EIO:when=10", EACH),
        ("rename:error=ENOSPC:when=9", EACH),
    ],
)
def test_error_of_a_write_or_sync_ends_the_writer_and_is_not_retried(
    directory: Path, tmp_path: Path, fault: str, segment_bytes: int
) -> None:
    trace = tmp_path / "trace"
    with closing(LogStore.open(directory, farm="farm")) as store:
        start = storage_child.contents(store)
    calls = ["-e", "trace=fdatasync,fsync,pwrite64,write,ftruncate,rename", "-e", f"inject={fault}"]
    command = ["strace", "-f", "-y", "-o", str(trace), *calls]
    tokens, error = run_child(command, directory, 5, steps=60, segment_bytes=segment_bytes)
    assert error.startswith("StorageError")
    seen = [line for line in trace.read_text().splitlines() if f"{directory}/log" in line]
    assert [number for number, line in enumerate(seen) if "INJECTED" in line] == [len(seen) - 1]
    if segment_bytes == ONE:
        assert len(tokens) <= sum("fdatasync" in line for line in seen[:-1])
    assert tokens[-1] < 59
    check_against_model(directory, 5, start, tokens[-1])


def test_file_that_may_not_grow_ends_the_writer_with_all_reported_kept(directory: Path) -> None:
    with closing(LogStore.open(directory, farm="farm")) as store:
        start = storage_child.contents(store)
    tokens, error = run_child([], directory, 6, file_limit=300_000)
    assert error.startswith("StorageError")
    assert tokens[-1] > 5
    check_against_model(directory, 6, start, tokens[-1])
