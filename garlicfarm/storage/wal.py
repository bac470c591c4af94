"""Distinguish a torn write from a lost one, before SQLite reads its write-ahead log.

SQLite uses the WAL up to its last sound commit and silently drops the rest. After a crash that is right for
the one transaction that was being written and wrong for any other: a flipped bit in an earlier one would
lose all later ones, which were acknowledged. Two facts distinguish the cases:

* Every commit is synced before the next transaction begins, nothing is rolled back, and opening a store
  empties the WAL. So after a crash at most *one* transaction follows the last sound commit. If a complete
  transaction and more frames follow it, an acknowledged transaction is damaged.
* The WAL index (``-shm``) advances only after the sync of a commit. If it has the same generation as the WAL
  (same salts) and counts more frames than are sound, a synced commit is damaged. It survives a killed
  process; after a power cut it may be old, but never ahead.

Two kinds of damage stay undetected: damage to the last transaction if the machine (not only the process)
went down before the kernel wrote the WAL index, since checksums cannot distinguish it from a torn write; and
a deleted WAL.

Source: https://www.sqlite.org/fileformat2.html §4 (WAL), https://www.sqlite.org/walformat.html §2
(WAL index; both little-changed since SQLite 3.7.0, and carrying the version that is checked here)::

    WAL header   magic u32 | version u32 | page_size u32 | checkpoint u32 | salts 8 | checksum 2 × u32
    frame        page u32 | pages_after_commit u32 (0 = no commit) | salts 8 | checksum 2 × u32 | page
    WAL index    2 × (version u32 | … | initialised u8 @12 | … | max_frame u32 @16 | … | salts 8 @32 | …)
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

from garlicfarm.regular_files import read_file, reading
from garlicfarm.storage.damage import Corrupt

__all__ = ["check_wal"]

_VERSION = 3_007_000
_MAGIC = {0x377F_0682: "<", 0x377F_0683: ">"}
_HEADER_BYTES = 32
_FRAME_HEADER = struct.Struct(">II8sII")
_INDEX_COPY_BYTES = 48
_MASK = 0xFFFF_FFFF

Sums = tuple[int, int]


class _Header(NamedTuple):
    order: str
    page_size: int
    salts: bytes
    sums: Sums


def check_wal(store: Path) -> None:
    """Raise `Corrupt` if the WAL of ``store`` has lost a committed transaction.

    It only reads, and not through SQLite, which would change the WAL index. About 50 µs per frame of 4 KiB.
    Do not call it while this process has the store open: closing a file drops the process's POSIX locks on
    it. `OSError` if the files cannot be read.
    """
    wal = store.with_name(store.name + "-wal")
    index = store.with_name(store.name + "-shm")
    synced = _read_index(read_file(index)) if index.exists() else None
    if wal.exists():
        with reading(wal) as file:
            _check(file, wal.stat().st_size, synced)


def _check(file: BinaryIO, size: int, synced: tuple[bytes, int] | None) -> None:
    header = _read_header(file.read(_HEADER_BYTES))
    if header is None:
        if size <= _HEADER_BYTES:
            return  # the header is synced before the first frame is written
        raise Corrupt(f"the WAL's header is damaged, and with it {size} bytes")
    sound = committed = 0
    sums = header.sums
    frame_bytes = _FRAME_HEADER.size + header.page_size
    while len(frame := file.read(frame_bytes)) == frame_bytes:
        page, commit, salts, *expected = _FRAME_HEADER.unpack_from(frame)
        if page == 0 or salts != header.salts:
            break
        sums = _checksum(header.order, frame[:8], sums)
        sums = _checksum(header.order, frame[_FRAME_HEADER.size :], sums)
        if sums != tuple(expected):
            break
        sound += 1
        if commit:
            committed = sound
    if synced is not None and synced[0] == header.salts and synced[1] > committed:
        raise Corrupt(f"frame {sound + 1} of the WAL is damaged, of {synced[1]} that were synced")
    ended = False
    while len(frame) == frame_bytes:
        _, commit, salts, *_ = _FRAME_HEADER.unpack_from(frame)
        if salts == header.salts:
            if ended:
                raise Corrupt(f"frame {sound + 1} of the WAL is damaged, and a later transaction follows")
            ended = commit != 0
        frame = file.read(frame_bytes)


def _read_header(data: bytes) -> _Header | None:
    """The WAL's header; None if it is incomplete or damaged."""
    if len(data) < _HEADER_BYTES:
        return None
    magic, version, page_size, _, salts, *expected = struct.unpack(">IIII8sII", data)
    order = _MAGIC.get(magic)
    if order is None or version != _VERSION or page_size % 8:  # the checksum is of pairs of words
        return None
    sums = _checksum(order, data[:24], (0, 0))
    return _Header(order, page_size, salts, sums) if sums == tuple(expected) else None


def _read_index(data: bytes) -> tuple[bytes, int] | None:
    """Salts and number of committed frames of a WAL index; None if it is torn or of another version."""
    first, second = data[:_INDEX_COPY_BYTES], data[_INDEX_COPY_BYTES : 2 * _INDEX_COPY_BYTES]
    if len(second) < _INDEX_COPY_BYTES or first != second or not first[12]:
        return None
    version, max_frame = struct.unpack_from("=I12xI", first)
    return (first[32:40], max_frame) if version == _VERSION else None


def _checksum(order: str, data: bytes, sums: Sums) -> Sums:
    """SQLite's running checksum over pairs of 32-bit words."""
    a, b = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for x, y in zip(words, words, strict=True):
        a = (a + x + b) & _MASK
        b = (b + y + a) & _MASK
    return a, b
