"""Member passwords, derived from the farm secret (D10), and the file that holds it.

Every member derives every other member's password, so none is distributed. The handshake does not ask whether
an id is a member now: a lagging server may not know a new leader yet (D6).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from garlicfarm.credentials.private_files import read_private_file, write_private_file
from garlicfarm.errors import ConfigError, LocalProtocolError
from garlicfarm.http.digest import ALGORITHMS, REALM, ha1

MAX_MEMBER_ID = 2**31 - 1

_SECRET = re.compile(r"[A-Za-z0-9_-]{43}=?")


def member_password(farm_secret: bytes, farm_id: bytes, member_id: int) -> str:
    """The password with which a member logs in, as user ``str(member_id)``.

    :param farm_secret: 32 bytes.
    :param farm_id: 16 bytes.
    :param member_id: 1 … 2**31 - 1.
    :returns: 43 characters of base64url.
    :raises LocalProtocolError: an argument is out of its range.

    Source: D10 (a member's password is derived from farm id and secret), RFC 5869: HKDF with SHA-256, salt
    ``farm_id``, and one block of output.
    """
    if len(farm_secret) != 32 or len(farm_id) != 16 or not 1 <= member_id <= MAX_MEMBER_ID:
        raise LocalProtocolError(
            "a member's password needs a 32-byte secret, a 16-byte farm id, an id from 1"
        )
    info = f"garlicfarm member {member_id}".encode("ascii")
    derived = hmac.digest(hmac.digest(farm_id, farm_secret, "sha256"), info + b"\x01", "sha256")
    return base64.urlsafe_b64encode(derived).rstrip(b"=").decode()


def member_lookup(
    farm_secrets: Sequence[bytes],
    farm_id: bytes,
    others: Callable[[str], Mapping[str, Sequence[str]]],
) -> Callable[[str], Mapping[str, Sequence[str]]]:
    """The ``lookup`` of a farm's `DigestVerifier`: derived passwords for member ids, ``others`` for users.

    A name of digits only is an id, if it is valid; it never reaches ``others`` (`UserStore.lookup`).

    :param farm_secrets: one or two; a member may use either, for rotation.
    """

    @lru_cache(maxsize=1024)
    def member(member_id: int) -> Mapping[str, Sequence[str]]:
        passwords = [member_password(secret, farm_id, member_id) for secret in farm_secrets]
        user = str(member_id)
        return {a: tuple(ha1(a, user, REALM, password) for password in passwords) for a in ALGORITHMS}

    def lookup(user: str) -> Mapping[str, Sequence[str]]:
        if not user.isdigit():
            return others(user)
        # One spelling per id: the user name is compared with message sources later.
        if user.isascii() and user[0] != "0" and len(user) <= 10 and int(user) <= MAX_MEMBER_ID:
            return member(int(user))
        return {}

    return lookup


def read_secret_file(path: Path) -> tuple[bytes, ...]:
    """The farm secrets in a ``secret_file``: one or two lines, each 32 bytes as base64url.

    :returns: the first is to be used, all are accepted (rotation).
    :raises ConfigError: as `read_private_file`, or the contents are malformed.
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
