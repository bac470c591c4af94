"""Opening files that must be regular ones: those of stores, and those that hold secrets.

To open a FIFO waits for its other end, perhaps for ever; a device may do anything. Both are refused.
A shortage of descriptors is waited out (`garlicfarm.descriptors`).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from garlicfarm import descriptors

_OTHERS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_REFUSED = {errno.ENXIO, errno.ENODEV, errno.EISDIR}  # by the system: a FIFO without a reader, a socket, …


class IrregularFile(OSError):
    """It is no regular file; ``strerror`` says what it is."""


def check_regular(path: Path) -> None:
    """Raises `IrregularFile`, other `OSError`. For files that a library opens."""
    _check(path.stat(), path)


def open_file(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor, as `os.open`; blocking no longer than `descriptors.WAIT_S`. Close it with
    `descriptors.close`. Raises `IrregularFile`, other `OSError`."""
    flags |= os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = descriptors.patiently(lambda: os.open(path, flags, mode))
    except OSError as error:
        if error.errno in _REFUSED:
            check_regular(path)
        raise
    try:
        _check(os.fstat(descriptor), path)
    except BaseException:
        descriptors.close(descriptor)
        raise
    return descriptor


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """The open file, while the context lasts. Raises as `open_file`."""
    descriptor = open_file(path)
    try:
        with open(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        descriptors.close(descriptor)


def read_file(path: Path) -> bytes:
    """All of a file. Raises as `open_file`."""
    with reading(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """The same of a text, whose lines end by LF. Raises as `open_file`; `UnicodeDecodeError`: not UTF-8."""
    return read_file(path).decode().replace("\r\n", "\n")


def _check(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        what = _OTHERS.get(stat.S_IFMT(found.st_mode), "something else")
        raise IrregularFile(errno.EINVAL, f"it is {what}, not a regular file", str(path))
