"""The name and password that a router's SAM or I2CP asks for, where its operator has set them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from garlicfarm.credentials.private_files import read_password
from garlicfarm.errors import ConfigError

MAX_CHARACTERS = 64
_WORD = re.compile(rf"[!#-~]{{1,{MAX_CHARACTERS}}}")


class RouterLogin(msgspec.Struct, frozen=True):
    """``user`` and ``password``: 1 … 64 printable ASCII characters, without spaces and quotes. Its ``repr``
    shows no secret."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"<RouterLogin {self.user}>"


def read_login(user: str, password_file: str, base_dir: Path, prefix: str = "") -> RouterLogin | None:
    """The login of two configuration keys; None: neither is set.

    :param password_file: with mode 0600; the password is its first line
    :param prefix: of the keys ``user`` and ``password_file``, for errors
    :raises ConfigError: only one is set, the file cannot be read, or a word cannot be sent (the operator's
        fault)
    """
    if not user and not password_file:
        return None
    if not user or not password_file:
        raise ConfigError([f"{prefix}user and {prefix}password_file go together: set both, or neither"])
    login = RouterLogin(user, read_password(base_dir / password_file))
    for name, word in ((f"{prefix}user", login.user), (f"the first line of {password_file}", login.password)):
        if not 1 <= len(word) <= MAX_CHARACTERS or not all(
            "!" <= each <= "~" and each != '"' for each in word
        ):
            raise ConfigError(
                [f"{name} must have 1 to {MAX_CHARACTERS} ASCII characters, without spaces and quotes"]
            )
    return login
