"""Files that are read again while the node runs: every changed bit is found, and nothing else is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from garlicfarm.raft import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.storage import Corrupt, Genesis, KeyFiles, scrub_segment, scrub_snapshot, write_snapshot
from garlicfarm.storage.appender import Appender, make_log
from garlicfarm.storage.segments import read_log, segment_name
from garlicfarm.wire.messages import Configuration, ValueType
from tests.storage.test_snapshots import snapshot

GENESIS = Genesis("farm", bytes(16), "log", 1, Configuration(0, 0))


@pytest.fixture
def segment(tmp_path: Path) -> tuple[Path, int]:
    """A segment of three frames, and where it ends."""
    entries = [Entry(index, 1, ValueType.APPLICATION, b"entry %d" % index) for index in (1, 2, 3)]
    make_log(tmp_path, GENESIS, HardState(1), SnapshotMeta(0, 0, Configuration(0, 0)), entries[:1])
    appender = Appender(tmp_path / "log", read_log(tmp_path / "log"))
    for token, entry in enumerate(entries[1:]):
        appender.write([Persist(token, entries=(entry,))])
    number, end = appender.end
    appender.close()
    return tmp_path / "log" / segment_name(number), end


def damage(check: Iterator[int]) -> str:
    try:
        for _ in check:
            pass
    except Corrupt as corrupt:
        return str(corrupt)
    return ""


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_each_flipped_bit_of_a_segment_is_found(segment: tuple[Path, int]) -> None:
    path, end = segment
    whole = path.read_bytes()
    assert len(whole) == end
    for size in (None, end):
        assert damage(scrub_segment(path, 1, size)) == ""
    for bit in range(8 * end):
        path.write_bytes(flipped(whole, bit))
        assert damage(scrub_segment(path, 1, None)), f"bit {bit}"
    path.write_bytes(whole + b"being written")
    assert damage(scrub_segment(path, 1, end)) == ""
    path.write_bytes(whole[:-1])
    assert "was written up to" in damage(scrub_segment(path, 1, end))
    path.write_bytes(whole)
    assert "is segment 1" in damage(scrub_segment(path, 2, None))


def test_each_flipped_bit_of_a_snapshot_is_found(tmp_path: Path) -> None:
    write_snapshot(tmp_path, snapshot(12, 3))
    path = tmp_path / "12-3.snap"
    whole = path.read_bytes()
    assert damage(scrub_snapshot(path)) == ""
    for bit in range(8 * len(whole)):
        path.write_bytes(flipped(whole, bit))
        assert damage(scrub_snapshot(path)), f"bit {bit}"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert damage(scrub_snapshot(path)), f"{size} bytes"


def test_key_that_changes_without_being_written_is_damaged(tmp_path: Path) -> None:
    path, keys = tmp_path / "key", KeyFiles()
    path.write_bytes(b"secret")
    assert damage(keys.scrub(path)) == ""
    before = path.stat()
    path.write_bytes(b"sEcret")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        assert "nothing has written to it" in damage(keys.scrub(path))
    copy = tmp_path / "copy"
    copy.write_bytes(b"secret")
    copy.rename(path)  # the operator's copy
    assert damage(keys.scrub(path)) == ""
    path.write_bytes(b"another")
    os.utime(path, ns=(0, 0))
    assert damage(keys.scrub(path)) == ""
