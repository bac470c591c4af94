"""Files that survive a power cut once a call has returned.

Two syncs make a file durable: one of its contents, then one of the directory that names it. A file that takes
the place of another is written beside it and renamed in between. Every writer of a room goes through here;
the frames of the log are its own (`garlicfarm.storage.appender`).

What root makes in the directory of another user belongs to that user, whose node could not read it otherwise;
what root replaces keeps its owner.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from garlicfarm import descriptors
from garlicfarm.regular_files import open_file

WAIT_S = 10.0  # for a descriptor


def fsync_path(path: Path) -> None:
    """Make a file's contents, or the names in a directory, durable. Raises `OSError`."""
    descriptor = _open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        descriptors.close(descriptor)


def write_new_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file that must not exist yet, all of it or nothing; missing directories are made, private.

    ``mode`` limits the permissions, regardless of the umask. Raises `OSError`.
    """
    make_private_directory(path.parent)
    descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        _give(descriptor, path.parent.stat())
        _write(descriptor, [data])
        fsync_path(path.parent)
    except BaseException:
        path.unlink()
        raise


def replace_file(path: Path, parts: Iterable[bytes], mode: int) -> None:
    """Write a file, in the place of an older one if there is one: a crash leaves the old one or the new one.

    ``parts`` follow each other in it, and ``mode`` is its mode, regardless of the umask. It is written as
    ``NAME.new`` beside ``path``, which is removed after an error. Raises `OSError`, also where another user
    could no longer read a file of theirs.
    """
    old = path.stat() if path.exists() else None
    if old is not None and old.st_uid != os.geteuid() != 0 and not mode & 0o004:
        raise PermissionError(
            errno.EPERM, f"it belongs to the user {owner_of(path)}; run this as that user", os.fspath(path)
        )
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)  # left by a crash
    try:
        descriptor = _open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o600)
        os.fchmod(descriptor, mode)
        _give(descriptor, old or path.parent.stat())
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


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file for the block; it is made, private, if it is not there. A process that ends unlocks it.

    Raises `BlockingIOError`: another process has locked it; other `OSError`.
    """
    descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _give(descriptor, path.parent.stat())
        yield
    finally:
        descriptors.close(descriptor)


def make_private_directory(directory: Path) -> None:
    """Make a directory and those missing above it, each with mode 0700. Raises `OSError`."""
    if not directory.is_dir():
        parent = directory.absolute().parent
        make_private_directory(parent)
        directory.mkdir(mode=0o700, exist_ok=True)
        give_to_owner(directory, parent)
        fsync_path(parent)


def give_to_owner(tree: Path, parent: Path) -> None:
    """Where this is root: give a new file, or a new directory with all that is in it, to the owner of the
    directory ``parent``. Raises `OSError`."""
    owner = parent.stat()
    if os.geteuid() != 0 or owner.st_uid == tree.lstat().st_uid:
        return
    # The directory itself last: until then its new owner cannot exchange what is in it.
    for path in (*sorted(tree.rglob("*"), reverse=True), tree):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            _give(descriptor, owner)
        finally:
            os.close(descriptor)


def owner_of(path: Path) -> str:
    """The name of a file's owner, as ``sudo -u`` takes it: ``alice``, or ``#1000``. Raises `OSError`."""
    try:
        return path.owner()
    except KeyError:
        return f"#{path.stat().st_uid}"


def _give(descriptor: int, like: os.stat_result) -> None:
    """Where this is root: give a new file the owner of another one."""
    if os.geteuid() == 0 and like.st_uid != os.fstat(descriptor).st_uid:
        os.fchown(descriptor, like.st_uid, like.st_gid)


def _open(path: Path, flags: int, mode: int = 0) -> int:
    # Also after a write, as that of a directory to sync: opening writes nothing, and may be tried again.
    return descriptors.patiently(lambda: os.open(path, flags | os.O_CLOEXEC, mode), WAIT_S)


def _write(descriptor: int, parts: Iterable[bytes]) -> None:
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
    finally:
        descriptors.close(descriptor)
