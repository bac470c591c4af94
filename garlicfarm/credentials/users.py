"""The users of a node: operators and clients, with roles, in the file ``data/users``.

JSON lines, one user each, mode 0600: name, role, one HA1 per algorithm; never a password. HA1s depend on the
realm, a constant (`garlicfarm.http.digest.REALM`), so the same users serve the admin API and the farm
listener.

A running node sees every change at the next request: it reads the file again when its identity on disk has
changed. Writers replace the whole file, one at a time. A `Login` follows the changes of its user.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from garlicfarm.credentials.private_files import read_private_file
from garlicfarm.credentials.roles import ROLES, UserRole, includes
from garlicfarm.durable_files import replace_file
from garlicfarm.errors import ConfigError
from garlicfarm.http.digest import ALGORITHMS, REALM, ha1
from garlicfarm.logs import EventLogger

LOCAL_USER = "local"
"""The user whose password the node made for commands on its own machine."""

MIN_PASSWORD_CHARACTERS = 8
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")


def is_name(text: str) -> bool:
    """Whether a user, or a member, can have this name."""
    return _NAME.fullmatch(text) is not None


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file."""

    name: str
    role: UserRole
    ha1: dict[str, str]


class UserStore:
    """The users in one file. A missing file holds no users.

    :param log: told when the file is not usable, for a node.
    :raises ConfigError: the file is damaged, cannot be read, or others can read it. Every method raises it if
    the file becomes so later. Until it is repaired, all logins are refused and nothing is overwritten.
    """

    def __init__(self, path: Path, log: EventLogger | None = None) -> None:
        self._path = path
        self._log = log
        self._identity: tuple[int, int, int] | None = None
        self._users: dict[str, User] = {}
        self._read()

    def lookup(self, name: str) -> Mapping[str, Sequence[str]]:
        """A user's HA1s by algorithm, for a `DigestVerifier`; empty if there is no such user."""
        user = self.find(name)
        return {} if user is None else {algorithm: (value,) for algorithm, value in user.ha1.items()}

    def role(self, name: str) -> UserRole | None:
        """A user's role; None if there is no such user."""
        user = self.find(name)
        return None if user is None else user.role

    def login(self, name: str) -> Login | None:
        """A login of this user; None if there is no such user."""
        user = self.find(name)
        return None if user is None else Login(self, user)

    def find(self, name: str) -> User | None:
        """A user; None if there is no such user."""
        self._refresh()
        return self._users.get(name)

    def list(self) -> list[tuple[str, UserRole]]:
        """Names and roles, by name."""
        self._refresh()
        return sorted((user.name, user.role) for user in self._users.values())

    def add(self, name: str, role: UserRole, password: str) -> None:
        """Add a user, or give an existing one a new role and password.

        :param name: 1 to 64 of ``A-Za-z0-9._@-``, not digits only: those are members (D10).
        :param password: at least `MIN_PASSWORD_CHARACTERS`; only its HA1s are kept.
        :raises ConfigError: name, role or password is not usable, or the file cannot be written.
        """
        if not is_name(name):
            raise ConfigError([f"user name {name!r}: it must be 1 to 64 of A-Z a-z 0-9 . _ @ -"])
        if name.isdigit():
            raise ConfigError([f"user name {name!r}: names of digits only are members' ids"])
        if role not in ROLES:
            *others, last = ROLES
            raise ConfigError([f"role {role!r}: it must be {', '.join(others)} or {last}"])
        if len(password) < MIN_PASSWORD_CHARACTERS:
            raise ConfigError(
                [
                    f"the password of user {name!r} is too short: use at least "
                    f"{MIN_PASSWORD_CHARACTERS} characters"
                ]
            )
        user = User(name, role, {a: ha1(a, name, REALM, password) for a in ALGORITHMS})
        self._change(lambda users: users.update({name: user}))

    def remove(self, name: str) -> None:
        """Remove a user; the next request is refused, and a running node closes the user's connections.

        :raises ConfigError: there is no such user, or the file cannot be written.
        """

        def forget(users: dict[str, User]) -> None:
            if users.pop(name, None) is None:
                raise ConfigError([f"there is no user {name!r} in {self._path}"])

        self._change(forget)

    def _refresh(self) -> None:
        try:
            self._read()
        except ConfigError as error:
            if self._log is not None:
                self._log.error("users-unusable", cause=str(error))
            raise

    def _read(self) -> None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._identity, self._users = None, {}
            return
        except OSError as error:
            raise ConfigError([f"{self._path} cannot be read: {error.strerror}"]) from error
        identity = (found.st_ino, found.st_mtime_ns, found.st_size)
        if identity != self._identity:
            self._users = self._parse(read_private_file(self._path))
            self._identity = identity

    def _parse(self, text: str) -> dict[str, User]:
        users: dict[str, User] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                user = msgspec.json.decode(line, type=User)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise ConfigError([f"{self._path}, line {number}: {error}"]) from error
            if user.name in users or user.name.isdigit():
                raise ConfigError([f"{self._path}, line {number}: user {user.name!r} twice, or a number"])
            users[user.name] = user
        return users

    def _change(self, change: Callable[[dict[str, User]], object]) -> None:
        """Read, change and replace the file as a whole, one writer at a time."""
        try:
            with self._turn():
                self._refresh()
                users = dict(self._users)
                change(users)
                lines = [msgspec.json.encode(user) + b"\n" for user in users.values()]
                replace_file(self._path, lines, 0o600)
        except OSError as error:
            raise ConfigError([f"{self._path} cannot be written: {error.strerror}"]) from error
        self._refresh()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the directory's flock, so that two ``garlicfarm user add`` at once both take effect."""
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class Login:
    """The login of one user on an open connection."""

    def __init__(self, users: UserStore, user: User) -> None:
        self.name = user.name
        self._users = users
        self._ha1 = user.ha1

    @property
    def role(self) -> UserRole | None:
        """The user's role now. None: the login is no longer valid. The user was removed or has another
        password, or the users file is damaged."""
        try:
            user = self._users.find(self.name)
        except ConfigError:
            return None
        return None if user is None or user.ha1 != self._ha1 else user.role

    def has_role(self, least: UserRole) -> bool:
        """Whether the user has this role now, or one that includes it."""
        return includes(self.role, least)
