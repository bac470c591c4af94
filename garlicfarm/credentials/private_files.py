"""Files that hold secrets: read only if others cannot read them, written durably and never overwritten."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from garlicfarm.durable_files import owner_of, write_new_file
from garlicfarm.errors import ConfigError
from garlicfarm.regular_files import reading


def read_private_file(path: Path) -> str:
    """The text of a file that holds a secret.

    :raises ConfigError: as `read_private_bytes`, or it is not UTF-8.
    """
    try:
        return read_private_bytes(path).decode()
    except UnicodeDecodeError:
        # Not chained: the error carries the file's contents.
        raise ConfigError([f"{path} is not text"]) from None


def read_password(path: Path) -> str:
    """The first line of a file that holds a password, without its end; it may be empty.

    :raises ConfigError: as `read_private_file`.
    """
    return read_private_file(path).partition("\n")[0].removesuffix("\r")


def read_private_bytes(path: Path) -> bytes:
    """The bytes of a file that holds a secret.

    :raises ConfigError: missing, not readable, or its mode lets others read or write it (the operator's
        fault).
    """
    try:
        with reading(path) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError([f"{path} holds secrets, but its mode is {mode:04o}: chmod 600 {path}"])
            return file.read()
    except PermissionError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}{_whose(path)}"]) from error
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}"]) from error


def _whose(path: Path) -> str:
    """Why a file cannot be read that is another user's, and what to do; "" where that cannot be told."""
    try:
        us = path.parent.stat().st_uid
        if path.stat().st_uid == us:
            return ""
        return f"; it belongs to the user {owner_of(path)}: as root, chown {us} {path}"
    except OSError:
        return ""


def write_private_file(path: Path, data: bytes) -> None:
    """Write a new file that holds a secret, mode 0600, durably; missing directories above it are made. An
    existing file is never overwritten.

    :raises ConfigError: the file exists, or cannot be made.
    """
    try:
        write_new_file(path, data, 0o600)
    except FileExistsError as error:
        raise ConfigError([f"{path} exists; a file with a secret is never overwritten"]) from error
    except OSError as error:
        raise ConfigError([f"{path} cannot be written: {error.strerror}"]) from error
