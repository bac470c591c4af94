"""Files that hold secrets: read only if others cannot read them, written durably and never overwritten."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from garlicfarm.errors import ConfigError

__all__ = [
    "make_private_directory",
    "read_private_file",
    "sync_directory",
    "write_new_file",
    "write_private_file",
]


def read_private_file(path: Path) -> str:
    """The text of a file that holds a secret.

    :raises ConfigError: missing, not readable, not UTF-8, or its mode lets others read or write it
        (the operator's fault).
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError([f"{path} holds secrets, but its mode is {mode:04o}: chmod 600 {path}"])
            return file.read().decode()
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError:
        # Not chained: the error carries the file's contents.
        raise ConfigError([f"{path} is not text"]) from None


def write_private_file(path: Path, data: bytes) -> None:
    """Write a new file that holds a secret, mode 0600, durably, and what is missing of the directories above
    it. An existing file is never overwritten.

    :raises ConfigError: the file exists, or cannot be made.
    """
    try:
        write_new_file(path, data, 0o600)
    except FileExistsError as error:
        raise ConfigError([f"{path} exists; a file with a secret is never overwritten"]) from error
    except OSError as error:
        raise ConfigError([f"{path} cannot be written: {error.strerror}"]) from error


def write_new_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file that must not exist, durably: no more than ``mode`` whatever the umask, and the whole of
    it or nothing. Raises `OSError`."""
    make_private_directory(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
    except BaseException:
        path.unlink()
        raise


def make_private_directory(directory: Path) -> None:
    """Make what is missing of a directory and those above it, each mode 0700, durably. Raises `OSError`."""
    if not directory.is_dir():
        parent = directory.absolute().parent
        make_private_directory(parent)
        directory.mkdir(mode=0o700, exist_ok=True)
        sync_directory(parent)


def sync_directory(directory: Path) -> None:
    """Make a new or renamed name in ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
