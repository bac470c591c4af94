"""Descriptors run out: files are opened all the same, or as soon as there is one."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from garlicfarm import descriptors
from garlicfarm.durable_files import replace_file
from garlicfarm.raft.types import Entry, Persist
from garlicfarm.regular_files import read_file
from garlicfarm.storage import LogStore, appender
from garlicfarm.storage.log_store import create_store
from garlicfarm.wire import ValueType
from tests.storage.conftest import GENESIS


@contextmanager
def none_left() -> Iterator[None]:
    """No file can be opened while the context lasts."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited, without waiting."""
    told: list[float] = []
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        told.append(seconds)
        now += seconds

    monkeypatch.setattr("garlicfarm.descriptors.time.sleep", sleep)
    monkeypatch.setattr("garlicfarm.descriptors.time.monotonic", lambda: now)
    return told


def test_reserved_descriptors_let_files_be_read_and_written_again_and_again(
    tmp_path: Path, naps: list[float]
) -> None:
    before = os.listdir("/proc/self/fd")
    with descriptors.reserve(), none_left():
        for number in range(100):
            replace_file(tmp_path / "file", [b"%d" % number], 0o600)
            assert read_file(tmp_path / "file") == b"%d" % number
    assert naps == []
    assert os.listdir("/proc/self/fd") == before


def test_without_a_reserve_it_waits_for_so_long_and_tells_what_is_wrong(
    tmp_path: Path, naps: list[float]
) -> None:
    (tmp_path / "file").touch()
    with none_left(), pytest.raises(OSError, match="Too many open files") as caught:
        read_file(tmp_path / "file")
    assert caught.value.errno == errno.EMFILE
    assert sum(naps) == pytest.approx(descriptors.WAIT_S, abs=0.1)


def test_closed_file_becomes_a_reserved_descriptor_that_is_missing() -> None:
    with descriptors.reserve(), none_left():
        own = descriptors.patiently(lambda: os.open("/", os.O_RDONLY))  # one is missing from here on
        descriptors.close(own)
        assert os.fstat(own).st_rdev == os.stat(os.devnull).st_rdev
        assert not os.get_inheritable(own)


def test_connections_admitted_are_fewer_the_lower_the_limit_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    for limit in (1 << 20, 2048, 1024, 256, 128):
        monkeypatch.setattr(descriptors, "limit", lambda limit=limit: limit)
        shares.append((descriptors.share(512), descriptors.share(128), descriptors.ceiling()))
        assert sum(shares[-1][:2]) + descriptors.required(1) < limit
    assert shares[:2] == [(512, 128, (1 << 20) - 64), (512, 128, 1984)]
    assert shares == sorted(shares, reverse=True)


def test_segment_begins_as_soon_as_there_is_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appender, "SEGMENT_BYTES", 2000)
    create_store(tmp_path / "farm", GENESIS)
    store = LogStore.open(tmp_path / "farm", farm="farm")
    entries = [Entry(index, 1, ValueType.APPLICATION, bytes(500)) for index in range(1, 31)]
    naps, now = 0, 0.0
    shortage = none_left()

    def sleep(seconds: float) -> None:
        nonlocal naps, now
        naps += 1
        now += seconds
        if naps == 5000:  # far beyond any limit on how long files are waited for
            shortage.__exit__(None, None, None)

    monkeypatch.setattr("garlicfarm.descriptors.time.sleep", sleep)
    monkeypatch.setattr("garlicfarm.descriptors.time.monotonic", lambda: now)
    shortage.__enter__()
    for entry in entries:
        store.appender.write([Persist(entry.index, entries=(entry,))])
    store.close()
    assert naps >= 5000
    reopened = LogStore.open(tmp_path / "farm", farm="farm")
    assert reopened.entries(1, 31, 1 << 20) == entries
    assert len(list((tmp_path / "farm" / "log").glob("*.seg"))) > 3
    reopened.close()
