"""Reading a node's files again while it runs, to find what the disk has changed since they were written.

Each check is an iterator: a step reads one piece and gives its size, so that the caller can take its time.
The kernel is asked to forget what it holds of a file first; otherwise it would show that, not the disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from garlicfarm.regular_files import reading
from garlicfarm.storage.damage import Corrupt
from garlicfarm.storage.segments import check_segment
from garlicfarm.storage.snapshots import check_pieces

PIECE_BYTES = 1 << 20
_UNREADABLE = (errno.EIO, errno.EILSEQ, errno.EUCLEAN)


def scrub_segment(path: Path, number: int, size: int | None) -> Iterator[int]:
    """Check the first ``size`` bytes of a segment, which are written; None: all. Raises `Corrupt`,
    `OSError`."""
    data = bytearray()
    for piece in _pieces(path):
        data += piece
        yield len(piece)
        if size is not None and len(data) >= size:
            break
    if size is not None and len(data) < size:
        raise Corrupt(f"it ends at byte {len(data)}, and was written up to {size}")
    check_segment(path, number, bytes(data[:size]))


def scrub_snapshot(path: Path) -> Iterator[int]:
    """Check a snapshot. Raises `Corrupt`, `OSError`."""
    return check_pieces(_pieces(path))


class KeyFiles:
    """Files without checksums: keys, secrets, users. The contents of one may change only with its date."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int, int], bytes]] = {}

    def scrub(self, path: Path) -> Iterator[int]:
        """Compare a file with what it was when it was read last. Raises `Corrupt`, `OSError`."""
        digest = sha256()
        with _reading(path) as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                yield len(piece)
            found = os.fstat(file.fileno())
        identity = found.st_ino, found.st_size, found.st_mtime_ns
        known = self._known.get(path)
        if known is not None and known[0] == identity and known[1] != digest.digest():
            raise Corrupt("its contents have changed, though nothing has written to it")
        self._known[path] = identity, digest.digest()


def _pieces(path: Path) -> Iterator[bytes]:
    with _reading(path) as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        with reading(path) as file:
            _forget(file)
            yield file
            _forget(file)  # nor keep what this has read
    except OSError as error:
        if error.errno in _UNREADABLE:
            raise Corrupt(f"it cannot be read: {error.strerror}") from error
        raise


def _forget(file: BinaryIO) -> None:
    if hasattr(os, "posix_fadvise"):  # where there is none, the cache is checked
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
