"""Files that survive a power cut once a call has returned.

Two syncs make a file durable: one of its contents, then one of the directory that names it. A file that takes
the place of another is written beside it and renamed in between. Every writer of a room goes through here;
the frames of the log are its own (`garlicfarm.storage.appender`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["fsync_path", "make_private_directory", "move_into_place", "replace_file", "write_new_file"]


def fsync_path(path: Path) -> None:
    """Make a file's contents, or the names in a directory, durable. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_new_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file that must not exist yet, all of it or nothing; missing directories are made, private.

    ``mode`` limits the permissions, regardless of the umask. Raises `OSError`.
    """
    make_private_directory(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        _write(descriptor, [data])
        fsync_path(path.parent)
    except BaseException:
        path.unlink()
        raise


def replace_file(path: Path, parts: Iterable[bytes], mode: int) -> None:
    """Write a file, in the place of an older one if there is one: a crash leaves the old one or the new one.

    ``parts`` follow each other in it, and ``mode`` is its mode, regardless of the umask. It is written as
    ``NAME.new`` beside ``path``, which is removed after an error. Raises `OSError`.
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)  # left by a crash
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o600)
        os.fchmod(descriptor, mode)
        _write(descriptor, parts)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    fsync_path(path.parent)


def move_into_place(part: Path, path: Path) -> None:
    """Give a finished file its name, in the same directory: contents first. Raises `OSError`."""
    fsync_path(part)
    part.rename(path)
    fsync_path(path.parent)


def make_private_directory(directory: Path) -> None:
    """Make a directory and those missing above it, each with mode 0700. Raises `OSError`."""
    if not directory.is_dir():
        parent = directory.absolute().parent
        make_private_directory(parent)
        directory.mkdir(mode=0o700, exist_ok=True)
        fsync_path(parent)


def _write(descriptor: int, parts: Iterable[bytes]) -> None:
    with open(descriptor, "wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
