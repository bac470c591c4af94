"""Who is who in a farm (D10): member passwords from the farm secret, and the files that hold secrets.

Every member derives every other member's password, so nothing needs distributing, and which ids are
members now is no question of the handshake: a lagging server cannot know a new leader (D6).
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from garlicfarm.errors import ConfigError, LocalProtocolError
from garlicfarm.http.digest import ALGORITHMS, REALM, ha1

__all__ = [
    "MAX_MEMBER_ID",
    "make_private_directory",
    "member_lookup",
    "member_password",
    "read_private_file",
    "read_secret_file",
    "sync_directory",
    "write_new_file",
    "write_private_file",
    "write_secret_file",
]

MAX_MEMBER_ID = 2**31 - 1

_SECRET = re.compile(r"[A-Za-z0-9_-]{43}=?")


def member_password(farm_secret: bytes, farm_id: bytes, member_id: int) -> str:
    """The password with which a member logs in, as user ``str(member_id)``.

    :param farm_secret: 32 bytes.
    :param farm_id: 16 bytes.
    :param member_id: 1 … 2**31 - 1.
    :returns: 43 characters of base64url.
    :raises LocalProtocolError: an argument is out of its range.

    Source: D10, RFC 5869.
    """
    if len(farm_secret) != 32 or len(farm_id) != 16 or not 1 <= member_id <= MAX_MEMBER_ID:
        raise LocalProtocolError(
            "a member's password needs a 32-byte secret, a 16-byte farm id, an id from 1"
        )
    info = f"garlicfarm member {member_id}".encode("ascii")
    derived = HKDF(algorithm=SHA256(), length=32, salt=farm_id, info=info).derive(farm_secret)
    return base64.urlsafe_b64encode(derived).rstrip(b"=").decode()


def member_lookup(
    farm_secrets: Sequence[bytes],
    farm_id: bytes,
    others: Callable[[str], Mapping[str, Sequence[str]]],
) -> Callable[[str], Mapping[str, Sequence[str]]]:
    """The ``lookup`` of a farm's `DigestVerifier`: any member id by its derived passwords, else ``others``.

    Names of digits only are ids or nobody, and never reach ``others`` (`UserStore.lookup`).

    :param farm_secrets: one or two; a member may use either (rotation).
    """

    @lru_cache(maxsize=1024)
    def member(member_id: int) -> Mapping[str, Sequence[str]]:
        passwords = [member_password(secret, farm_id, member_id) for secret in farm_secrets]
        user = str(member_id)
        return {a: tuple(ha1(a, user, REALM, password) for password in passwords) for a in ALGORITHMS}

    def lookup(user: str) -> Mapping[str, Sequence[str]]:
        if not user.isdigit():
            return others(user)
        # One spelling per id: the user name is compared with message sources later on.
        if user.isascii() and user[0] != "0" and len(user) <= 10 and int(user) <= MAX_MEMBER_ID:
            return member(int(user))
        return {}

    return lookup


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


def read_secret_file(path: Path) -> tuple[bytes, ...]:
    """The farm secrets in a ``secret_file``: one or two lines, each 32 bytes as base64url.

    :returns: the first is the one to use, all are accepted (rotation).
    :raises ConfigError: as `read_private_file`, or the contents are something else.

    Source: D10.
    """
    lines = [line.strip() for line in read_private_file(path).splitlines() if line.strip()]
    if not 1 <= len(lines) <= 2 or not all(_SECRET.fullmatch(line) for line in lines):
        raise ConfigError([f"{path} must have one or two lines, each 32 bytes as base64url (43 characters)"])
    try:
        return tuple(base64.urlsafe_b64decode(line[:43] + "=") for line in lines)
    except binascii.Error:
        raise ConfigError([f"{path}: a line is not base64url"]) from None


def write_secret_file(path: Path, secret: bytes) -> None:
    """Write a new farm secret, mode 0600, durably. An existing file is never overwritten.

    :param secret: 32 random bytes.
    :raises ConfigError: the file exists, or cannot be made.
    """
    if len(secret) != 32:
        raise LocalProtocolError("a farm secret has 32 bytes")
    write_private_file(path, base64.urlsafe_b64encode(secret).rstrip(b"=") + b"\n")


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
