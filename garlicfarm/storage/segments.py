"""The form of a log on disk, and how it is read at a start.

::

    log/0000000001.seg …    segments with consecutive numbers; only the last one grows
    log/synced              how far they are synced: segment u64 | offset u64 | crc32; never synced itself

    segment    magic 8 bytes | version u32 | size u32 | crc32 of these and the header | header | frame …
    frame      mark 4 bytes | sequence u32 | size u32 | crc32 of these | crc32 of the records | record …
    record     0x01 | index u64 | term u64 | type u8 | size u32 | crc32 of these and the value | value
               0x02 | term u64 | vote u64 | commit u64      the hard state
               0x03 | index u64                             the entries from here on are deleted
               0x04 | index u64 | term u64 | size u32 | Configuration     the log begins after this entry

big-endian. A frame is one batch: written by one call and synced before the next one is written. Its second
checksum continues that of the frame before, the first one's that of the segment's header. The header is JSON:
the genesis, all state at the segment's beginning, the last checksum of the segment before, and the
``mark`` of its frames, which is random, so that no entry can hold the beginning of a frame. From format 5 on
it also has the ``level``, which no Configuration in this segment or before exceeds, and the ``program`` that
made the segment, as a version of garlicfarm. A segment of level 0 has format 4, and neither
(`garlicfarm.storage.formats`).

A segment has its name only once its header is synced. So after a crash at most *one* frame, the last one of
the last segment, is not whole. It was never acknowledged, and is cut off. Everything else is damage:

* a header or any other frame that fails its checksum: another frame of this segment begins behind it, or
  the next segment's header names another last checksum,
* a log that ends before what ``synced`` says. This file is written after each sync of the log. A killed
  process leaves it exact; after a power cut it may be old, never ahead,
* a segment that is missing, if the log begins in it or before.

What stays undetected is damage to the last frame if the machine (not only the process) went down before
the kernel wrote ``synced``: no checksum can distinguish that from a torn write.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated
from zlib import crc32

import msgspec

from garlicfarm._version import __version__
from garlicfarm.agreed import EPOCH_LENGTH
from garlicfarm.descriptors import patiently
from garlicfarm.levels import HIGHEST
from garlicfarm.raft.types import Entry, HardState, SnapshotMeta
from garlicfarm.regular_files import read_file, reading
from garlicfarm.storage.damage import Corrupt, configuration_of, unknown_files
from garlicfarm.storage.formats import FORMATS, format_of, other_level, other_version
from garlicfarm.storage.log_index import LogIndex, Positions
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import Configuration, ValueType

_MAGIC = b"GFARMLOG"
_HEAD = struct.Struct(">8sIII")
_FRAME = struct.Struct(">4sIIII")
_CRC = struct.Struct(">I")
_ENTRY_HEAD = struct.Struct(">BQQBI")
_ENTRY_BYTES = _ENTRY_HEAD.size + _CRC.size
_HARD_STATE = struct.Struct(">BQQQ")
_TRUNCATE = struct.Struct(">BQ")
_BOUNDARY = struct.Struct(">BQQI")
_SYNCED = struct.Struct(">QQI")
_IS_ENTRY, _IS_HARD_STATE, _IS_TRUNCATE, _IS_BOUNDARY = 1, 2, 3, 4
_VALUE_TYPES = {kind.value: kind for kind in ValueType}
_IS_CONFIGURATION = ValueType.CONFIGURATION.value
SYNCED = "synced"
_NAME = re.compile(r"(\d{10})\.seg", re.ASCII)
_OFFSET = 0xFFFF_FFFF
_GAP_BYTES = 1 << 16  # between two entries that are read at once
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Version = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{0,64}\Z")]  # shown to people


class Genesis(msgspec.Struct, frozen=True):
    """What a store is created with; it is not a log entry. The farm, its id (16 bytes), the application (by
    its name, D14), the algorithm's version, and the Configuration in force at index 0, which is None on a
    node that joins: its leader sends it (``node join``). ``epoch_length``: how many Application entries make
    an epoch (D23)."""

    farm: str
    farm_id: bytes
    application: str
    algorithm: int
    configuration: Configuration | None
    epoch_length: int = EPOCH_LENGTH


class _Header(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    number: _Number
    mark: bytes
    previous_checksum: _Number
    farm: str
    farm_id: bytes
    application: str
    algorithm: _Number
    first_configuration: bytes | None
    epoch_length: Annotated[int, msgspec.Meta(ge=1)]
    term: _Number
    vote: _Number
    commit: _Number
    boundary_index: _Number
    boundary_term: _Number
    boundary_configuration: bytes
    last_index: _Number
    level: _Number = 0
    program: _Version = ""


class _Maker(msgspec.Struct):
    """What is read of a header in an unknown format."""

    program: _Version = ""


class End(msgspec.Struct):
    """Where the next frame goes: the last segment, its mark, the frame's place and sequence there, and the
    checksum that its own continues."""

    number: int
    mark: bytes
    offset: int
    sequence: int
    checksum: int


class Log(msgspec.Struct):
    """What a log holds, as its last frame left it. ``boundary``: the entry that it begins after, (0, 0) at
    first, and the Configuration in force there. ``level``: no Configuration in it, or deleted from it, is of
    a higher one. ``formats``: of the segments that were read, by number. ``unsynced``: the last frame, or
    header, unless ``synced`` says that it is on disk."""

    genesis: Genesis
    hard_state: HardState
    boundary: SnapshotMeta
    index: LogIndex
    end: End
    level: int
    formats: dict[int, int]
    unsynced: bytes = b""


def segment_name(number: int) -> str:
    return f"{number:010}.seg"


def list_segments(directory: Path) -> Sequence[int]:
    """The numbers of the segments, in order. Raises `OSError`."""
    return sorted(
        int(match[1]) for name in patiently(lambda: os.listdir(directory)) if (match := _NAME.fullmatch(name))
    )


def encode_header(log: Log, last_index: int, number: int, mark: bytes, program: str = __version__) -> bytes:
    """A segment's beginning, in the state of ``log`` with ``last_index``, made by ``program``. Raises
    `LocalProtocolError` (a Configuration with illegal servers)."""
    genesis, state, boundary = log.genesis, log.hard_state, log.boundary
    first = None if genesis.configuration is None else encode_configuration(genesis.configuration)
    told = _Header(
        number=number,
        mark=mark,
        previous_checksum=log.end.checksum,
        farm=genesis.farm,
        farm_id=genesis.farm_id,
        application=genesis.application,
        algorithm=genesis.algorithm,
        first_configuration=first,
        epoch_length=genesis.epoch_length,
        term=state.term,
        vote=state.vote,
        commit=state.commit,
        boundary_index=boundary.index,
        boundary_term=boundary.term,
        boundary_configuration=encode_configuration(boundary.configuration),
        last_index=last_index,
        level=log.level,
        program=program if log.level else "",
    )
    header, version = msgspec.json.encode(told), format_of(log.level)
    checksum = crc32(header, crc32(_HEAD.pack(_MAGIC, version, len(header), 0)))
    return _HEAD.pack(_MAGIC, version, len(header), checksum) + header


def encode_synced(number: int, offset: int) -> bytes:
    """The contents of ``synced``."""
    body = _SYNCED.pack(number, offset, 0)[:-4]
    return body + _CRC.pack(crc32(body))


class Encoder:
    """Collects the records of the frame that goes to ``end``. Raises `struct.error`: a number is too
    large."""

    def __init__(self, end: End) -> None:
        self._end = end
        self._position = (end.number << 32) + end.offset + _FRAME.size
        self._parts = [bytes(_FRAME.size)]

    def frame(self) -> tuple[bytearray, int]:
        """The frame, copied once, and its second checksum."""
        end, frame = self._end, bytearray().join(self._parts)
        view = memoryview(frame)
        checksum = crc32(view[_FRAME.size :], end.checksum)
        _FRAME.pack_into(frame, 0, end.mark, end.sequence, len(frame) - _FRAME.size, 0, checksum)
        _CRC.pack_into(frame, _FRAME.size - 2 * _CRC.size, crc32(view[:12]))
        return frame, checksum

    def entries(self, entries: Sequence[Entry]) -> Positions:
        """Add entries; returns where they are."""
        positions, position, parts = Positions(), self._position, self._parts
        for entry in entries:
            index, kind, value = entry.index, entry.value_type, entry.value
            head = _ENTRY_HEAD.pack(_IS_ENTRY, index, entry.term, kind, len(value))
            parts += head, _CRC.pack(crc32(value, crc32(head))), value
            positions.add(index, position, len(value), kind)
            position += _ENTRY_BYTES + len(value)
        self._position = position
        return positions

    def hard_state(self, state: HardState) -> None:
        self._add(_HARD_STATE.pack(_IS_HARD_STATE, state.term, state.vote, state.commit))

    def truncate(self, index: int) -> None:
        self._add(_TRUNCATE.pack(_IS_TRUNCATE, index))

    def boundary(self, boundary: SnapshotMeta) -> None:
        configuration = encode_configuration(boundary.configuration)
        head = _BOUNDARY.pack(_IS_BOUNDARY, boundary.index, boundary.term, len(configuration))
        self._add(head + configuration)

    def _add(self, record: bytes) -> None:
        self._parts.append(record)
        self._position += len(record)


def read_entries(directory: Path, index: int, positions: Sequence[tuple[int, int]]) -> list[Entry]:
    """Read and check the entries from ``index`` on, with these places and sizes. Raises `OSError` (also:
    their segment is deleted), `Corrupt`."""
    found: list[Entry] = []
    for run in _runs(positions):
        segment, start = divmod(run[0][0], 1 << 32)
        end = (run[-1][0] & _OFFSET) + _ENTRY_BYTES + run[-1][1]
        with reading(directory / segment_name(segment)) as file:
            data = os.pread(file.fileno(), end - start, start)
        for position, size in run:
            found.append(_decode_entry(data, (position & _OFFSET) - start, index + len(found), size))
    return found


def entries_from(
    directory: Path, index: LogIndex, first: int, last: int, page_bytes: int = 1 << 20
) -> Iterator[Entry]:
    """All entries first ≤ index ≤ last; no more than ``page_bytes``, or one entry, are in memory at a time.
    Raises as `read_entries`."""
    while first <= last:
        places = index.find(first, last + 1, page_bytes)
        yield from read_entries(directory, first, places)
        first += len(places)


def _runs(positions: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    """Split where another segment begins, or where so much lies between that it should not be read."""
    first = 0
    for number in range(1, len(positions)):
        position, size = positions[number - 1]
        if positions[number][0] - position - size > _GAP_BYTES:
            yield positions[first:number]
            first = number
    if positions:
        yield positions[first:]


def _decode_entry(data: bytes, at: int, index: int, size: int) -> Entry:
    value_at = at + _ENTRY_BYTES
    value = data[value_at : value_at + size]
    try:
        kind, found, term, value_type, found_size = _ENTRY_HEAD.unpack_from(data, at)
        (checksum,) = _CRC.unpack_from(data, at + _ENTRY_HEAD.size)
        if (kind, found, found_size, len(value)) == (_IS_ENTRY, index, size, size) and crc32(
            value, crc32(data[at : at + _ENTRY_HEAD.size])
        ) == checksum:
            return Entry(index, term, _VALUE_TYPES[value_type], value)
    except (KeyError, struct.error):
        pass
    raise Corrupt(f"entry {index} fails its checksum")


def genesis_of_log(directory: Path) -> Genesis:
    """What the log in ``directory`` was created with; a node may be writing to it. Raises `StorageVersion`,
    `OSError`, `Corrupt`."""
    for number in reversed(list_segments(directory)):
        try:
            data = read_file(directory / segment_name(number))
        except FileNotFoundError:  # deleted meanwhile
            continue
        return _genesis(_read_header(directory / segment_name(number), data)[0])
    raise no_segment(directory)


def no_segment(directory: Path) -> Exception:
    """What to raise where there is none."""
    return unknown_files(directory, {SYNCED}) or Corrupt("there is no segment")


def read_log(directory: Path) -> Log:
    """Read and check all of a log; nothing is changed. Segments before a missing one are ignored, if the log
    begins after them. Raises `StorageVersion`, `OSError`, `Corrupt`."""
    numbers = list_segments(directory)
    if not numbers:
        raise no_segment(directory)
    run = [number for at, number in enumerate(numbers) if numbers[-1] - number == len(numbers) - 1 - at]
    log: Log | None = None
    size = 0
    for number in run:
        path = directory / segment_name(number)
        data = read_file(path)
        header, offset = _read_header(path, data)
        if header.number != number:
            raise Corrupt(f"{path.name} is segment {header.number}")
        if log is None:
            log = _begun(header)
        elif log.end.offset != size:
            raise Corrupt(f"segment {number - 1} ends with a damaged frame")
        else:
            log.level = max(log.level, header.level)
            continued = encode_header(log, log.index.last, number, header.mark, header.program)
            if continued != data[:offset]:
                raise Corrupt(f"segment {number} does not continue the one before")
        log.formats[number] = format_of(log.level)
        log.end = End(number, header.mark, offset, 1, crc32(data[:offset]))
        log.unsynced, size = data[:offset], len(data)
        _replay(log, data)
    assert log is not None
    if log.index.first != log.boundary.index + 1:
        raise Corrupt(f"entry {log.boundary.index + 1} is missing")
    if log.hard_state.commit > log.index.last:
        raise Corrupt(f"the log ends at {log.index.last}, but is committed up to {log.hard_state.commit}")
    synced = _read_synced(directory / SYNCED)
    end = log.end.number, log.end.offset
    if synced > end:
        raise Corrupt(f"the log ends at (segment, byte) {end}, and was synced up to {synced}")
    if synced == end:
        log.unsynced = b""
    return log


def check_segment(path: Path, number: int, data: bytes) -> None:
    """Check the header and every frame of a segment, all of which is written. Raises `Corrupt`."""
    header, offset = _read_header(path, data)
    if header.number != number:
        raise Corrupt(f"{path.name} is segment {header.number}")
    view, sequence, checksum = memoryview(data), 1, crc32(data[:offset])
    while offset < len(data):
        head, first = _frame_head(view, offset), offset + _FRAME.size
        if head is None or head[:2] != (header.mark, sequence):
            raise Corrupt(f"the head of frame {sequence} fails its checksum")
        offset = first + head[2]
        if offset > len(data) or crc32(view[first:offset], checksum) != head[3]:
            raise Corrupt(f"frame {sequence} fails its checksum")
        sequence, checksum = sequence + 1, head[3]


def _read_header(path: Path, data: bytes) -> tuple[_Header, int]:
    """A segment's header and its size."""
    try:
        magic, version, size, checksum = _HEAD.unpack_from(data)
        end = _HEAD.size + size
        if checksum != crc32(data[_HEAD.size : end], crc32(_HEAD.pack(magic, version, size, 0))):
            other = f"; it names format version {version}" if version not in FORMATS else ""
            raise Corrupt(f"the header of {path.name} fails its checksum{other}")
        if magic != _MAGIC:
            raise Corrupt(f"{path.name} is not a segment")
        if version not in FORMATS:
            raise other_version(path, version, FORMATS, _maker(data[_HEAD.size : end]))
        header = msgspec.json.decode(data[_HEAD.size : end], type=_Header)
        if header.level > HIGHEST and header.program:
            raise other_level(path, header.level, header.program)
        if format_of(header.level) != version or bool(header.level) != bool(header.program):
            raise Corrupt(f"{path.name} names format version {version}, and has the header of another")
        return header, end
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"the header of {path.name} cannot be decoded: {error}") from error


def _maker(header: bytes) -> str:
    """The program that made a segment in an unknown format; "" where it does not say that as we do."""
    try:
        return msgspec.json.decode(header, type=_Maker).program
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _genesis(header: _Header) -> Genesis:
    first = header.first_configuration
    configuration = None if first is None else configuration_of(first)
    made = (header.farm, header.farm_id, header.application, header.algorithm)
    return Genesis(*made, configuration, header.epoch_length)


def _begun(header: _Header) -> Log:
    """The log at the beginning of its first segment."""
    boundary = header.boundary_index, header.boundary_term, configuration_of(header.boundary_configuration)
    state = HardState(header.term, header.vote, header.commit)
    end = End(0, b"", 0, 0, header.previous_checksum)
    genesis, index = _genesis(header), LogIndex(header.last_index + 1)
    log = Log(genesis, state, SnapshotMeta(*boundary), index, end, header.level, {})
    for configuration in (genesis.configuration, log.boundary.configuration):
        _check_level(log, configuration)
    return log


def _check_level(log: Log, configuration: Configuration | None) -> None:
    if configuration is not None and configuration.level > log.level:
        raise Corrupt(f"a Configuration of level {configuration.level} stands in a segment of {log.level}")


def _replay(log: Log, data: bytes) -> None:
    """Take up the frames of a segment from ``log.end`` on, as far as they are whole."""
    end, view = log.end, memoryview(data)
    while (head := _frame_head(view, end.offset)) is not None and head[:2] == (end.mark, end.sequence):
        first = end.offset + _FRAME.size
        after = first + head[2]
        if after > len(data) or crc32(view[first:after], end.checksum) != head[3]:
            break
        try:
            _take(log, view[:after], first)
        except struct.error as error:
            raise Corrupt(f"frame {end.sequence} of segment {end.number} ends within a record") from error
        log.unsynced = data[end.offset : after]
        end.offset, end.sequence, end.checksum = after, end.sequence + 1, head[3]
    at = data.find(end.mark, end.offset)
    while at != -1:
        head = _frame_head(view, at)
        if head is not None and head[1] > end.sequence:
            raise Corrupt(f"frame {end.sequence} of segment {end.number} is damaged, and a later one follows")
        at = data.find(end.mark, at + 1)


def _frame_head(data: memoryview, at: int) -> tuple[bytes, int, int, int] | None:
    """Mark, sequence, size, and the checksum of the records; None if it is torn."""
    head = data[at : at + _FRAME.size]
    if len(head) < _FRAME.size:
        return None
    mark, sequence, size, own, checksum = _FRAME.unpack(head)
    return (mark, sequence, size, checksum) if crc32(head[:12]) == own else None


def _take(log: Log, data: memoryview, at: int) -> None:
    """Take up the records of a frame, which reach from ``at`` to the end of ``data``."""
    index, base, positions = log.index, log.end.number << 32, Positions()
    following = index.last + 1
    while at < len(data):
        kind = data[at]
        if kind == _IS_ENTRY:
            _, found, _, value_type, size = _ENTRY_HEAD.unpack_from(data, at)
            if found != following:
                raise Corrupt(f"entry {found} stands where {following} is next")
            position, at = at, at + _ENTRY_BYTES + size
            if at > len(data) or value_type not in _VALUE_TYPES:
                raise Corrupt(f"entry {found} is of an unknown type, or ends beyond its frame")
            positions.add(found, base | position, size, value_type)
            if value_type == _IS_CONFIGURATION:
                _check_level(log, configuration_of(bytes(data[at - size : at])))
            following += 1
            continue
        index.append(positions)
        positions = Positions()
        if kind == _IS_HARD_STATE:
            _, *state = _HARD_STATE.unpack_from(data, at)
            log.hard_state = HardState(*state)
            at += _HARD_STATE.size
        elif kind == _IS_TRUNCATE:
            _, first = _TRUNCATE.unpack_from(data, at)
            index.truncate(first)
            at += _TRUNCATE.size
        elif kind == _IS_BOUNDARY:
            _, upto, term, size = _BOUNDARY.unpack_from(data, at)
            at += _BOUNDARY.size + size
            log.boundary = SnapshotMeta(upto, term, configuration_of(bytes(data[at - size : at])))
            _check_level(log, log.boundary.configuration)
            index.drop(upto)
        else:
            raise Corrupt(f"a record is of the unknown kind {kind}")
        following = index.last + 1
    index.append(positions)


def _read_synced(path: Path) -> tuple[int, int]:
    """Segment and offset; (0, 0) if the file is missing or torn."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        return 0, 0
    number, offset, _ = _SYNCED.unpack(data) if len(data) == _SYNCED.size else (0, 0, 0)
    return (number, offset) if encode_synced(number, offset) == data else (0, 0)
