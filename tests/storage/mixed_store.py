"""A store whose log was raised to level 1 while it was written, and processes that die while they open it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.errors import StorageError
from garlicfarm.raft.types import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.storage import (
    SNAPSHOTS,
    LogStore,
    Snapshot,
    appender,
    create_store,
    read_committed,
    read_genesis,
    write_snapshot,
)
from garlicfarm.storage.appender import Appender
from garlicfarm.storage.segments import read_log
from garlicfarm.wire import Configuration, ValueType, encode_configuration
from tests.storage.conftest import GENESIS, entry
from tests.storage.crashing_disk import Crash
from tests.storage.segment_headers import levels

assert GENESIS.configuration is not None
SERVERS = GENESIS.configuration.servers
SEGMENT_BYTES = 1200
PAGE_BYTES = 900

Contents = tuple[HardState, Configuration, list[Entry]]


def raising(index: int, level: int) -> Entry:
    """A Configuration of this level."""
    value = encode_configuration(Configuration(index, 0, SERVERS, level))
    return entry(index, value=value, kind=ValueType.CONFIGURATION)


@contextmanager
def small_pieces() -> Iterator[None]:
    """Logs are written in small segments, and copied in small pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appender, "SEGMENT_BYTES", SEGMENT_BYTES)
        patch.setattr(appender, "_PAGE_BYTES", PAGE_BYTES)
        yield


def write(directory: Path, steps: list[Persist], boundary: SnapshotMeta | None = None) -> None:
    log = read_log(directory / "log")
    with closing(Appender(directory / "log", log)) as writer:
        for step in steps:
            writer.write([step])
        if boundary is not None:
            writer.write([], boundary)
        writer.sync_all()


def make_mixed_store(directory: Path) -> Contents:
    """Entries 4 to 17, the level raised by 12; 15 is not committed. Returns what is in it."""
    with small_pieces():
        create_store(directory, GENESIS)
        steps = [Persist(0, HardState(1, 1, index - 1), None, (large(index),)) for index in range(1, 9)]
        steps += [
            Persist(0, HardState(2, 1, 7), 8, (large(8, 2), large(9, 2), large(10, 2), large(11, 2))),
            Persist(0, HardState(2, 1, 11), None, (raising(12, 1),)),
            Persist(0, HardState(2, 1, 12), None, tuple(large(index, 2) for index in range(13, 18))),
            Persist(0, HardState(3, 2, 14)),
        ]
        write(directory, steps, SnapshotMeta(3, 1, GENESIS.configuration or Configuration(0, 0), 3))
        state = Snapshot(
            GENESIS.farm_id, "log", 2, 5, 1, Configuration(0, 0, SERVERS), SERVERS, 5, b"the state"
        )
        write_snapshot(directory / SNAPSHOTS, state)
    found = {*levels(directory / "log")}
    assert found == {(4, 0), (5, 1)}
    log = read_log(directory / "log")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("garlicfarm.storage.log_store.migrated", lambda _, log: (log, ""))
        found_there = contents(directory)
    assert (log.hard_state, len(found_there[2])) == (HardState(3, 2, 14), 14)
    return found_there


def large(index: int, term: int = 1) -> Entry:
    return entry(index, term, bytes([index]) * 200)


def contents(directory: Path) -> Contents:
    with closing(LogStore.open(directory, farm="farm")) as store:
        return contents_of(store)


def contents_of(store: LogStore) -> Contents:
    """What the core sees of a store that holds entries."""
    entries = store.entries(store.first_index(), store.last_index() + 1, 1 << 40)
    return *store.initial_state(), list(entries)


@contextmanager
def process(dies_at: int, error: int = 0) -> Iterator[Callable[[], bool]]:
    """Watch the calls that change files. At this one the process dies, after part of a write; with ``error``
    the call fails instead, once. Yields whether it came to that."""
    left = dies_at

    def watching(call: Callable[..., Any], is_change: Callable[..., bool]) -> Callable[..., Any]:
        def watched(*arguments: Any, **how: Any) -> Any:
            nonlocal left
            if not is_change(*arguments):
                return call(*arguments, **how)
            left -= 1
            if left == 0 and error:
                raise OSError(error, os.strerror(error))
            if left == 0 and call is pwrite:
                call(arguments[0], arguments[1][: len(arguments[1]) // 2], arguments[2])
            if left <= 0 and not error:
                raise Crash
            return call(*arguments, **how)

        return watched

    pwrite = os.pwrite
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watching(os.open, lambda _, flags, *mode: bool(flags & os.O_CREAT)))
        for name in (
            "mkdir",
            "pwrite",
            "ftruncate",
            "fsync",
            "fdatasync",
            "unlink",
            "rename",
            "replace",
            "rmdir",
        ):
            patch.setattr(os, name, watching(getattr(os, name), lambda *_: True))
        try:
            yield lambda: left <= 0
        except Crash:
            assert not error


@contextmanager
def readable() -> Iterator[None]:
    """A failed test where a store is refused."""
    try:
        yield
    except StorageError as error:
        raise AssertionError(str(error)) from error


def is_there(directory: Path) -> None:
    """Programs that only read take the store for what it is, whatever a process that died left."""
    with readable():
        assert read_genesis(directory) == GENESIS
        assert [each.index for each in read_committed(directory).entries] == [*range(6, 15)]


def finish(directory: Path, expected: Contents) -> None:
    """The next start has all, and migrates it; the one after that leaves nothing beside it."""
    with readable():
        assert contents(directory) == expected
        assert {*levels(directory / "log")} == {(5, 1)}
        assert contents(directory) == expected
    assert sorted(path.name for path in directory.iterdir()) == ["log", SNAPSHOTS]
