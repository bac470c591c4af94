"""Writing segments (`garlicfarm.storage.segments`): a frame per batch, a new segment after each 8 MiB, and
before the first Configuration of a higher level, so that older programs refuse a store that may have one."""

from __future__ import annotations

import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from garlicfarm import descriptors
from garlicfarm.durable_files import fsync_path, make_private_directory, replace_file
from garlicfarm.raft.types import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.regular_files import open_file
from garlicfarm.storage.log_index import LogIndex, Positions
from garlicfarm.storage.segments import (
    SYNCED,
    Encoder,
    End,
    Genesis,
    Log,
    encode_header,
    encode_synced,
    list_segments,
    segment_name,
)
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import ValueType

LOG = "log"
PART = "log.part"
SEGMENT_BYTES = 8 << 20
_PAGE_BYTES = 1 << 20

_T = TypeVar("_T")


class Appender:
    """Appends to the log in ``directory``, which ``log`` is what was read of. One thread at a time.

    The tail that a crash left is cut off. The last frame is cut there, written and synced again if that is
    not known to be on disk: after a failed sync the kernel may show what it never wrote, or never cut.

    Raises `OSError`. After an error in a call, only `close` may follow: nothing is tried again.
    """

    def __init__(self, directory: Path, log: Log) -> None:
        self._directory = directory
        self._log = log
        self._last = log.index.last
        self._over = 0  # the last segment that nothing more is to be written to
        self._file = self._synced = -1
        try:
            self._synced = open_file(directory / SYNCED, os.O_WRONLY | os.O_CREAT)
            self._file = self._open()
            is_torn = os.fstat(self._file).st_size > log.end.offset
            if is_torn and not log.unsynced:  # if the sync fails, the next open must not trust what it sees
                _write(self._synced, encode_synced(0, 0), 0)
            if is_torn or log.unsynced:
                os.ftruncate(self._file, log.end.offset)
                _write(self._file, log.unsynced, log.end.offset - len(log.unsynced))
                os.fsync(self._file)
                fsync_path(directory)
                self._set_synced()
            log.unsynced = b""
        except BaseException:
            self.close()
            raise

    @property
    def segment(self) -> int:
        """The number of the segment that is written to."""
        return self._log.end.number

    @property
    def end(self) -> tuple[int, int]:
        """The number of that segment, and up to where it is written and synced. From any thread."""
        end = self._log.end
        return end.number, end.offset

    def end_segment(self, number: int) -> None:
        """Write no more to the segment ``number``, which is damaged: the next write begins another one. From
        any thread."""
        self._over = max(self._over, number)

    @property
    def level(self) -> int:
        """The log's level: no Configuration in it is of a higher one."""
        return self._log.level

    def write(self, steps: Sequence[Persist], boundary: SnapshotMeta | None = None) -> list[Positions]:
        """Write steps, and let the log begin after ``boundary`` (unless it is None, or the log begins later);
        all of it or nothing, and durable on return. Returns where the entries of each step lie. Raises
        `struct.error`, too: a number is too large."""
        log = self._log
        level = max(log.level, *_levels(steps, boundary))
        if level > log.level or log.end.offset >= SEGMENT_BYTES or log.end.number <= self._over:
            log.level = level
            self._begin_segment()
        encoder = Encoder(log.end)
        state, begins, last = log.hard_state, log.boundary, self._last
        found: list[Positions] = []
        for step in steps:
            if step.snapshot is not None:
                begins = step.snapshot
                encoder.boundary(begins)
                last = max(last, begins.index)
            if step.truncate_from is not None:
                encoder.truncate(step.truncate_from)
                last = min(last, step.truncate_from - 1)
            found.append(encoder.entries(step.entries))
            last += len(step.entries)
            state = step.hard_state or state
        if state != log.hard_state:
            encoder.hard_state(state)
        if boundary is not None and boundary.index > begins.index:
            begins = boundary
            encoder.boundary(begins)
        self._append(encoder)
        log.hard_state, log.boundary, self._last = state, begins, last
        return found

    def delete_segments(self, before: int) -> None:
        """Delete the segments with numbers below ``before``, which hold no entry of the log."""
        for number in _forever(lambda: list_segments(self._directory)):
            if number < min(before, self._log.end.number):
                (self._directory / segment_name(number)).unlink()

    def sync_all(self) -> None:
        """Make durable how far the log is synced, for the next start."""
        self._set_synced()
        os.fsync(self._synced)

    def close(self) -> None:
        """Close the files. Nothing is written."""
        for descriptor in (self._file, self._synced):
            if descriptor >= 0:
                descriptors.close(descriptor)
        self._file = self._synced = -1

    def _append(self, encoder: Encoder) -> None:
        end = self._log.end
        frame, end.checksum = encoder.frame()
        _write(self._file, frame, end.offset)
        os.fdatasync(self._file)
        end.offset, end.sequence = end.offset + len(frame), end.sequence + 1
        self._set_synced()

    def _begin_segment(self) -> None:
        # However long descriptors are short: that is no failure of the disk, and nothing was written yet.
        _forever(lambda: _begin_segment(self._directory, self._log, self._last))
        descriptors.close(self._file)
        self._file = -1
        self._file = _forever(self._open)

    def _open(self) -> int:
        return open_file(self._directory / segment_name(self._log.end.number), os.O_WRONLY)

    def _set_synced(self) -> None:
        _write(self._synced, encode_synced(self._log.end.number, self._log.end.offset), 0)


def make_log(
    directory: Path,
    genesis: Genesis,
    state: HardState,
    boundary: SnapshotMeta,
    entries: Iterable[Entry],
    level: int = 0,
) -> None:
    """Make a log that begins after ``boundary`` in ``directory`` (a farm's, which must not have one),
    durably: an interrupted call leaves none, and can be repeated. ``level``: of its first segment, if no
    Configuration there is of a higher one.

    Raises `OSError`, `LocalProtocolError` (an illegal Configuration).
    """
    part = directory / PART
    write_log(part, genesis, state, boundary, entries, level)
    part.rename(directory / LOG)
    fsync_path(directory)


def write_log(
    directory: Path,
    genesis: Genesis,
    state: HardState,
    boundary: SnapshotMeta,
    entries: Iterable[Entry],
    level: int,
) -> None:
    """Write the files of a log, durably, into ``directory``, which takes the place of an older one. Other
    arguments and errors as for `make_log`."""
    if directory.exists():
        shutil.rmtree(directory)
    make_private_directory(directory)
    level = max(level, boundary.configuration.level, (genesis.configuration or boundary.configuration).level)
    log = Log(genesis, state, boundary, LogIndex(boundary.index + 1), End(0, b"", 0, 0, 0), level, {})
    _begin_segment(directory, log, boundary.index)
    with closing(Appender(directory, log)) as appender:
        page: list[Entry] = []
        size = 0
        for entry in entries:
            page.append(entry)
            size += len(entry.value)
            if size >= _PAGE_BYTES:
                appender.write([Persist(0, entries=tuple(page))])
                page, size = [], 0
        if page:
            appender.write([Persist(0, entries=tuple(page))])
        appender.sync_all()
    fsync_path(directory)


def _levels(steps: Sequence[Persist], boundary: SnapshotMeta | None) -> Iterator[int]:
    """Those of all Configurations that are to be written."""
    kind = ValueType.CONFIGURATION  # looked up once
    yield 0 if boundary is None else boundary.configuration.level
    for step in steps:
        if step.snapshot is not None:
            yield step.snapshot.configuration.level
        for entry in step.entries:
            if entry.value_type is kind:
                yield decode_configuration(entry.value).level


def _begin_segment(directory: Path, log: Log, last_index: int) -> None:
    """Make the next segment; ``log.end`` is in it then."""
    number, mark = log.end.number + 1, secrets.token_bytes(4)
    header = encode_header(log, last_index, number, mark)
    replace_file(directory / segment_name(number), [header], 0o600)
    log.end = End(number, mark, len(header), 1, crc32(header))


def _forever(attempt: Callable[[], _T]) -> _T:
    return descriptors.patiently(attempt, math.inf)


def _write(file: int, data: bytes | bytearray, offset: int) -> None:
    written = os.pwrite(file, data, offset)
    while written < len(data):  # what is left of room, say; the next call tells
        written += os.pwrite(file, data[written:], offset + written)
