"""Headers of segments as other programs would write them: with right checksums."""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import crc32

import msgspec

from garlicfarm.storage.segments import list_segments, segment_name

_HEAD = struct.Struct(">8sIII")


def read_header(log: Path, number: int) -> tuple[int, dict[str, object]]:
    """The format of a segment, and its header."""
    data = (log / segment_name(number)).read_bytes()
    _, version, size, _ = _HEAD.unpack_from(data)
    return version, msgspec.json.decode(data[_HEAD.size : _HEAD.size + size])


def levels(log: Path) -> list[tuple[int, object]]:
    """The format and the level of each segment."""
    headers = [read_header(log, number) for number in list_segments(log)]
    return [(version, header.get("level", 0)) for version, header in headers]


def replace_header(log: Path, number: int, version: int, **keys: object) -> None:
    """Give a segment another header, with this version and these ``keys`` (``...``: without that one)."""
    path = log / segment_name(number)
    data = path.read_bytes()
    magic, _, size, _ = _HEAD.unpack_from(data)
    told = {**read_header(log, number)[1], **keys}
    header = msgspec.json.encode({key: value for key, value in told.items() if value is not ...})
    checksum = crc32(header, crc32(_HEAD.pack(magic, version, len(header), 0)))
    path.write_bytes(_HEAD.pack(magic, version, len(header), checksum) + header + data[_HEAD.size + size :])
